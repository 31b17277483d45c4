// SPDX-License-Identifier: Apache-2.0
// Verifies host arenas: resident and zero at creation, counted and given back, and that whoever receives the
// descriptor of a shareable one can read it and nothing else (PROTOCOL.md section 1).
#include "device/device.h"

#include "folder.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define PAGE_BYTES 4096ull

static void assert_resident(const bl_arena_t *arena) {
  size_t pages = arena->mapped_bytes / PAGE_BYTES;
  unsigned char *flags = calloc(pages, 1);
  assert_non_null(flags);
  assert_int_equal(mincore(arena->base, arena->mapped_bytes, flags), 0);
  for (size_t i = 0; i < pages; i++) {
    assert_int_equal(flags[i] & 1, 1);
  }
  free(flags);
}

static void creates(bl_arena_kind_t kind) {
  const uint64_t sizes[] = {1, 4095, 4097, (3u << 20) + 123};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    bl_memory_account_t account = {0};
    bl_memory_plan(&account, BL_MEMORY_EDGES, sizes[i]);
    bl_arena_t arena;
    assert_int_equal(bl_arena_create(bl_device_host(), &account, BL_MEMORY_EDGES, kind, sizes[i], &arena, NULL), BL_OK);
    assert_int_equal(arena.bytes, sizes[i]);
    assert_int_equal((uintptr_t)arena.base % PAGE_BYTES, 0);
    assert_int_equal(bl_memory_usage(&account, BL_MEMORY_EDGES).current_bytes, sizes[i]);
    assert_resident(&arena);
    for (uint64_t k = 0; k < sizes[i]; k++) {
      if (arena.base[k] != 0) {
        fail_msg("byte %llu is %u, not 0", (unsigned long long)k, arena.base[k]);
      }
    }
    memset(arena.base, 0xa5, sizes[i]);
    bl_arena_destroy(&arena);
    bl_arena_destroy(&arena);
    assert_int_equal(bl_memory_usage(&account, BL_MEMORY_EDGES).current_bytes, 0);
  }
}

static void private_arenas(void **state) {
  (void)state;
  creates(BL_ARENA_PRIVATE);
}

static void shareable_arenas(void **state) {
  (void)state;
  creates(BL_ARENA_SHAREABLE);
}

static void staging_arenas(void **state) {
  (void)state;
  creates(BL_ARENA_STAGING);
  creates(BL_ARENA_STAGING_SHAREABLE);
}

static void peers_can_only_read(void **state) {
  (void)state;
  bl_arena_t arena;
  assert_int_equal(
      bl_arena_create(bl_device_host(), NULL, BL_MEMORY_EDGES, BL_ARENA_SHAREABLE, 3 * PAGE_BYTES, &arena, NULL),
      BL_OK);
  int fd = dup(arena.fd);
  assert_true(fd >= 0);
  uint8_t *view = mmap(NULL, arena.mapped_bytes, PROT_READ, MAP_SHARED, fd, 0);
  assert_ptr_not_equal(view, MAP_FAILED);
  arena.base[5] = 42; // the owner still writes, and the peer sees it
  assert_int_equal(view[5], 42);

  assert_int_equal(mprotect(view, arena.mapped_bytes, PROT_READ | PROT_WRITE), -1);
  assert_ptr_equal(mmap(NULL, arena.mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  assert_int_equal(pwrite(fd, "x", 1, 5), -1);
  assert_int_equal(ftruncate(fd, PAGE_BYTES), -1);
  assert_int_equal(ftruncate(fd, 8 * PAGE_BYTES), -1);
  assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE_BYTES), -1);
  assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int again = open(path, O_RDWR);
  if (again >= 0) { // reopening succeeds for the same user, but the seal is on the file, not on the descriptor
    assert_int_equal(pwrite(again, "x", 1, 5), -1);
    assert_ptr_equal(mmap(NULL, arena.mapped_bytes, PROT_WRITE, MAP_SHARED, again, 0), MAP_FAILED);
    close(again);
  }
  assert_int_equal(view[5], 42);
  bl_arena_destroy(&arena);
  assert_int_equal(view[5], 42); // the peer's map outlives the owner
  munmap(view, 3 * PAGE_BYTES);
  close(fd);
}

static void refusals_change_nothing(void **state) {
  (void)state;
  bl_memory_account_t account = {0};
  bl_memory_plan(&account, BL_MEMORY_SLOTS, 1ull << 50);
  bl_error_t err = {0};
  bl_arena_t arena = {.bytes = 77};
  assert_int_equal(
      bl_arena_create(bl_device_host(), &account, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, 1ull << 45, &arena, &err),
      BL_EXHAUSTED);
  assert_non_null(strstr(err.text, "memory slots"));
  assert_non_null(strstr(err.text, "32.0 TiB"));
  assert_non_null(strstr(err.text, "available"));
  assert_int_equal(
      bl_arena_create(bl_device_host(), &account, BL_MEMORY_SLOTS, BL_ARENA_PRIVATE, 1ull << 49, &arena, &err),
      BL_EXHAUSTED);
  assert_int_equal(arena.bytes, 77);
  assert_int_equal(bl_memory_usage(&account, BL_MEMORY_SLOTS).current_bytes, 0);
}

static void empty_arenas_and_copies(void **state) {
  (void)state;
  bl_arena_t arena;
  bl_device_t *device = bl_device_host();
  assert_int_equal(bl_arena_create(device, NULL, BL_MEMORY_DATA, BL_ARENA_SHAREABLE, 0, &arena, NULL), BL_OK);
  assert_null(arena.base);
  bl_arena_destroy(&arena);
  char to[4] = "";
  assert_int_equal(bl_device_copy(device, NULL, to, "abc", 4, NULL), BL_OK);
  assert_string_equal(to, "abc");
  assert_int_equal(bl_device_fill(device, NULL, to, 'x', 3, NULL), BL_OK);
  assert_string_equal(to, "xxx");
}

// The host has no streams: everything is done when a call returns, and every call accepts that.
static void streams_and_events_of_the_host(void **state) {
  (void)state;
  bl_device_t *device = bl_device_host();
  bl_device_stream_t *stream = NULL;
  bl_device_event_t *event = NULL, *later = NULL;
  bl_error_t err = {0};
  char to[4] = "";
  bool done = false;
  uint64_t ns = 1;
  assert_int_equal(bl_device_stream_create(device, BL_STREAM_COPY, &stream, &err), BL_OK);
  assert_int_equal(bl_device_event_create(device, true, &event, &err), BL_OK);
  assert_int_equal(bl_device_event_create(device, true, &later, &err), BL_OK);
  assert_int_equal(bl_device_event_record(device, event, stream, &err), BL_OK);
  assert_int_equal(bl_device_copy(device, stream, to, "abc", 4, &err), BL_OK);
  assert_int_equal(bl_device_event_record(device, later, stream, &err), BL_OK);
  assert_int_equal(bl_device_stream_wait_event(device, stream, later, &err), BL_OK);
  assert_int_equal(bl_device_event_query(device, later, &done, &err), BL_OK);
  assert_true(done);
  assert_int_equal(bl_device_event_wait(device, later, 0, &err), BL_OK); // its deadline has passed, and it is done
  assert_int_equal(bl_device_event_elapsed(device, event, later, &ns, &err), BL_OK);
  assert_int_equal(ns, 0);
  assert_string_equal(to, "abc");
  bl_device_event_destroy(device, event);
  bl_device_event_destroy(device, later);
  bl_device_stream_destroy(device, stream);
  assert_string_equal(bl_device_describe(device), "host");
}

static uint64_t blocks_of(const bl_arena_t *arena) {
  struct stat info;
  assert_int_equal(fstat(arena->fd, &info), 0);
  return (uint64_t)info.st_blocks;
}

static void memory_that_is_taken_later(void **state) {
  (void)state;
  const uint64_t bytes = 64 * PAGE_BYTES;
  bl_arena_t arena;
  bl_error_t err = {0};
  assert_int_equal(
      bl_arena_create(bl_device_host(), NULL, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE_LATER, bytes, &arena, &err), BL_OK);
  assert_int_equal(blocks_of(&arena), 0);
  assert_int_equal(ftruncate(arena.fd, 8 * PAGE_BYTES), -1); // sealed as ever
  assert_ptr_equal(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, arena.fd, 0), MAP_FAILED);
  assert_int_equal(bl_arena_fill(&arena, 8 * PAGE_BYTES, PAGE_BYTES + 1, &err), BL_OK);
  assert_true(blocks_of(&arena) >= 2 * PAGE_BYTES / 512);
  memset(arena.base + 8 * PAGE_BYTES, 7, 2 * PAGE_BYTES);
  assert_int_equal(bl_arena_fill(&arena, 0, bytes, &err), BL_OK);
  assert_int_equal(blocks_of(&arena), bytes / 512);
  for (uint64_t i = 0; i < bytes; i++) { // what was there stays
    assert_int_equal(arena.base[i], i / PAGE_BYTES == 8 || i / PAGE_BYTES == 9 ? 7 : 0);
  }
  bl_arena_destroy(&arena);
  assert_int_equal(bl_arena_create(bl_device_host(), NULL, BL_MEMORY_SLOTS, BL_ARENA_PRIVATE, bytes, &arena, &err),
                   BL_OK);
  assert_int_equal(bl_arena_fill(&arena, 0, bytes, &err), BL_OK); // has it all
  bl_arena_destroy(&arena);
}

static void descriptors_stay_flat(void **state) {
  (void)state;
  unsigned before = count_descriptors(0);
  for (int i = 0; i < 50; i++) {
    bl_arena_t arena;
    assert_int_equal(
        bl_arena_create(bl_device_host(), NULL, BL_MEMORY_DATA, BL_ARENA_SHAREABLE, PAGE_BYTES, &arena, NULL), BL_OK);
    bl_arena_destroy(&arena);
  }
  assert_int_equal(count_descriptors(0), before);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(private_arenas),
      cmocka_unit_test(shareable_arenas),
      cmocka_unit_test(staging_arenas),
      cmocka_unit_test(peers_can_only_read),
      cmocka_unit_test(refusals_change_nothing),
      cmocka_unit_test(empty_arenas_and_copies),
      cmocka_unit_test(streams_and_events_of_the_host),
      cmocka_unit_test(descriptors_stay_flat),
      cmocka_unit_test(memory_that_is_taken_later),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
