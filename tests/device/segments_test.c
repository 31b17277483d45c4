// SPDX-License-Identifier: Apache-2.0
// Verifies pieces of memory that come and go: their addresses stay, their memory really goes back, what stays keeps its
// bytes, shareable ones can be mapped by their descriptor and not written, and failures change nothing.
#include "device/segments.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#define BYTES (3u * 4096 + 100)

static void check_kind(bl_arena_kind_t kind) {
  bl_memory_account_t account = {0};
  bl_memory_plan(&account, BL_MEMORY_SLOTS, 6 * BYTES);
  bl_segments_t segments;
  bl_error_t err;
  assert_int_equal(bl_segments_init(&segments, bl_device_host(), &account, BL_MEMORY_SLOTS, kind, 6, BYTES, &err),
                   BL_OK);
  assert_int_equal(bl_memory_usage(&account, BL_MEMORY_SLOTS).current_bytes, 0);
  assert_int_equal(bl_segments_resize(&segments, 4, &err), BL_OK);
  uint8_t *places[6];
  for (uint32_t i = 0; i < 6; i++) {
    places[i] = bl_segments_at(&segments, i);
    assert_int_equal((uintptr_t)places[i] % 4096, 0);
  }
  for (uint32_t i = 0; i < 4; i++) {
    for (uint32_t k = 0; k < BYTES; k++) {
      assert_int_equal(places[i][k], 0);
    }
    memset(places[i], (int)i + 1, BYTES);
  }
  assert_int_equal(bl_memory_usage(&account, BL_MEMORY_SLOTS).current_bytes, 4 * BYTES);
  assert_int_equal(bl_segments_resize(&segments, 2, &err), BL_OK);
  assert_int_equal(bl_memory_usage(&account, BL_MEMORY_SLOTS).current_bytes, 2 * BYTES);
  assert_int_equal(msync(places[1], 4096, MS_ASYNC), 0);
  unsigned char resident[4] = {1, 1, 1, 1};
  assert_int_equal(mincore(places[2], 4096, resident), 0); // reserved, without memory
  assert_int_equal(resident[0] & 1, 0);
  assert_int_equal(bl_segments_resize(&segments, 6, &err), BL_OK);
  for (uint32_t i = 0; i < 6; i++) {
    assert_ptr_equal(bl_segments_at(&segments, i), places[i]);
    assert_int_equal(places[i][0], i < 2 ? i + 1 : 0);
    assert_int_equal(places[i][BYTES - 1], i < 2 ? i + 1 : 0);
  }
  assert_int_equal(bl_segments_resize(&segments, 7, &err), BL_EXHAUSTED);
  assert_int_equal(segments.count, 6);
  bl_segments_cleanup(&segments);
  assert_int_equal(bl_memory_usage(&account, BL_MEMORY_SLOTS).current_bytes, 0);
}

static void memory_comes_and_goes(void **state) {
  (void)state;
  check_kind(BL_ARENA_PRIVATE);
  check_kind(BL_ARENA_SHAREABLE);
}

static void peers_can_only_read(void **state) {
  (void)state;
  bl_segments_t segments;
  bl_error_t err;
  assert_int_equal(
      bl_segments_init(&segments, bl_device_host(), NULL, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, 2, BYTES, &err), BL_OK);
  assert_int_equal(bl_segments_resize(&segments, 2, &err), BL_OK);
  memset(bl_segments_at(&segments, 1), 7, BYTES);
  int fd = bl_segments_arena(&segments, 1)->fd;
  assert_true(fd >= 0 && fd != bl_segments_arena(&segments, 0)->fd);
  assert_ptr_equal(mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  uint8_t *map = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
  assert_ptr_not_equal(map, MAP_FAILED);
  assert_int_equal(map[BYTES - 1], 7);
  assert_int_equal(bl_segments_resize(&segments, 1, &err), BL_OK);
  assert_int_equal(map[0], 7); // the peer's map keeps it
  munmap(map, BYTES);
  bl_segments_cleanup(&segments);
}

static void a_plan_that_is_too_small_changes_nothing(void **state) {
  (void)state;
  bl_memory_account_t account = {0};
  bl_memory_plan(&account, BL_MEMORY_SLOTS, 3 * BYTES);
  bl_segments_t segments;
  bl_error_t err;
  assert_int_equal(
      bl_segments_init(&segments, bl_device_host(), &account, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, 8, BYTES, &err),
      BL_OK);
  assert_int_equal(bl_segments_resize(&segments, 2, &err), BL_OK);
  assert_int_equal(bl_segments_resize(&segments, 5, &err), BL_EXHAUSTED);
  assert_non_null(strstr(err.text, "slots"));
  assert_int_equal(segments.count, 2);
  assert_int_equal(bl_memory_usage(&account, BL_MEMORY_SLOTS).current_bytes, 2 * BYTES);
  bl_segments_cleanup(&segments);
  bl_segments_cleanup(&segments);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(memory_comes_and_goes),
      cmocka_unit_test(peers_can_only_read),
      cmocka_unit_test(a_plan_that_is_too_small_changes_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
