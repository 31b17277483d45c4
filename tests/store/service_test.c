// SPDX-License-Identifier: Apache-2.0
// Verifies the calls of ballast.v1.Store one by one: what is refused with which status and changes nothing, requests
// asked twice, and what operators see: list, get, watch without gaps, revoke, drain, quota, counters. And that a store
// without descriptors rests.
#include "loop/timer.h"
#include "rpc/server.h"
#include "service_wire.h"
#include "store/raw_wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define GRANULE (UINT64_C(64) << 10)

typedef struct fixture {
  bl_loop_t *loop;
  bl_rpc_t *rpc;
  bl_service_t *service;
  bl_rpc_server_t *server;
  raw_store_t raw;
  char folder[64], data[128];
} fixture_t;

static int set_up(void **state) {
  static fixture_t fixture;
  fixture_t *self = &fixture;
  *self = (fixture_t){.loop = NULL};
  bl_error_t err = {0};
  char address[BL_RPC_ADDRESS_BYTES];
  strcpy(self->folder, "/tmp/ballast-service-XXXXXX");
  if (mkdtemp(self->folder) == NULL) {
    return -1;
  }
  snprintf(self->data, sizeof self->data, "unix:%.64s/data", self->folder);
  bl_store_options_t options = {.leases = {.capacity_bytes = 64 * GRANULE,
                                           .max_jobs = 4,
                                           .max_sessions = 8,
                                           .max_leases = 128,
                                           .history = 32,
                                           .window = 8},
                                .data_address = self->data};
  bl_status_t status = bl_loop_create(&self->loop, &err);
  if (status == BL_OK) {
    status = bl_rpc_create(self->loop, &self->rpc, &err);
  }
  if (status == BL_OK) {
    status = bl_service_create(self->loop, &options, &self->service, &err);
  }
  if (status == BL_OK) {
    status = bl_rpc_server_create(self->rpc, NULL, &self->server, &err);
  }
  if (status == BL_OK) {
    status = bl_service_serve(self->service, self->server, &err);
  }
  if (status == BL_OK) {
    status = bl_rpc_server_listen(self->server, "127.0.0.1:0", address, sizeof address, &err);
  }
  if (status == BL_OK) {
    status = bl_rpc_server_start(self->server, &err);
  }
  self->raw.loop = self->loop;
  if (status == BL_OK) {
    status = bl_rpc_channel_create(self->rpc, address, NULL, &self->raw.channel, &err);
  }
  *state = self;
  if (status != BL_OK) {
    print_error("%s\n", err.text);
  }
  return status == BL_OK ? 0 : -1;
}

static void stopped(bl_rpc_server_t *server, void *context) {
  (void)server;
  bl_loop_stop(((fixture_t *)context)->loop);
}

static int tear_down(void **state) {
  fixture_t *self = *state;
  bl_rpc_channel_destroy(self->raw.channel);
  bl_service_end_calls(self->service);
  bl_rpc_server_shutdown(self->server, 1000, stopped, self);
  bl_loop_run(self->loop);
  bl_rpc_server_destroy(self->server);
  bl_service_destroy(self->service);
  bl_rpc_destroy(self->rpc);
  bl_loop_destroy(self->loop);
  return rmdir(self->folder); // nothing is left in it
}

// A session of a job; fills what later requests carry.
static raw_input_t open_session(fixture_t *self, const char *job, uint32_t stage, uint64_t arena_bytes) {
  raw_input_t input = {.job = job, .stage = stage, .arena_bytes = arena_bytes};
  raw_output_t output;
  input.id_bytes[0] = (uint8_t)(1 + stage);
  input.id_bytes[1] = (uint8_t)job[0];
  assert_int_equal(raw_call(&self->raw, RAW_OPEN, &input, &output), BL_OK);
  input.session = output.session;
  memcpy(input.key, output.key, RAW_ID);
  memcpy(input.incarnation, output.incarnation, RAW_ID);
  return input;
}

// The next request of a session.
static bl_status_t ask(fixture_t *self, raw_call_kind_t kind, raw_input_t *input, raw_output_t *output) {
  input->acknowledged = input->sequence;
  input->sequence++;
  return raw_call(&self->raw, kind, input, output);
}

static uint64_t count(fixture_t *self, const char *name) {
  raw_output_t status;
  assert_int_equal(raw_call(&self->raw, RAW_STATUS, &(raw_input_t){0}, &status), BL_OK);
  return raw_count(&status, name);
}

// Whether a message has the words of the reason of this name.
static bool says(const char *message, const char *name) {
  int reason = 0;
  while (strcmp(bl_lease_reason_name((bl_lease_reason_t)reason), name) != 0) {
    reason++;
  }
  return strstr(message, bl_lease_reason_text((bl_lease_reason_t)reason)) != NULL;
}

static void test_bad_requests(void **state) {
  fixture_t *self = *state;
  raw_output_t output;
  raw_input_t bad = {.job = "", .arena_bytes = GRANULE};
  assert_int_equal(raw_call(&self->raw, RAW_OPEN, &bad, &output), BL_INVALID);
  bad = (raw_input_t){.job = "a", .arena_bytes = 65 * GRANULE};
  assert_int_equal(raw_call(&self->raw, RAW_OPEN, &bad, &output), BL_EXHAUSTED);
  assert_non_null(strstr(self->raw.err.text, "free 4.00 MiB"));
  bad = (raw_input_t){.job = "a", .arena_bytes = GRANULE, .other_version = true};
  assert_int_equal(raw_call(&self->raw, RAW_OPEN, &bad, &output), BL_PRECONDITION);
  assert_non_null(strstr(self->raw.err.text, "use programs of one release"));
  bad = (raw_input_t){.job = "a", .arena_bytes = GRANULE, .data_path = "pigeon"};
  assert_int_equal(raw_call(&self->raw, RAW_OPEN, &bad, &output), BL_INVALID);
  assert_non_null(strstr(self->raw.err.text, "no data path \"pigeon\""));
  raw_input_t a = open_session(self, "a", 0, 16 * GRANULE), b = open_session(self, "b", 0, 16 * GRANULE);
  a.plan = b.plan = 1;
  a.count = b.count = 2;
  a.bytes = b.bytes = GRANULE + 1; // slots of 2 granules
  assert_int_equal(ask(self, RAW_RESERVE, &a, &output), BL_OK);
  assert_int_equal(output.count, 2);
  assert_int_equal(output.items[0].bytes, 2 * GRANULE);
  a.id = b.id = output.items[0].id;
  a.generation = b.generation = output.items[0].generation;
  // Each row: what is wrong, and the status it gets.
  struct {
    raw_call_kind_t kind;
    raw_input_t input;
    bl_status_t status;
    const char *counter;
  } rows[] = {
      {RAW_EVICT, a, BL_INVALID, "bytes"},         {RAW_EVICT, a, BL_INVALID, "bytes"},
      {RAW_EVICT, a, BL_FENCED, "incarnation"},    {RAW_EVICT, a, BL_NOT_FOUND, "no_lease"},
      {RAW_EVICT, a, BL_NOT_FOUND, "no_session"},  {RAW_EVICT, a, BL_DENIED, "key"},
      {RAW_LOAD, a, BL_PRECONDITION, "state"},     {RAW_RELEASE, a, BL_PRECONDITION, "state"},
      {RAW_EVICT, b, BL_DENIED, "not_yours"},      {RAW_EVICT, a, BL_IO, "transfer"},
      {RAW_RESERVE, a, BL_INVALID, "beyond"},      {RAW_RESERVE, a, BL_PRECONDITION, "plan"},
      {RAW_UNRESERVE, a, BL_PRECONDITION, "plan"}, {RAW_RESERVE, a, BL_INVALID, "bytes"},
      {RAW_RESERVE, a, BL_INVALID, "bad_request"}, {RAW_OPEN, a, BL_INVALID, "arena"},
      {RAW_OPEN, a, BL_INVALID, "no_size"},
  };
  rows[0].input.bytes = 0;
  rows[1].input.bytes = 2 * GRANULE + 1;
  rows[2].input.incarnation[5] ^= 1;
  rows[3].input.id = 1000;
  rows[4].input.session += UINT64_C(7) << 32;
  rows[5].input.key[15] ^= 1;
  rows[10].input.bytes = 17 * GRANULE;
  rows[11].input.count = 3;
  rows[12].input.plan = 9;
  rows[13].input.count = 0;
  rows[14].input.plan = 0;
  rows[15].input.arena_bytes = 17 * GRANULE;
  rows[15].input.id_bytes[0] = rows[16].input.id_bytes[0] = 77; // another holder
  rows[16].input.arena_bytes = 0;
  rows[16].input.job = "new";
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    uint64_t before = count(self, rows[i].counter);
    raw_input_t *session = rows[i].input.session == b.session ? &b : &a;
    rows[i].input.acknowledged = session->sequence;
    rows[i].input.sequence = ++session->sequence;
    bl_status_t status = raw_call(&self->raw, rows[i].kind, &rows[i].input, &output);
    if (status != rows[i].status) {
      fail_msg("row %zu: %s (%s), expected %s", i, bl_status_name(status), self->raw.err.text,
               bl_status_name(rows[i].status));
    }
    if (rows[i].status != BL_IO && !says(self->raw.err.text, rows[i].counter)) { // that names what is missing
      fail_msg("row %zu: '%s' does not give the reason %s", i, self->raw.err.text, rows[i].counter);
    }
    assert_int_equal(count(self, rows[i].counter), before + 1); // exactly its counter
  }
  // The evict without a data path used up a generation: the token of before is stale now.
  assert_int_equal(ask(self, RAW_EVICT, &a, &output), BL_FENCED);
  a.generation++;
  assert_int_equal(ask(self, RAW_EVICT, &a, &output), BL_IO); // the slot is there
  a.no_header = true;
  assert_int_equal(raw_call(&self->raw, RAW_LOAD, &a, &output), BL_INVALID);
  a.no_header = false;
  a.key_length = 3;
  assert_int_equal(raw_call(&self->raw, RAW_KEEP_ALIVE, &a, &output), BL_INVALID);
  raw_output_t status;
  assert_int_equal(raw_call(&self->raw, RAW_STATUS, &a, &status), BL_OK);
  assert_int_equal(status.held_bytes, 4 * GRANULE);
}

static void test_asked_twice(void **state) {
  fixture_t *self = *state;
  raw_output_t first, again;
  raw_input_t a = open_session(self, "a", 0, 16 * GRANULE);
  raw_input_t same = open_session(self, "a", 0, 0);
  assert_int_equal(a.session, same.session);
  a.plan = 1;
  a.count = 3;
  a.bytes = GRANULE;
  assert_int_equal(ask(self, RAW_RESERVE, &a, &first), BL_OK);
  assert_int_equal(raw_call(&self->raw, RAW_RESERVE, &a, &again), BL_OK); // the same number
  assert_int_equal(again.count, 3);
  assert_int_equal(count(self, "reserved"), 3);
  raw_input_t other = a;
  other.count = 4;
  assert_int_equal(raw_call(&self->raw, RAW_RESERVE, &other, &again), BL_PRECONDITION); // for another request
  assert_int_equal(ask(self, RAW_UNRESERVE, &a, &again), BL_OK);
  assert_int_equal(again.count, 0);
  assert_int_equal(raw_call(&self->raw, RAW_UNRESERVE, &a, &again), BL_OK);
  other = a;
  other.sequence -= 1;
  other.acknowledged = 0;
  assert_int_equal(raw_call(&self->raw, RAW_RESERVE, &other, &again), BL_PRECONDITION); // acknowledged: dead
  other = a;
  other.sequence += 8;
  other.acknowledged = 0;
  assert_int_equal(raw_call(&self->raw, RAW_UNRESERVE, &other, &again), BL_EXHAUSTED); // beyond the window
  assert_int_equal(raw_call(&self->raw, RAW_CLOSE, &a, NULL), BL_OK);
  assert_int_equal(raw_call(&self->raw, RAW_KEEP_ALIVE, &a, NULL), BL_FENCED);
  raw_output_t status;
  assert_int_equal(raw_call(&self->raw, RAW_STATUS, &a, &status), BL_OK);
  assert_int_equal(status.arena_bytes, 0); // the arena went with its last session
}

static void test_operators(void **state) {
  fixture_t *self = *state;
  raw_output_t output;
  raw_input_t a = open_session(self, "a", 0, 16 * GRANULE);
  a.plan = 1;
  a.count = 5;
  a.bytes = GRANULE;
  raw_input_t quota = {.job = "a", .bytes = 4 * GRANULE};
  assert_int_equal(raw_call(&self->raw, RAW_QUOTA, &quota, NULL), BL_OK);
  assert_int_equal(ask(self, RAW_RESERVE, &a, &output), BL_EXHAUSTED);
  assert_non_null(strstr(self->raw.err.text, "quota of the job"));
  quota.bytes = 5 * GRANULE;
  assert_int_equal(raw_call(&self->raw, RAW_QUOTA, &quota, NULL), BL_OK);
  assert_int_equal(ask(self, RAW_RESERVE, &a, &output), BL_OK);

  raw_input_t page = {.job = "a", .state = "reserved", .limit = 2}; // page by page
  size_t seen = 0;
  do {
    assert_int_equal(raw_call(&self->raw, RAW_LIST, &page, &output), BL_OK);
    seen += output.count;
    page.after = output.next;
  } while (output.next != 0);
  assert_int_equal(seen, 5);
  page = (raw_input_t){.job = "b"};
  assert_int_equal(raw_call(&self->raw, RAW_LIST, &page, &output), BL_OK);
  assert_int_equal(output.count, 0);
  uint64_t revision = output.revision;

  raw_input_t one = {.id = 2};
  assert_int_equal(raw_call(&self->raw, RAW_GET, &one, &output), BL_OK);
  assert_string_equal(output.items[0].name, "reserved");
  one.id = 77;
  assert_int_equal(raw_call(&self->raw, RAW_GET, &one, &output), BL_NOT_FOUND);
  assert_int_equal(raw_call(&self->raw, RAW_REVOKE, &one, NULL), BL_NOT_FOUND);
  one.id = 2;
  assert_int_equal(raw_call(&self->raw, RAW_REVOKE, &one, NULL), BL_OK);
  a.id = 2;
  a.generation = 1;
  assert_int_equal(ask(self, RAW_EVICT, &a, &output), BL_DATA_LOSS); // revoked, and says so

  assert_int_equal(raw_call(&self->raw, RAW_DRAIN, &one, &output), BL_OK);
  assert_false(output.drained);
  assert_int_equal(ask(self, RAW_UNRESERVE, &a, &output), BL_OK);
  assert_int_equal(raw_call(&self->raw, RAW_DRAIN, &one, &output), BL_OK);
  assert_true(output.drained);
  one.undrain = true;
  assert_int_equal(raw_call(&self->raw, RAW_DRAIN, &one, &output), BL_OK);

  // What happened since the list, without gaps: one lost, the store draining, four free, the store serving.
  assert_int_equal(raw_watch(&self->raw, revision + 1, 7, &output), BL_CANCELLED);
  assert_int_equal(output.count, 7);
  for (size_t i = 0; i < 7; i++) {
    assert_int_equal(output.items[i].revision, revision + 1 + i);
  }
  assert_string_equal(output.items[0].to, "lost");
  assert_string_equal(output.items[1].to, "draining");
  assert_string_equal(output.items[5].to, "free");
  assert_string_equal(output.items[6].to, "serving");
  for (int i = 0; i < 20; i++) { // more than history keeps
    assert_int_equal(ask(self, RAW_RESERVE, &a, &output), BL_OK);
    assert_int_equal(ask(self, RAW_UNRESERVE, &a, &output), BL_OK);
  }
  assert_int_equal(raw_watch(&self->raw, revision + 1, 1000, &output), BL_OK);
  assert_int_equal(output.count, 0);
  assert_true(output.compacted > revision + 1);
  assert_int_equal(raw_watch(&self->raw, output.compacted + 1000, 1, &output), BL_INVALID); // the future
}

static bool ends(bool draining, void *context) {
  (void)context;
  return draining;
}

// An operator cannot make a store that is ending lend again.
static void test_an_end_is_not_undone(void **state) {
  fixture_t *self = *state;
  raw_output_t output;
  const raw_input_t drain = {0}, undrain = {.undrain = true};
  bl_service_set_on_drain(self->service, ends, NULL);
  assert_int_equal(raw_call(&self->raw, RAW_DRAIN, &drain, &output), BL_OK);
  assert_int_equal(raw_call(&self->raw, RAW_DRAIN, &undrain, &output), BL_PRECONDITION);
  assert_non_null(strstr(self->raw.err.text, "ending"));
  assert_true(bl_lease_table_is_draining(bl_store_table(bl_service_store(self->service))));
}

static void stop_loop(bl_timer_t *timer, void *loop) {
  (void)timer;
  bl_loop_stop(loop);
}

// Runs the loop for a while. Returns the time that its thread took of a processor.
static double run_loop(const fixture_t *self, uint64_t ms) {
  struct timespec from, to;
  bl_timer_t *timer;
  assert_int_equal(bl_timer_create(self->loop, stop_loop, self->loop, &timer, NULL), BL_OK);
  bl_timer_start(timer, ms, 0);
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
  bl_loop_run(self->loop);
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
  bl_timer_destroy(timer);
  return (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9;
}

// A connection that comes meanwhile is served later.
static void test_no_descriptors_left(void **state) {
  const fixture_t *self = *state;
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  struct rlimit limit;
  snprintf(at.sun_path, sizeof at.sun_path, "%s", self->data + strlen("unix:"));
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), next = dup(fd);
  close(next);
  assert_int_equal(connect(fd, (const struct sockaddr *)&at, sizeof at), 0);
  assert_int_equal(write(fd, "this is no frame of this protocol", 33), 33);
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)next, limit.rlim_max}), 0);
  const double taken = run_loop(self, 400);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
  if (taken > 0.1) {
    fail_msg("%.3f s of a processor", taken);
  }
  char byte;
  ssize_t got;
  while ((got = recv(fd, &byte, 1, MSG_DONTWAIT)) < 0 && errno == EAGAIN) {
    (void)run_loop(self, 10);
  }
  assert_true(got == 0 || errno == ECONNRESET); // hung up, because that was no frame
  close(fd);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_bad_requests, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_asked_twice, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_operators, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_an_end_is_not_undone, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_no_descriptors_left, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
