// SPDX-License-Identifier: Apache-2.0
// Verifies forks of a process with an open client: the child's calls fail, find nothing or do nothing, its own client
// is refused, and it ends normally; blocks of the parent that were under way or in the store come back over the same
// connection. A child that was there before its parent opened one has clients of its own, one that came after they were
// closed has none.
#include "client/fixture.h"

#include "client/runtime.h"

#define CHILDREN 4u
#define BYTES    (16 * GRANULE)

// Why the child is not content; NULL: it is. Nothing of cmocka's: that is the parent's.
#define DEMAND(condition_)                                                                                             \
  if (!(condition_)) {                                                                                                 \
    return #condition_;                                                                                                \
  }

typedef struct inherited {
  const fixture_t *fixture;
  bl_client_t *client;
  bl_client_runtime_t *runtime;
  uint64_t slots[2];
  bl_client_ticket_t ticket;
} inherited_t;

static bool is_refused(bl_status_t status, bl_error_t *err) {
  const bool refused = status == BL_PRECONDITION && err->status == status && strstr(err->text, "forked") != NULL;
  bl_error_clear(err);
  return refused;
}

static const char *use_nothing(const inherited_t *was) {
  bl_client_t *client = was->client, *own = NULL;
  bl_error_t err = {0};
  bl_client_ticket_t ticket;
  uint64_t slot;
  uint32_t number;
  uint8_t *at = was->fixture->buffers.base;
  const bl_client_demand_t demand = {.bytes = BYTES, .count = 1};
  DEMAND(is_refused(bl_client_state(client, &err), &err));
  DEMAND(is_refused(bl_client_reserve(client, 2, &demand, 1, &err), &err));
  DEMAND(is_refused(bl_client_unreserve(client, 1, &err), &err));
  DEMAND(bl_client_slots(client, &slot, 1) == 0);
  DEMAND(bl_client_slot_state(client, was->slots[0]) == BL_CLIENT_SLOT_NONE);
  DEMAND(is_refused(bl_client_evict(client, was->slots[1], at, BYTES, NULL, &err), &err));
  DEMAND(is_refused(bl_client_evict_start_known(client, was->slots[1], at, BYTES, 1, NULL, &ticket, &err), &err));
  DEMAND(is_refused(bl_client_load(client, was->slots[0], at, BYTES, &err), &err));
  DEMAND(is_refused(bl_client_release(client, was->slots[0], &err), &err));
  DEMAND(bl_client_poll(client, was->ticket));
  DEMAND(is_refused(bl_client_wait(client, was->ticket, UINT64_MAX, &err), &err));
  bl_client_cancel(client, was->ticket);
  bl_client_abandon(client, was->ticket);
  DEMAND(is_refused(bl_client_register(client, &was->fixture->source, &number, &err), &err));
  DEMAND(is_refused(bl_client_unregister(client, 0, &err), &err));
  DEMAND(!bl_client_is_draining(client));
  DEMAND(bl_client_counters(client).evicted == 0);
  DEMAND(is_refused(bl_client_reopen(client, &err), &err));
  DEMAND(is_refused(open_as(was->fixture, 9, &own, &err), &err));
  bl_client_options_t options = options_of(was->fixture, 9);
  options.runtime = was->runtime;
  DEMAND(is_refused(bl_client_open(&options, &own, &err), &err));
  bl_client_close(client);
  bl_client_runtime_wait(was->runtime);
  bl_client_runtime_destroy(was->runtime);
  return NULL;
}

static const char *do_nothing(const inherited_t *was) {
  (void)was;
  return NULL;
}

static const char *open_one(const inherited_t *was) {
  bl_client_t *client = NULL;
  bl_error_t err = {0};
  uint64_t slot;
  uint8_t *at = was->fixture->buffers.base;
  DEMAND(open_as(was->fixture, 9, &client, &err) == BL_OK);
  DEMAND(bl_client_reserve(client, 1, &(bl_client_demand_t){.bytes = BYTES, .count = 1}, 1, &err) == BL_OK);
  DEMAND(bl_client_slots(client, &slot, 1) == 1);
  DEMAND(bl_client_evict(client, slot, at, BYTES, NULL, &err) == BL_OK);
  DEMAND(bl_client_load(client, slot, at, BYTES, &err) == BL_OK);
  bl_client_close(client);
  return NULL;
}

static pid_t start_child(const char *(*child)(const inherited_t *was), const inherited_t *was) {
  fflush(NULL);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(300); // a child that waits for ever fails
    const char *why = child(was);
    if (why != NULL) {
      fprintf(stderr, "child: not so: %s\n", why);
    }
    exit(why == NULL ? 0 : 1); // normally: with everything that libraries do at an exit
  }
  return pid;
}

static void must_end_well(pid_t pid) {
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_int_equal(status, 0);
}

static void test_children_of_an_open_client(void **state) {
  const fixture_t *fixture = *state;
  bl_error_t err = {0};
  inherited_t was = {.fixture = fixture};
  must(bl_client_runtime_create(NULL, &was.runtime, &err), &err);
  bl_client_options_t options = options_of(fixture, 0);
  options.runtime = was.runtime;
  must(bl_client_open(&options, &was.client, &err), &err);
  reserve(was.client, BYTES, 2, was.slots);
  static uint8_t expected[BYTES];
  uint8_t *buffers[] = {fixture->buffers.base, fixture->buffers.base + BYTES};
  for (uint64_t round = 0; round < 5; round++) {
    fill(buffers[0], BYTES, 2 * round);
    fill(buffers[1], BYTES, 2 * round + 1);
    must(bl_client_evict(was.client, was.slots[0], buffers[0], BYTES, NULL, &err), &err);
    must(bl_client_evict_start(was.client, was.slots[1], buffers[1], BYTES, NULL, &was.ticket, &err), &err);
    pid_t pids[CHILDREN];
    for (unsigned i = 0; i < CHILDREN; i++) {
      pids[i] = start_child(i % 2 == 0 ? use_nothing : do_nothing, &was);
    }
    must(bl_client_wait(was.client, was.ticket, UINT64_MAX, &err), &err);
    for (unsigned i = 0; i < CHILDREN; i++) {
      must_end_well(pids[i]);
    }
    for (uint64_t i = 0; i < 2; i++) {
      memset(buffers[i], 0, BYTES);
      must(bl_client_load(was.client, was.slots[i], buffers[i], BYTES, &err), &err);
      fill(expected, BYTES, 2 * round + i);
      assert_memory_equal(buffers[i], expected, BYTES);
    }
  }
  assert_int_equal(bl_client_counters(was.client).reconnects, 0);
  assert_int_equal(bl_client_counters(was.client).loaded, 10);
  must(bl_client_state(was.client, &err), &err);
  bl_client_close(was.client);
  bl_client_runtime_destroy(was.runtime);
}

static const char *open_none(const inherited_t *was) {
  bl_client_t *client = NULL;
  bl_error_t err = {0};
  DEMAND(is_refused(open_as(was->fixture, 9, &client, &err), &err));
  return NULL;
}

static void test_children_before_the_first_client(void **state) {
  const inherited_t was = {.fixture = *state};
  must_end_well(start_child(open_one, &was));
}

static void test_children_of_closed_clients(void **state) {
  const inherited_t was = {.fixture = *state};
  bl_client_close(must_open(was.fixture, 0));
  must_end_well(start_child(open_none, &was));
  bl_client_close(must_open(was.fixture, 0)); // and here again
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_children_of_closed_clients, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_children_of_an_open_client, set_up, tear_down),
  };
  const struct CMUnitTest first[] = {
      cmocka_unit_test_setup_teardown(test_children_before_the_first_client, set_up, tear_down),
  };
  if (cmocka_run_group_tests_name("first", first, NULL, NULL) != 0) {
    return 1;
  }
  data_path = BL_CLIENT_PATH_SHM;
  int failed = cmocka_run_group_tests_name("shm", tests, NULL, NULL);
  data_path = BL_CLIENT_PATH_TCP;
  return failed + cmocka_run_group_tests_name("tcp", tests, NULL, NULL);
}
