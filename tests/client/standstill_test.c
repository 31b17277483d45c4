// SPDX-License-Identifier: Apache-2.0
// Verifies what a holder finds that stood still for longer than its TTL: nothing it asks for fails because of that. The
// store refuses new uses of slots until the session is renewed; the client waits for its own renewal and asks again.
// Here only renewals stand still, so that every request comes before one. And what is left of a source that a store did
// not answer for in time, because it stood still itself: nothing.
#include "client/fixture.h"

#include "client/client_core.h"

#include <inttypes.h>

#define LIMIT_NS (UINT64_C(120) * BL_NS_PER_S)

static void hold(void *client) {
  ((bl_client_t *)client)->next_renewal_ns = UINT64_MAX;
}

static void let_go(void *client) {
  ((bl_client_t *)client)->next_renewal_ns = 0;
}

static void stop_renewals(bl_client_t *client) {
  bl_loop_thread_call(client->runtime->thread, hold, client);
}

static void go_on(bl_client_t *client) {
  bl_loop_thread_call(client->runtime->thread, let_go, client);
}

static int set_up_short_ttl(void **state) {
  store_ttl = "2"; // the least there is
  return set_up(state);
}

// Blocks go there and come back until one is refused and waits.
static void test_evictions_wait_for_the_renewal(void **state) {
  const fixture_t *fixture = *state;
  bl_client_t *client = must_open(fixture, 0);
  uint64_t slot;
  bl_error_t err = {0};
  bl_client_ticket_t ticket;
  uint8_t *buffer = fixture->buffers.base, *there = buffer + GRANULE;
  reserve(client, GRANULE, 1, &slot);
  stop_renewals(client);
  const uint64_t start_ns = bl_clock_now_ns();
  for (uint64_t i = 0;; i++) {
    fill(buffer, GRANULE, i);
    must(bl_client_evict_start(client, slot, buffer, GRANULE, NULL, &ticket, &err), &err);
    while (!bl_client_poll(client, ticket) && bl_client_counters(client).retries == 0) {
      usleep(1000);
    }
    if (bl_client_counters(client).retries > 0) {
      break;
    }
    must(bl_client_wait(client, ticket, UINT64_MAX, &err), &err);
    must(bl_client_load(client, slot, there, GRANULE, &err), &err);
    assert_true(bl_clock_now_ns() - start_ns < LIMIT_NS);
    usleep(10000);
  }
  go_on(client);
  must(bl_client_wait(client, ticket, UINT64_MAX, &err), &err);
  must(bl_client_load(client, slot, there, GRANULE, &err), &err);
  assert_memory_equal(there, buffer, GRANULE);
  bl_client_close(client);
}

static void *let_go_on(void *argument) {
  usleep(500000); // any time will do: the control call waits
  go_on(argument);
  return NULL;
}

static void test_reservations_wait_for_the_renewal(void **state) {
  const fixture_t *fixture = *state;
  bl_client_t *client = must_open(fixture, 0);
  uint64_t slot;
  bl_error_t err = {0};
  reserve(client, GRANULE, 1, &slot);
  stop_renewals(client);
  const uint64_t until_ns = bl_clock_now_ns() + UINT64_C(2500) * BL_NS_PER_MS;
  while (bl_clock_now_ns() <
         until_ns) { // longer than the TTL: the first thing that the thread finds is the control call
    usleep(10000);
  }
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, let_go_on, client), 0);
  must(bl_client_reserve(client, 2, &(bl_client_demand_t){.bytes = GRANULE, .count = 2}, 1, &err), &err);
  pthread_join(thread, NULL);
  bl_client_close(client);
}

// The store maps memory whose caller has given it up by then. What is shown next has another number: not taken for it.
static void test_a_source_that_was_given_up(void **state) {
  const fixture_t *fixture = *state;
  bl_client_options_t options = options_of(fixture, 0);
  bl_client_t *client = NULL;
  bl_error_t err = {0};
  bl_client_ticket_t ticket;
  bl_arena_t arenas[2];
  uint64_t slot;
  uint32_t number;
  options.deadline_ms = 3000;
  must(bl_client_open(&options, &client, &err), &err);
  reserve(client, GRANULE, 1, &slot);
  for (uint64_t i = 0; i < 2; i++) {
    must(bl_arena_create(bl_device_host(), NULL, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, GRANULE, &arenas[i], &err), &err);
    fill(arenas[i].base, GRANULE, i);
  }
  bl_client_region_t source = {.base = arenas[0].base, .bytes = GRANULE, .fd = arenas[0].fd};
  kill(fixture->store.pid, SIGSTOP);
  assert_int_equal(bl_client_register(client, &source, &number, &err), BL_UNAVAILABLE);
  source = (bl_client_region_t){.base = arenas[1].base, .bytes = GRANULE, .fd = arenas[1].fd};
  must(bl_client_register_start(client, &source, &number, &ticket, &err), &err);
  kill(fixture->store.pid, SIGCONT);
  must(bl_client_wait(client, ticket, UINT64_MAX, &err), &err);
  must(bl_client_evict(client, slot, arenas[1].base, GRANULE, NULL, &err), &err);
  must(bl_client_load(client, slot, fixture->buffers.base, GRANULE, &err), &err);
  assert_memory_equal(fixture->buffers.base, arenas[1].base, GRANULE);
  bl_client_close(client);
  bl_arena_destroy(&arenas[0]);
  bl_arena_destroy(&arenas[1]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up_short_ttl, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(test_evictions_wait_for_the_renewal),
      TEST(test_reservations_wait_for_the_renewal),
  };
  const struct CMUnitTest regions[] = {
      cmocka_unit_test_setup_teardown(test_a_source_that_was_given_up, set_up, tear_down)};
  int failed = cmocka_run_group_tests_name("sources", regions, NULL, NULL); // shown on shm alone
  failed += cmocka_run_group_tests_name("shm", tests, NULL, NULL);
  data_path = BL_CLIENT_PATH_TCP;
  return failed + cmocka_run_group_tests_name("tcp", tests, NULL, NULL);
}
