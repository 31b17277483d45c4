// SPDX-License-Identifier: Apache-2.0
// Verifies the heap over memory that blocks leave from: random walks in which no two pieces overlap, all are aligned
// and keep what was written, what does not fit is refused with what is free, and at the end all is one free piece
// again; releases of what was never given, or twice; several threads; blocks that go to a store from their piece and
// come back there; parts of other memory that leave as one block.
#include "client/fixture.h"
#include "client/heap.h"

#include <pthread.h>
#include <stdatomic.h>

#define BYTES   (UINT64_C(1) << 20)
#define PIECES  64u
#define STEPS   20000
#define THREADS 4u

typedef struct held {
  uint8_t *at;
  uint64_t bytes, seed;
} held_t;

static void check_kept(const held_t *held) {
  static _Thread_local uint8_t expected[BYTES];
  fill(expected, held->bytes, held->seed);
  assert_memory_equal(held->at, expected, held->bytes);
}

static void make(bl_client_region_t *memory, bl_client_heap_t **heap) {
  bl_error_t err = {0};
  must(bl_client_region_create(BYTES + 100, memory, &err), &err);
  must(bl_client_heap_create(memory, heap, &err), &err);
}

static void unmake(bl_client_region_t *memory, bl_client_heap_t *heap) {
  uint64_t all, largest;
  bl_client_heap_free_bytes(heap, &all, &largest);
  assert_int_equal(all, BYTES);
  assert_int_equal(largest, BYTES); // in one piece
  bl_client_heap_destroy(heap);
  bl_client_region_destroy(memory);
}

static void test_walk(void **state) {
  (void)state;
  bl_client_region_t memory;
  bl_client_heap_t *heap = NULL;
  bl_error_t err = {0};
  held_t held[PIECES] = {{0}};
  uint64_t used = 0, refused = 0;
  make(&memory, &heap);
  for (uint64_t step = 0; step < STEPS; step++) {
    held_t *one = &held[bl_random_bits(1, 2 * step) % PIECES];
    uint64_t all, largest, bytes = 1 + bl_random_bits(1, 2 * step + 1) % (BYTES / 12);
    if (one->at != NULL) {
      check_kept(one);
      must(bl_client_heap_release(heap, one->at, &err), &err);
      used -= (one->bytes + 255) / 256 * 256;
      *one = (held_t){0};
      continue;
    }
    void *at = NULL;
    bl_client_heap_free_bytes(heap, &all, &largest);
    assert_int_equal(all, BYTES - used);
    const bl_status_t status = bl_client_heap_acquire(heap, bytes, &at, &err);
    assert_int_equal(status, bytes <= largest ? BL_OK : BL_EXHAUSTED);
    refused += status != BL_OK ? 1 : 0;
    if (status == BL_OK) {
      *one = (held_t){.at = at, .bytes = bytes, .seed = step};
      assert_int_equal((uint64_t)(one->at - (uint8_t *)memory.base) % BL_CLIENT_HEAP_ALIGNMENT, 0);
      assert_true(one->at >= (uint8_t *)memory.base && one->at + bytes <= (uint8_t *)memory.base + BYTES);
      fill(one->at, bytes, step);
      used += (bytes + 255) / 256 * 256;
    }
  }
  assert_true(refused > 100);
  for (unsigned i = 0; i < PIECES; i++) {
    must(bl_client_heap_release(heap, held[i].at, &err), &err);
  }
  unmake(&memory, heap);
}

static void test_what_is_refused(void **state) {
  (void)state;
  bl_client_region_t memory, little = {.base = &memory, .bytes = 255};
  bl_client_heap_t *heap = NULL;
  bl_error_t err = {0};
  void *at = NULL, *all = NULL;
  assert_int_equal(bl_client_heap_create(&little, &heap, &err), BL_INVALID);
  make(&memory, &heap);
  assert_int_equal(bl_client_heap_acquire(heap, 0, &at, &err), BL_INVALID);
  assert_int_equal(bl_client_heap_acquire(heap, BYTES + 1, &at, &err), BL_EXHAUSTED);
  assert_int_equal(bl_client_heap_acquire(heap, UINT64_MAX, &at, &err), BL_EXHAUSTED);
  assert_non_null(strstr(err.text, "1.00 MiB are free, at most 1.00 MiB in one piece"));
  must(bl_client_heap_acquire(heap, BYTES, &all, &err), &err);
  assert_int_equal(bl_client_heap_acquire(heap, 1, &at, &err), BL_EXHAUSTED);
  assert_int_equal(bl_client_heap_release(heap, (uint8_t *)all + 256, &err), BL_INVALID);
  must(bl_client_heap_release(heap, all, &err), &err);
  assert_int_equal(bl_client_heap_release(heap, all, &err), BL_INVALID);
  unmake(&memory, heap);
}

static void *use(void *argument) {
  bl_client_heap_t *heap = argument;
  static atomic_uint others;
  const uint64_t seed = atomic_fetch_add(&others, 1);
  bl_error_t err;
  for (uint64_t i = 0; i < 2000; i++) {
    void *at = NULL;
    const uint64_t bytes = 1 + bl_random_bits(seed, i) % (BYTES / THREADS / 2);
    if (bl_client_heap_acquire(heap, bytes, &at, &err) == BL_OK) {
      ((uint8_t *)at)[0] = ((uint8_t *)at)[bytes - 1] = 1;
      if (bl_client_heap_release(heap, at, &err) != BL_OK) {
        return heap;
      }
    }
  }
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  bl_client_region_t memory;
  bl_client_heap_t *heap = NULL;
  pthread_t threads[THREADS];
  make(&memory, &heap);
  for (unsigned i = 0; i < THREADS; i++) {
    assert_int_equal(pthread_create(&threads[i], NULL, use, heap), 0);
  }
  for (unsigned i = 0; i < THREADS; i++) {
    void *failed = NULL;
    pthread_join(threads[i], &failed);
    assert_null(failed);
  }
  unmake(&memory, heap);
}

static void test_blocks_leave_from_pieces(void **state) {
  const fixture_t *fixture = *state;
  bl_client_region_t memory;
  bl_client_heap_t *heap = NULL;
  bl_client_t *client = NULL;
  bl_error_t err = {0};
  uint64_t slots[4];
  held_t held[4];
  make(&memory, &heap);
  bl_client_options_t options = options_of(fixture, 0);
  options.path = BL_CLIENT_PATH_SHM;
  options.regions = &memory;
  must(bl_client_open(&options, &client, &err), &err);
  reserve(client, GRANULE, 4, slots);
  for (uint64_t i = 0; i < 4; i++) {
    void *at = NULL;
    held[i] = (held_t){.bytes = GRANULE - 1000 * i - 1, .seed = i};
    must(bl_client_heap_acquire(heap, held[i].bytes, &at, &err), &err);
    held[i].at = at;
    fill(at, held[i].bytes, i);
    must(bl_client_evict(client, slots[i], at, held[i].bytes, NULL, &err), &err);
  }
  memset(memory.base, 0, memory.bytes);
  for (uint64_t i = 0; i < 4; i++) {
    must(bl_client_load(client, slots[i], held[i].at, held[i].bytes, &err), &err);
    check_kept(&held[i]);
    must(bl_client_heap_release(heap, held[i].at, &err), &err);
  }
  bl_client_close(client);
  unmake(&memory, heap);
}

static void test_parts_leave_as_one(void **state) {
  bl_error_t err = {0};
  bl_client_region_t memory;
  bl_client_heap_t *heap = NULL;
  make(&memory, &heap);
  static uint8_t tensors[3][5000], back[GRANULE];
  const bl_client_part_t parts[] = {
      {.base = tensors[0], .bytes = 5000}, {0}, {.base = tensors[1], .bytes = 64}, {.base = tensors[2], .bytes = 1}};
  for (uint64_t i = 0; i < 3; i++) {
    fill(tensors[i], sizeof tensors[i], i);
  }
  void *at = NULL, *other = NULL;
  uint64_t bytes = 0;
  memset(memory.base, 0xee, memory.bytes);
  must(bl_client_heap_gather(heap, parts, 4, &at, &bytes, &err), &err);
  assert_int_equal(bytes, 5056 + 64 + 64);
  const uint64_t begins[] = {0, 5056, 5056, 5120, 5184};
  for (size_t i = 0; i <= 4; i++) {
    assert_int_equal(bl_client_heap_gathered(parts, i), begins[i]);
  }
  assert_int_equal(bl_client_heap_gather(heap, parts + 1, 1, &other, &bytes, &err), BL_INVALID); // no bytes
  const bl_client_part_t huge[] = {{.base = tensors, .bytes = UINT64_MAX - 3}, {.base = tensors, .bytes = 64}};
  assert_int_equal(bl_client_heap_gather(heap, huge, 2, &other, &bytes, &err), BL_INVALID);
  const bl_client_part_t large[] = {{.base = memory.base, .bytes = BYTES}};
  assert_int_equal(bl_client_heap_gather(heap, large, 1, &other, &bytes, &err), BL_EXHAUSTED);
  assert_null(other);

  bl_client_options_t options = options_of(*state, 0);
  options.path = BL_CLIENT_PATH_SHM;
  bl_client_t *client = NULL;
  uint64_t slot = 0;
  options.regions = &memory;
  must(bl_client_open(&options, &client, &err), &err);
  reserve(client, GRANULE, 1, &slot);
  must(bl_client_evict(client, slot, at, begins[4], NULL, &err), &err);
  must(bl_client_heap_release(heap, at, &err), &err);
  must(bl_client_load(client, slot, back, begins[4], &err), &err);
  for (size_t i = 0; i < 4; i++) {
    if (parts[i].bytes > 0) {
      assert_memory_equal(back + begins[i], parts[i].base, parts[i].bytes);
    }
  }
  for (uint64_t i = 5000; i < begins[4]; i++) { // between them nothing of what was there
    assert_true(back[i] == 0 || i >= begins[2]);
  }
  bl_client_close(client);
  unmake(&memory, heap);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_walk),
      cmocka_unit_test(test_what_is_refused),
      cmocka_unit_test(test_threads),
      cmocka_unit_test_setup_teardown(test_blocks_leave_from_pieces, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_parts_leave_as_one, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
