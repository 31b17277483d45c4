// SPDX-License-Identifier: Apache-2.0
// Verifies blocks over NCCL with a store as a process, on fake GPUs with a fake NCCL between processes
// (tests/fake_gpu): blocks leave and come back byte for byte, in both tiers; auto takes nccl where memory is not handed
// out; peers with other versions, or none, are refused with both; a transfer that stops in the middle, at either end,
// ends within its deadline and goes on over other communicators, other sessions undisturbed; a load that is given up
// touches its memory no more; a dead store is lost with its cause; a slot whose communicator has not let go is
// nobody's; and a store whose communicator cannot be aborted ends.
#include "client/gpu_fixture.h"

#include "datapath/nccl/start.h"
#include "device/module.h"
#include "fake_gpu/nccl.h"

#include <pthread.h>

#define STUCK_EXIT 6 // datapath/nccl/start.h

static bl_nccl_engine_t *engine;

static fake_nccl_faults_t *faults(void) {
  const bl_module_info_t *module;
  bl_error_t err = {0};
  must(bl_module_open("cuda", &module, &err), &err);
  return (fake_nccl_faults_t *)(uintptr_t)bl_module_interface(module, FAKE_NCCL_INTERFACE, sizeof(fake_nccl_faults_t),
                                                              &err);
}

// The transfer of this process after `count` others stops half-way.
static void stall_after(unsigned count) {
  atomic_store(&faults()->stall, atomic_load(&faults()->transfers) + count + 1);
}

static bl_client_options_t nccl_options(const gpu_fixture_t *fixture) {
  bl_client_options_t options = gpu_options(fixture);
  options.path = BL_CLIENT_PATH_NCCL;
  options.nccl = engine;
  return options;
}

static bl_client_t *must_open_nccl(const gpu_fixture_t *fixture, uint32_t stage, uint64_t deadline_ms) {
  bl_client_options_t options = nccl_options(fixture);
  bl_client_t *client = NULL;
  bl_error_t err = {0};
  char path[BL_CLIENT_PATH_BYTES];
  options.stage = stage;
  options.deadline_ms = deadline_ms;
  options.open_ms = 60000;
  must(bl_client_open(&options, &client, &err), &err);
  assert_int_equal(bl_client_path(client, path), BL_CLIENT_PATH_NCCL);
  assert_string_equal(path, "nccl: asked for");
  return client;
}

static void start_gpu(gpu_fixture_t *fixture, const char *capacity, const char *spill) {
  start(fixture, "cuda:0", capacity, spill);
  bl_error_t err = {0};
  must(bl_nccl_start(fixture->device, false, &engine, &err), &err);
}

static void stop_gpu(gpu_fixture_t *fixture) {
  atomic_store(&faults()->stall, 0);
  assert_int_equal(atomic_load(&faults()->made), atomic_load(&faults()->aborted)); // none is left
  bl_nccl_engine_destroy(engine);
  stop(fixture);
}

static void blocks_come_and_go(void **state) {
  (void)state;
  static const char *const capacities[] = {"64 MiB", "10 MiB"}; // the second has room for three on the device
  for (int i = 0; i < 2; i++) {
    gpu_fixture_t fixture;
    start_gpu(&fixture, capacities[i], "32 MiB");
    bl_client_t *client = must_open_nccl(&fixture, 0, 60000);
    exchange_blocks(&fixture, client);
    bl_client_counters_t counters = bl_client_counters(client);
    assert_int_equal(counters.bytes_copied, 0);
    assert_int_equal(counters.reconnects, 0);
    bl_client_close(client);
    stop_gpu(&fixture);
  }
}

// Several requests under way at once, both ways, in the order of their grants.
static void blocks_cross(void **state) {
  (void)state;
  gpu_fixture_t fixture;
  bl_error_t err = {0};
  uint64_t slots[8];
  bl_client_ticket_t out[4], in[4];
  start_gpu(&fixture, "64 MiB", NULL);
  bl_client_t *client = must_open_nccl(&fixture, 0, 60000);
  reserve(client, BLOCK_BYTES, 8, slots);
  for (uint64_t i = 0; i < 4; i++) {
    write_slot(&fixture, i, i);
    must(bl_client_evict(client, slots[i], fixture.buffers.base + i * BLOCK_BYTES, BLOCK_BYTES, NULL, &err), &err);
  }
  for (uint64_t i = 0; i < 4; i++) {
    write_slot(&fixture, i, 10 + i);
    must(bl_client_evict_start(client, slots[4 + i], fixture.buffers.base + i * BLOCK_BYTES, BLOCK_BYTES, NULL, &out[i],
                               &err),
         &err);
    must(
        bl_client_load_start(client, slots[i], fixture.buffers.base + (4 + i) * BLOCK_BYTES, BLOCK_BYTES, &in[i], &err),
        &err);
  }
  for (uint64_t i = 0; i < 4; i++) {
    must(bl_client_wait(client, out[i], UINT64_MAX, &err), &err);
    must(bl_client_wait(client, in[i], UINT64_MAX, &err), &err);
    check_slot(&fixture, 4 + i, i);
  }
  must(bl_client_unregister(client, 0, &err), &err);
  assert_int_equal(bl_client_evict(client, slots[0], fixture.buffers.base, BLOCK_BYTES, NULL, &err), BL_INVALID);
  bl_client_close(client);
  stop_gpu(&fixture);
}

static void auto_and_what_is_missing(void **state) {
  (void)state;
  gpu_fixture_t fixture;
  bl_error_t err = {0};
  bl_client_t *client = NULL;
  char path[BL_CLIENT_PATH_BYTES];
  setenv("FAKE_GPU_CLOSED", "1", 1);
  start_gpu(&fixture, "64 MiB", "32 MiB");
  bl_client_options_t options = nccl_options(&fixture);
  options.path = BL_CLIENT_PATH_AUTO;
  must(bl_client_open(&options, &client, &err), &err);
  assert_int_equal(bl_client_path(client, path), BL_CLIENT_PATH_NCCL);
  assert_string_equal(path, "nccl: this process: this fake GPU keeps its memory");
  exchange_blocks(&fixture, client);
  bl_client_close(client);
  options.nccl = NULL; // this process has none
  assert_int_equal(bl_client_open(&options, &client, &err), BL_UNIMPLEMENTED);
  options.path = BL_CLIENT_PATH_NCCL;
  assert_int_equal(bl_client_open(&options, &client, &err), BL_PRECONDITION);
  assert_string_equal(err.text, "nccl was asked for: this process has no NCCL");
  stop_gpu(&fixture);
  unsetenv("FAKE_GPU_CLOSED");
  start_gpu(&fixture, "64 MiB", "32 MiB"); // on one machine, where it is handed out
  options = nccl_options(&fixture);
  options.path = BL_CLIENT_PATH_AUTO;
  must(bl_client_open(&options, &client, &err), &err);
  assert_int_equal(bl_client_path(client, path), BL_CLIENT_PATH_CUDA_IPC);
  bl_client_close(client);
  stop_gpu(&fixture);
}

static void other_versions(void **state) {
  (void)state;
  gpu_fixture_t fixture;
  bl_error_t err = {0};
  bl_client_t *client = NULL;
  setenv("FAKE_NCCL_VERSION", "22705", 1);
  start(&fixture, "cuda:0", "64 MiB", "32 MiB");
  unsetenv("FAKE_NCCL_VERSION");
  must(bl_nccl_start(fixture.device, false, &engine, &err), &err);
  bl_client_options_t options = nccl_options(&fixture);
  assert_int_equal(bl_client_open(&options, &client, &err), BL_PRECONDITION);
  assert_string_equal(err.text,
                      "nccl was asked for: this process has NCCL 2.28.9 and the store has NCCL 2.27.5: install "
                      "one version on both");
  stop_gpu(&fixture);
}

// What stops in the middle at this end, at the other one, or fails at once, goes on over other communicators.
static void transfers_that_stop(void **state) {
  (void)state;
  for (int fault = 0; fault < 4; fault++) {
    gpu_fixture_t fixture;
    bl_error_t err = {0};
    uint64_t slots[2], others[1];
    if (fault >= 2) {
      setenv("FAKE_NCCL_STALL", fault == 2 ? "1" : "2", 1); // its first receive, its first send
    }
    start_gpu(&fixture, "64 MiB", NULL);
    unsetenv("FAKE_NCCL_STALL");
    atomic_store(&faults()->stall, 0);
    bl_client_t *client = must_open_nccl(&fixture, 0, 12000), *other = must_open_nccl(&fixture, 1, 60000);
    reserve(client, BLOCK_BYTES, 2, slots);
    reserve(other, BLOCK_BYTES, 1, others);
    write_slot(&fixture, 0, 7);
    write_slot(&fixture, 2, 8);
    if (fault < 2) {
      stall_after(fault == 0 ? 0 : 1);
    }
    bl_client_ticket_t ticket;
    must(bl_client_evict_start(client, slots[0], fixture.buffers.base, BLOCK_BYTES, NULL, &ticket, &err), &err);
    if (fault == 0 || fault == 2) { // the other session goes on meanwhile
      WAIT_FOR(fault != 0 || atomic_load(&faults()->transfers) >= atomic_load(&faults()->stall));
      for (int i = 0; i < 3 && fault == 0; i++) {
        must(bl_client_evict(other, others[0], fixture.buffers.base + 2 * BLOCK_BYTES, BLOCK_BYTES, NULL, &err), &err);
        must(bl_client_load(other, others[0], fixture.buffers.base + 3 * BLOCK_BYTES, BLOCK_BYTES, &err), &err);
        check_slot(&fixture, 3, 8);
      }
    }
    must(bl_client_wait(client, ticket, UINT64_MAX, &err), &err);
    must(bl_client_load(client, slots[0], fixture.buffers.base + BLOCK_BYTES, BLOCK_BYTES, &err), &err);
    check_slot(&fixture, 1, 7);
    assert_true(bl_client_counters(client).reconnects >= 1);
    assert_int_equal(bl_client_counters(other).reconnects, 0);
    bl_client_close(client);
    bl_client_close(other);
    stop_gpu(&fixture);
  }
}

static void a_load_is_given_up(void **state) {
  (void)state;
  gpu_fixture_t fixture;
  bl_error_t err = {0};
  uint64_t slots[1];
  setenv("FAKE_NCCL_STALL", "2", 1); // the store's first send
  start_gpu(&fixture, "64 MiB", NULL);
  unsetenv("FAKE_NCCL_STALL");
  atomic_store(&faults()->stall, 0);
  bl_client_t *client = must_open_nccl(&fixture, 0, 60000);
  reserve(client, BLOCK_BYTES, 1, slots);
  write_slot(&fixture, 0, 7);
  must(bl_client_evict(client, slots[0], fixture.buffers.base, BLOCK_BYTES, NULL, &err), &err);
  unsigned before = atomic_load(&faults()->transfers);
  bl_client_ticket_t ticket;
  must(bl_client_load_start(client, slots[0], fixture.buffers.base + BLOCK_BYTES, BLOCK_BYTES, &ticket, &err), &err);
  WAIT_FOR(atomic_load(&faults()->transfers) != before);
  bl_client_cancel(client, ticket);
  assert_int_equal(bl_client_wait(client, ticket, UINT64_MAX, &err), BL_CANCELLED);
  write_slot(&fixture, 1, 9); // nothing touches it any more
  // The block is still there, and comes over other communicators.
  WAIT_FOR(bl_client_slot_state(client, slots[0]) == BL_CLIENT_SLOT_FULL);
  must(bl_client_load(client, slots[0], fixture.buffers.base, BLOCK_BYTES, &err), &err);
  check_slot(&fixture, 0, 7);
  check_slot(&fixture, 1, 9); // what was written after it was given up
  bl_client_close(client);
  stop_gpu(&fixture);
}

static void a_store_that_dies(void **state) {
  (void)state;
  for (int middle = 0; middle < 2; middle++) {
    gpu_fixture_t fixture;
    bl_error_t err = {0};
    uint64_t slots[2];
    start_gpu(&fixture, "64 MiB", NULL);
    atomic_store(&faults()->stall, 0);
    bl_client_t *client = must_open_nccl(&fixture, 0, 60000);
    reserve(client, BLOCK_BYTES, 2, slots);
    write_slot(&fixture, 0, 5);
    must(bl_client_evict(client, slots[0], fixture.buffers.base, BLOCK_BYTES, NULL, &err), &err);
    bl_client_ticket_t ticket;
    unsigned before = atomic_load(&faults()->transfers);
    if (middle == 1) {
      stall_after(0);
      must(bl_client_evict_start(client, slots[1], fixture.buffers.base, BLOCK_BYTES, NULL, &ticket, &err), &err);
      WAIT_FOR(atomic_load(&faults()->transfers) != before);
    }
    store_kill(&fixture.store, SIGKILL);
    bl_status_t status = middle == 1 ? bl_client_wait(client, ticket, UINT64_MAX, &err)
                                     : bl_client_evict(client, slots[1], fixture.buffers.base, BLOCK_BYTES, NULL, &err);
    assert_int_equal(status, BL_UNAVAILABLE);
    assert_non_null(strstr(err.text, "is gone: what it held is lost"));
    begin_anew(&fixture, client, 5);
    bl_client_close(client);
    stop_gpu(&fixture);
  }
}

static void *open_client(void *argument) {
  gpu_fixture_t *fixture = argument;
  bl_client_options_t options = nccl_options(fixture);
  bl_client_t *client = NULL;
  bl_error_t *err = calloc(1, sizeof *err);
  options.open_ms = 300000;
  assert_int_equal(bl_client_open(&options, &client, err), BL_UNAVAILABLE);
  return err;
}

// Long before the time for communicators is over.
static void a_store_that_dies_while_communicators_are_made(void **state) {
  (void)state;
  gpu_fixture_t fixture;
  pthread_t opening;
  void *result;
  struct timespec begin, end;
  start_gpu(&fixture, "64 MiB", NULL);
  atomic_store(&faults()->never_made, true);
  const unsigned before = atomic_load(&faults()->made);
  assert_int_equal(pthread_create(&opening, NULL, open_client, &fixture), 0);
  WAIT_FOR(atomic_load(&faults()->made) == before + 2);
  store_kill(&fixture.store, SIGKILL);
  clock_gettime(CLOCK_MONOTONIC, &begin);
  pthread_join(opening, &result);
  clock_gettime(CLOCK_MONOTONIC, &end);
  atomic_store(&faults()->never_made, false);
  assert_non_null(strstr(((bl_error_t *)result)->text, "the other side closed the connection"));
  assert_true(end.tv_sec - begin.tv_sec < 60);
  free(result);
  stop_gpu(&fixture);
}

// A silent store: the call ends by its deadline, and says so.
static void a_store_that_stands_still(void **state) {
  (void)state;
  gpu_fixture_t fixture;
  bl_error_t err = {0};
  uint64_t slots[1];
  start_gpu(&fixture, "64 MiB", NULL);
  bl_client_t *client = must_open_nccl(&fixture, 0, 5000);
  reserve(client, BLOCK_BYTES, 1, slots);
  kill(fixture.store.pid, SIGSTOP);
  assert_int_equal(bl_client_evict(client, slots[0], fixture.buffers.base, BLOCK_BYTES, NULL, &err), BL_UNAVAILABLE);
  assert_non_null(strstr(err.text, "did not answer in time"));
  kill(fixture.store.pid, SIGCONT);
  bl_client_close(client);
  stop_gpu(&fixture);
}

// As "holder ADDRESS STAGE": begins an eviction that stops in the middle, says so, and waits to be killed.
static int hold(const char *address) {
  gpu_fixture_t fixture = {.device = NULL};
  bl_error_t err = {0};
  bl_client_t *client = NULL;
  uint64_t slots[8];
  bl_client_ticket_t ticket;
  setenv("FAKE_NCCL_STALL", "1", 1);
  bl_status_t status = holder_start(&fixture, address, &err);
  if (status == BL_OK) {
    status = bl_nccl_start(fixture.device, false, &engine, &err);
  }
  bl_client_options_t options = nccl_options(&fixture);
  options.stage = 7;
  options.deadline_ms = options.open_ms = 600000;
  if (status == BL_OK) {
    status = holder_take_all(&options, &client, slots, &err);
  }
  if (status == BL_OK) {
    status = bl_client_evict_start(client, slots[0], fixture.buffers.base, BLOCK_BYTES, NULL, &ticket, &err);
  }
  while (status == BL_OK && atomic_load(&faults()->transfers) == 0) {
    usleep(1000);
  }
  return holder_stay(status, &err);
}

// A holder that dies in the middle of a send: its heir gets its slots, all but the one under way at once, and that one
// when NCCL has let go of it. When it never does, the store ends.
static void holders_that_die(void **state) {
  (void)state;
  gpu_fixture_t fixture;
  bl_error_t err = {0};
  char held[64];
  snprintf(held, sizeof held, "/tmp/ballast-held-%ld", (long)getpid());
  (void)unlink(held);
  setenv("FAKE_NCCL_HELD", held, 1);
  start_gpu(&fixture, "64 MiB", NULL);
  unsetenv("FAKE_NCCL_HELD");
  fixture_t as_fixture = {.store = fixture.store};
  bl_client_demand_t all = {.bytes = BLOCK_BYTES, .count = 8}, seven = {.bytes = BLOCK_BYTES, .count = 7};
  for (int holds = 0; holds < 2; holds++) {
    int to, from;
    pid_t pid = start_self(&as_fixture, "holder", 7, &to, &from);
    if (holds == 1) {
      close(open(held, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    close(to);
    close(from);
    bl_client_t *heir = must_open_nccl(&fixture, 7, 60000);
    if (holds == 1) {
      must(bl_client_reserve(heir, 1, &seven, 1, &err), &err);
      assert_int_not_equal(bl_client_reserve(heir, 2, &all, 1, &err), BL_OK);
      assert_int_equal(store_wait(&fixture.store), STUCK_EXIT);
    } else {
      WAIT_FOR(bl_client_reserve(heir, 1, &all, 1, &err) == BL_OK);
    }
    bl_client_close(heir);
  }
  (void)unlink(held);
  stop_gpu(&fixture);
}

int main(int argc, char **argv) {
  setenv("BALLAST_MODULES", BALLAST_BINARY_DIR "/tests/fake_gpu", 1);
  if (argc > 2 && strcmp(argv[1], "holder") == 0) {
    return hold(argv[2]);
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(blocks_come_and_go),        cmocka_unit_test(blocks_cross),
      cmocka_unit_test(auto_and_what_is_missing),  cmocka_unit_test(other_versions),
      cmocka_unit_test(transfers_that_stop),       cmocka_unit_test(a_load_is_given_up),
      cmocka_unit_test(a_store_that_dies),         cmocka_unit_test(a_store_that_dies_while_communicators_are_made),
      cmocka_unit_test(a_store_that_stands_still), cmocka_unit_test(holders_that_die),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
