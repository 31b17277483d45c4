// SPDX-License-Identifier: Apache-2.0
// Verifies that wrong arguments are refused with a text that says which one is wrong and how: memory that is NULL
// (and the session goes on), reservations of nothing or too much, an arena of another size than the job has, unknown
// paths, a number of a stage that another session has.
#include "client/fixture.h"
#include "client/heap.h"

static void expect_text(const bl_error_t *err, const char *text) {
  if (strstr(err->text, text) == NULL) {
    fail_msg("\"%s\" does not contain \"%s\"", err->text, text);
  }
}

static void expect_invalid(bl_status_t status, const bl_error_t *err, const char *text) {
  if (status != BL_INVALID) {
    fail_msg("%s, not %s: %s", bl_status_name(status), bl_status_name(BL_INVALID), err->text);
  }
  expect_text(err, text);
}

static void test_memory_that_is_null(void **state) {
  const fixture_t *fixture = *state;
  uint8_t *base = fixture->buffers.base;
  bl_client_t *client = must_open(fixture, 0);
  bl_client_ticket_t ticket;
  bl_error_t err = {0};
  uint64_t slot;
  uint32_t number;
  reserve(client, GRANULE, 1, &slot);
  expect_invalid(bl_client_evict(client, slot, NULL, 1000, NULL, &err), &err, "the source is NULL");
  fill(base, 1000, 1);
  must(bl_client_evict(client, slot, base, 1000, NULL, &err), &err);
  const char *null = "the destination is NULL";
  expect_invalid(bl_client_load(client, slot, NULL, 1000, &err), &err, null);
  expect_invalid(bl_client_load_kept(client, slot, NULL, 1000, &err), &err, null);
  expect_invalid(bl_client_load_part(client, slot, 1, NULL, 10, &err), &err, null);
  expect_invalid(bl_client_load_start(client, slot, NULL, 1000, &ticket, &err), &err, null);
  expect_invalid(bl_client_load_start_kept(client, slot, NULL, 1000, &ticket, &err), &err, null);
  expect_invalid(bl_client_load_part_start(client, slot, 1, NULL, 10, &ticket, &err), &err, null);
  expect_invalid(bl_client_register(client, NULL, &number, &err), &err, "a region needs memory");
  assert_int_equal(bl_client_slot_state(client, slot), BL_CLIENT_SLOT_FULL);
  must(bl_client_load(client, slot, base + GRANULE, 1000, &err), &err);
  assert_memory_equal(base, base + GRANULE, 1000);
  bl_client_close(client);
  bl_client_region_destroy(NULL);
}

static void test_options(void **state) {
  const fixture_t *fixture = *state;
  bl_client_options_t options = options_of(fixture, 0);
  bl_client_t *client = NULL;
  bl_error_t err = {0};
  expect_invalid(bl_client_open(NULL, &client, &err), &err, "options of the client are NULL");
  options.regions = NULL;
  expect_invalid(bl_client_open(&options, &client, &err), &err, "regions of the client are NULL");
  bl_client_region_t nowhere = fixture->source;
  nowhere.base = NULL;
  options.regions = &nowhere;
  expect_invalid(bl_client_open(&options, &client, &err), &err, "region 0 is not shareable");
  options = options_of(fixture, 0);
  options.path = (bl_client_path_t)99;
  expect_invalid(bl_client_open(&options, &client, &err), &err, "there is no data path 99");
  assert_null(client);
}

static void test_heap(void **state) {
  (void)state;
  bl_client_region_t memory;
  bl_client_heap_t *heap = NULL;
  bl_error_t err = {0};
  void *at = NULL;
  uint64_t bytes = 0, all = 0;
  expect_invalid(bl_client_heap_create(NULL, &heap, &err), &err, "a heap needs");
  must(bl_client_region_create(GRANULE, &memory, &err), &err);
  must(bl_client_heap_create(&memory, &heap, &err), &err);
  const bl_client_part_t parts[] = {{NULL, 0}, {NULL, 100}};
  expect_invalid(bl_client_heap_gather(heap, parts, 2, &at, &bytes, &err), &err, "part 1 of 100 bytes");
  expect_invalid(bl_client_heap_gather(heap, NULL, 2, &at, &bytes, &err), &err, "their table is NULL");
  bl_client_heap_free_bytes(heap, &all, NULL);
  assert_int_equal(all, GRANULE);
  bl_client_heap_destroy(heap);
  bl_client_region_destroy(&memory);
}

static void test_reservations(void **state) {
  const fixture_t *fixture = *state;
  bl_client_t *client = must_open(fixture, 0);
  bl_error_t err = {0};
  const bl_client_demand_t fit = {.bytes = GRANULE, .count = 1};
  const char *beyond = "do not fit the arena of the job";
  expect_invalid(bl_client_reserve(client, 0, &fit, 1, &err), &err, "count from 1");
  expect_invalid(bl_client_reserve(client, 1, &fit, 0, &err), &err, "there is no demand");
  expect_invalid(bl_client_reserve(client, 1, NULL, 1, &err), &err, "the demands are NULL");
  const bl_client_demand_t wrong[] = {fit, {.bytes = GRANULE}, {.count = 1}};
  expect_invalid(bl_client_reserve(client, 1, wrong, 2, &err), &err, "demand 1 has the count 0");
  expect_invalid(bl_client_reserve(client, 1, wrong + 2, 1, &err), &err, "demand 0 has 0 bytes");
  const bl_client_demand_t large[] = {{.bytes = GRANULE, .count = UINT32_MAX},
                                      {.bytes = UINT64_MAX, .count = 1},
                                      {.bytes = 257 * GRANULE, .count = 1},
                                      {.bytes = GRANULE, .count = 257}};
  for (size_t i = 0; i < sizeof large / sizeof large[0]; i++) {
    expect_invalid(bl_client_reserve(client, 1, &large[i], 1, &err), &err, beyond);
    expect_text(&err, "it has 16.0 MiB");
  }
  bl_client_demand_t sizes[9], many[65];
  for (uint32_t i = 0; i < 65; i++) {
    many[i] = fit;
    sizes[i % 9] = (bl_client_demand_t){.bytes = (1 + i % 9) * GRANULE, .count = 1};
  }
  expect_invalid(bl_client_reserve(client, 1, sizes, 9, &err), &err, "at most 8 sizes");
  expect_invalid(bl_client_reserve(client, 1, many, 65, &err), &err, "65 demands in one reservation: at most 64");
  for (uint64_t plan = 1; plan <= 4; plan++) {
    must(bl_client_reserve(client, plan, &fit, 1, &err), &err);
  }
  expect_invalid(bl_client_reserve(client, 5, &fit, 1, &err), &err, "4 plans at a time");
  bl_client_close(client);
}

static void test_arenas(void **state) {
  const fixture_t *fixture = *state;
  bl_client_options_t options = options_of(fixture, 0);
  bl_client_t *client = NULL, *second = NULL;
  bl_error_t err = {0};
  options.arena_bytes = 0;
  expect_invalid(bl_client_open(&options, &client, &err), &err, "has no arena at this store yet");
  client = must_open(fixture, 0);
  options.stage = 1;
  options.arena_bytes = 512 * GRANULE;
  expect_invalid(bl_client_open(&options, &second, &err), &err, "the job has a smaller arena already");
  expect_text(&err, "it has 16.0 MiB, and 32.0 MiB were asked for");
  options.plan = 1; // has its own
  must(bl_client_open(&options, &second, &err), &err);
  bl_client_close(second);
  bl_client_close(client);
}

static void test_two_sessions_of_one_stage(void **state) {
  const fixture_t *fixture = *state;
  bl_client_t *old = must_open(fixture, 3), *new = must_open(fixture, 3);
  bl_error_t err = {0};
  WAIT_FOR(bl_client_state(old, &err) != BL_OK);
  assert_int_equal(err.status, BL_FENCED);
  expect_text(&err, "need different pairs of job and stage");
  bl_client_close(old);
  bl_client_close(new);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_memory_that_is_null, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_options, set_up, tear_down),
      cmocka_unit_test(test_heap),
      cmocka_unit_test_setup_teardown(test_reservations, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_arenas, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_two_sessions_of_one_stage, set_up, tear_down),
  };
  int failed = cmocka_run_group_tests_name("shm", tests, NULL, NULL);
  data_path = BL_CLIENT_PATH_TCP;
  return failed + cmocka_run_group_tests_name("tcp", tests, NULL, NULL);
}
