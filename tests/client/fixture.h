// SPDX-License-Identifier: Apache-2.0
// What the tests of the client start from: a store as a process, an arena of slots, clients of one job.
#ifndef TESTS_CLIENT_FIXTURE_H
#define TESTS_CLIENT_FIXTURE_H

#include "client/store_process.h"

#include "base/random.h"
#include "client/arena_region.h"
#include "sys/clock.h"

#define GRANULE     (UINT64_C(64) << 10)
#define STORE_SLOTS 8

// With a machine that is slow; what is promised is within 2.5 s.
#define TIMEOUT_NS (300 * BL_NS_PER_S)
#define CALL_MS    UINT64_C(120000) // of a call: it ends early where its outcome is known

#define WAIT_FOR(condition_)                                                                                           \
  for (uint64_t until_ns_ = bl_clock_now_ns() + TIMEOUT_NS; !(condition_); usleep(1000)) {                             \
    if (bl_clock_now_ns() > until_ns_) {                                                                               \
      fail_msg("not within five minutes: %s", #condition_);                                                            \
    }                                                                                                                  \
  }

static const char *store_ttl = "60", *store_grace = "60"; // seconds: for tests that are about neither

static bl_client_path_t data_path = BL_CLIENT_PATH_AUTO; // every test runs on each

typedef struct fixture {
  store_process_t store;
  bl_arena_t buffers;
  bl_client_region_t source; // which they are
} fixture_t;

static inline int set_up(void **state) {
  static fixture_t fixture;
  fixture = (fixture_t){.store = {0}};
  bl_error_t err = {0};
  if (bl_arena_create(bl_device_host(), NULL, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, UINT64_C(16) * STORE_SLOTS * GRANULE,
                      &fixture.buffers, &err) != BL_OK) {
    return -1;
  }
  fixture.source = bl_client_region_of(&fixture.buffers);
  store_start(&fixture.store, "64 MiB", store_ttl, store_grace);
  *state = &fixture;
  return 0;
}

static inline int tear_down(void **state) {
  fixture_t *fixture = *state;
  store_cleanup(&fixture->store);
  bl_arena_destroy(&fixture->buffers);
  return 0;
}

static inline bl_client_options_t options_of(const fixture_t *fixture, uint32_t stage) {
  return (bl_client_options_t){.size = sizeof(bl_client_options_t),
                               .store = fixture->store.address,
                               .job = "job",
                               .stage = stage,
                               .arena_bytes = 256 * GRANULE,
                               .regions = &fixture->source,
                               .region_count = 1,
                               .path = data_path,
                               .deadline_ms = CALL_MS};
}

static inline bl_status_t open_as(const fixture_t *fixture, uint32_t stage, bl_client_t **client, bl_error_t *err) {
  bl_client_options_t options = options_of(fixture, stage);
  return bl_client_open(&options, client, err);
}

static inline void must(bl_status_t status, const bl_error_t *err) {
  if (status != BL_OK) {
    fail_msg("%s: %s", bl_status_name(status), err->text);
  }
}

static inline bl_client_t *must_open(const fixture_t *fixture, uint32_t stage) {
  bl_client_t *client = NULL;
  bl_error_t err = {0};
  if (open_as(fixture, stage, &client, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  return client;
}

static inline void reserve(bl_client_t *client, uint64_t bytes, uint32_t count, uint64_t *slots) {
  bl_error_t err = {0};
  must(bl_client_reserve(client, 1, &(bl_client_demand_t){.bytes = bytes, .count = count}, 1, &err), &err);
  assert_int_equal(bl_client_slots(client, slots, count), count);
}

static inline void fill(uint8_t *bytes, uint64_t count, uint64_t seed) {
  for (uint64_t i = 0; i < count; i += 8) {
    uint64_t word = bl_random_bits(seed, i / 8);
    memcpy(bytes + i, &word, count - i < 8 ? count - i : 8);
  }
}

// This program as "COMMAND ADDRESS STAGE PATH", with pipes at its standard input and output; it says 'y' when it is
// ready. A program of its own, because gRPC does not live through a fork.
static inline pid_t start_self(const fixture_t *fixture, const char *command, uint32_t stage, int *to, int *from) {
  int ask[2], tell[2];
  char number[12], path_number[12];
  char *arguments[] = {(char *)(uintptr_t)command,
                       (char *)(uintptr_t)command,
                       (char *)(uintptr_t)fixture->store.address,
                       number,
                       path_number,
                       NULL};
  snprintf(path_number, sizeof path_number, "%d", (int)data_path);
  snprintf(number, sizeof number, "%u", (unsigned)stage);
  assert_int_equal(pipe2(ask, O_CLOEXEC), 0);
  assert_int_equal(pipe2(tell, O_CLOEXEC), 0);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(ask[0], STDIN_FILENO);
    dup2(tell[1], STDOUT_FILENO);
    execv("/proc/self/exe", arguments);
    _exit(127);
  }
  close(ask[0]);
  close(tell[1]);
  *to = ask[1];
  *from = tell[0];
  char byte = 0;
  assert_int_equal(read(tell[0], &byte, 1), 1);
  assert_int_equal(byte, 'y');
  return pid;
}

#endif
