// SPDX-License-Identifier: Apache-2.0
// Verifies what programs rely on that were built with another version of the library: it accepts options and counters
// of another size, and does not change the numbers of statuses, paths and states. Also that the memory which it
// allocates for a program is zero, can be shared, and is freed.
#include "client/fixture.h"

#include <sys/mman.h>

typedef struct later_options { // of a version to come
  bl_client_options_t known;
  uint64_t added[2];
} later_options_t;

static void test_options_of_another_size(void **state) {
  const fixture_t *fixture = *state;
  bl_client_t *client = NULL;
  bl_error_t err = {0};
  later_options_t options = {.known = options_of(fixture, 0)};
  for (size_t size = 0; size < sizeof options.known; size += size == 0 ? sizeof options.known - 1 : 1) {
    options.known.size = size;
    assert_int_equal(bl_client_open(&options.known, &client, &err), BL_INVALID);
    assert_non_null(strstr(err.text, "sizeof(bl_client_options_t)"));
  }
  options.known.size = sizeof options; // nothing of it is used
  must(bl_client_open(&options.known, &client, &err), &err);
  bl_client_close(client);
  options.added[1] = 1;
  assert_int_equal(bl_client_open(&options.known, &client, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "older than what its caller was built with"));
}

static void test_counters_of_another_size(void **state) {
  const fixture_t *fixture = *state;
  bl_client_t *client = must_open(fixture, 0);
  bl_error_t err = {0};
  uint64_t slot;
  reserve(client, GRANULE, 1, &slot);
  must(bl_client_evict(client, slot, fixture->buffers.base, GRANULE, NULL, &err), &err);
  must(bl_client_load(client, slot, fixture->buffers.base, GRANULE, &err), &err);
  struct {
    bl_client_counters_t known;
    uint64_t more, beyond;
  } later = {.more = 7, .beyond = 7};
  bl_client_counters_fill(client, &later.known, sizeof later.known + sizeof later.more);
  assert_int_equal(later.known.evicted, 1);
  assert_int_equal(later.known.loaded, 1);
  assert_int_equal(later.more, 0);
  assert_int_equal(later.beyond, 7);
  later.known.loaded = 7;
  bl_client_counters_fill(client, &later.known, sizeof later.known.evicted);
  assert_int_equal(later.known.evicted, 1);
  assert_int_equal(later.known.loaded, 7);
  bl_client_close(client);
}

static void test_nobody_to_tell(void **state) {
  const fixture_t *fixture = *state;
  bl_client_options_t options = options_of(fixture, 0);
  bl_client_t *client = NULL;
  bl_error_t err = {0};
  assert_int_equal(bl_client_open_start(&options, NULL, 0, NULL, &client, &err), BL_INVALID);
}

static void test_memory(void **state) {
  (void)state;
  bl_client_region_t source = {.fd = -1};
  bl_error_t err = {0};
  assert_int_equal(bl_client_region_create(0, &source, &err), BL_INVALID);
  assert_int_equal(bl_client_region_create(UINT64_C(1) << 60, &source, &err), BL_EXHAUSTED);
  must(bl_client_region_create(GRANULE + 1, &source, &err), &err);
  assert_int_equal(source.bytes, GRANULE + 1);
  assert_int_equal(fcntl(source.fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW), F_SEAL_SHRINK | F_SEAL_GROW);
  const uint8_t *base = source.base;
  for (uint64_t i = 0; i <= GRANULE; i++) {
    assert_int_equal(base[i], 0);
  }
  const int fd = source.fd;
  bl_client_region_destroy(&source);
  assert_int_equal(fcntl(fd, F_GETFD), -1);
  assert_int_equal(msync((void *)(uintptr_t)base, GRANULE, MS_ASYNC), -1); // not mapped any more
  bl_client_region_destroy(&source);
}

// Numbers never change: a new status, path or state is added at the end of its table.
static void test_numbers(void **state) {
  (void)state;
  assert_int_equal(BL_OK, 0);
  assert_int_equal(BL_INTERNAL, 1);
  assert_int_equal(BL_INVALID, 2);
  assert_int_equal(BL_NOT_FOUND, 3);
  assert_int_equal(BL_PRECONDITION, 4);
  assert_int_equal(BL_FENCED, 5);
  assert_int_equal(BL_UNAVAILABLE, 6);
  assert_int_equal(BL_DEADLINE, 7);
  assert_int_equal(BL_DENIED, 8);
  assert_int_equal(BL_UNAUTHENTICATED, 9);
  assert_int_equal(BL_EXHAUSTED, 10);
  assert_int_equal(BL_UNHEALTHY, 11);
  assert_int_equal(BL_PARTIAL, 12);
  assert_int_equal(BL_CANCELLED, 13);
  assert_int_equal(BL_DATA_LOSS, 14);
  assert_int_equal(BL_UNIMPLEMENTED, 15);
  assert_int_equal(BL_IO, 16);
  assert_int_equal(BL_CLIENT_PATH_NCCL, 4);
  assert_int_equal(BL_CLIENT_SLOT_UNKNOWN, 5);
  assert_int_equal(sizeof(bl_error_t), 4 + BL_ERROR_TEXT_BYTES);
  assert_int_equal(sizeof(bl_client_region_t), 24);
  assert_int_equal(sizeof(bl_client_ticket_t), 8);
  assert_int_equal(sizeof(bl_client_demand_t), 16);
  assert_int_equal(sizeof(bl_client_label_t), 16);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_options_of_another_size, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_counters_of_another_size, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_nobody_to_tell, set_up, tear_down),
      cmocka_unit_test(test_memory),
      cmocka_unit_test(test_numbers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
