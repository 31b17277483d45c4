// SPDX-License-Identifier: Apache-2.0
// Verifies cuda-ipc over a fake GPU (tests/fake_gpu), whose memory no CPU can touch, with a store as a process: blocks
// go from device to device and come back, in both tiers of the store's memory; the checksum is kept as it was given; a
// store that dies is noticed; what a holder that stopped may still read is nobody's until its process is gone; and
// holders that cannot reach the GPU are served from the second tier, or refused with the reason.
#include "client/gpu_fixture.h"

static bl_client_t *must_open_gpu(const gpu_fixture_t *fixture) {
  bl_client_options_t options = gpu_options(fixture);
  bl_client_t *client = NULL;
  bl_error_t err = {0};
  char path[BL_CLIENT_PATH_BYTES];
  must(bl_client_open(&options, &client, &err), &err);
  assert_int_equal(bl_client_path(client, path), BL_CLIENT_PATH_CUDA_IPC);
  assert_string_equal(path, getenv("FAKE_GPU_LEGACY") == NULL ? "cuda-ipc: same machine"
                                                              : "cuda-ipc: same machine, legacy handles of memory");
  return client;
}

static void round_trip(gpu_fixture_t *fixture) {
  bl_client_t *client = must_open_gpu(fixture);
  exchange_blocks(fixture, client);
  assert_int_equal(bl_client_counters(client).bytes_copied, 24 * BLOCK_BYTES);
  bl_client_close(client);
}

static void blocks_go_from_device_to_device(void **state) {
  (void)state;
  gpu_fixture_t fixture;
  start(&fixture, "cuda:0", "64 MiB", NULL);
  round_trip(&fixture);
  stop(&fixture);
}

// The device has room for three blocks, the rest lies in the host's memory.
static void blocks_lie_in_both_tiers(void **state) {
  (void)state;
  gpu_fixture_t fixture;
  start(&fixture, "cuda:0", "10 MiB", "32 MiB");
  round_trip(&fixture);
  round_trip(&fixture); // a session later
  stop(&fixture);
}

// A driver that gives no descriptors of memory: its names travel instead, and it is said.
static void memory_is_handed_out_by_name(void **state) {
  (void)state;
  gpu_fixture_t fixture;
  setenv("FAKE_GPU_LEGACY", "1", 1);
  start(&fixture, "cuda:0", "10 MiB", "32 MiB");
  round_trip(&fixture);
  stop(&fixture);
  unsetenv("FAKE_GPU_LEGACY");
}

static void a_store_that_dies(void **state) {
  (void)state;
  gpu_fixture_t fixture;
  start(&fixture, "cuda:0", "64 MiB", NULL);
  bl_client_t *client = must_open_gpu(&fixture);
  uint64_t slots[2];
  bl_error_t err = {0};
  reserve(client, BLOCK_BYTES, 2, slots);
  write_slot(&fixture, 0, 5);
  must(bl_client_evict(client, slots[0], fixture.buffers.base, BLOCK_BYTES, NULL, &err), &err);
  store_kill(&fixture.store, SIGKILL);
  assert_int_equal(bl_client_evict(client, slots[1], fixture.buffers.base, BLOCK_BYTES, NULL, &err), BL_UNAVAILABLE);
  assert_int_equal(bl_client_load(client, slots[0], fixture.buffers.base + BLOCK_BYTES, BLOCK_BYTES, &err),
                   BL_UNAVAILABLE);
  begin_anew(&fixture, client, 5);
  bl_client_close(client);
  stop(&fixture);
}

// As "holder ADDRESS": holds everything, says so, and then does nothing.
static int hold(const char *address) {
  gpu_fixture_t fixture = {.device = NULL};
  bl_error_t err = {0};
  bl_client_t *client = NULL;
  uint64_t slots[8];
  bl_status_t status = holder_start(&fixture, address, &err);
  bl_client_options_t options = gpu_options(&fixture);
  options.stage = 1;
  if (status == BL_OK) {
    status = holder_take_all(&options, &client, slots, &err);
  }
  if (status == BL_OK) {
    status = bl_client_evict(client, slots[0], fixture.buffers.base, BLOCK_BYTES, NULL, &err);
  }
  return holder_stay(status, &err);
}

static void slots_wait_for_the_end_of_a_process(void **state) {
  (void)state;
  gpu_fixture_t fixture;
  const char *ttl = store_ttl;
  store_ttl = "2";
  start(&fixture, "cuda:0", "64 MiB", NULL);
  store_ttl = ttl;
  fixture_t as_fixture = {.store = fixture.store};
  int to, from;
  bl_error_t err = {0};
  bl_client_t *other = must_open_gpu(&fixture);
  bl_client_demand_t all = {.bytes = BLOCK_BYTES, .count = 8};
  pid_t pid = start_self(&as_fixture, "holder", 1, &to, &from);
  kill(pid, SIGSTOP);
  // Its session ends, and its slots stay: nobody gets them, for as long as one looks.
  const uint64_t until_ns = bl_clock_now_ns() + 6 * BL_NS_PER_S; // more than twice the time that a session has
  while (bl_clock_now_ns() < until_ns) {
    assert_int_not_equal(bl_client_reserve(other, 1, &all, 1, &err), BL_OK);
    usleep(100000);
  }
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
  WAIT_FOR(bl_client_reserve(other, 1, &all, 1, &err) == BL_OK);
  close(to);
  close(from);
  bl_client_close(other);
  stop(&fixture);
}

static void holders_that_do_not_reach_the_gpu(void **state) {
  (void)state;
  gpu_fixture_t fixture;
  bl_error_t err = {0};
  bl_client_t *client = NULL;
  bl_arena_t buffers;
  must(bl_arena_create(bl_device_host(), NULL, BL_MEMORY_SLOTS, BL_ARENA_SHAREABLE, BLOCK_BYTES, &buffers, &err), &err);
  const bl_client_region_t source = bl_client_region_of(&buffers);
  for (int path = BL_CLIENT_PATH_AUTO; path <= BL_CLIENT_PATH_TCP; path++) {
    start(&fixture, "cuda:0", "64 MiB", "32 MiB");
    bl_client_options_t options = {.size = sizeof options,
                                   .store = fixture.store.address,
                                   .job = "host's",
                                   .arena_bytes = 4 * BLOCK_BYTES,
                                   .regions = &source,
                                   .region_count = 1,
                                   .path = (bl_client_path_t)path};
    uint64_t slots[4];
    must(bl_client_open(&options, &client, &err), &err);
    reserve(client, BLOCK_BYTES, 4, slots);
    fill(buffers.base, BLOCK_BYTES, 9);
    memcpy(fixture.staged, buffers.base, BLOCK_BYTES);
    must(bl_client_evict(client, slots[3], buffers.base, BLOCK_BYTES, NULL, &err), &err);
    memset(buffers.base, 0, BLOCK_BYTES);
    must(bl_client_load(client, slots[3], buffers.base, BLOCK_BYTES, &err), &err);
    assert_memory_equal(buffers.base, fixture.staged, BLOCK_BYTES);
    bl_client_close(client);
    stop(&fixture);
  }
  // Without a second tier, and the other way round.
  start(&fixture, "cuda:0", "64 MiB", NULL);
  bl_client_options_t options = {.size = sizeof options,
                                 .store = fixture.store.address,
                                 .job = "host's",
                                 .arena_bytes = BLOCK_BYTES,
                                 .regions = &source,
                                 .region_count = 1};
  assert_int_equal(bl_client_open(&options, &client, &err), BL_EXHAUSTED);
  options.path = BL_CLIENT_PATH_CUDA_IPC;
  assert_int_equal(bl_client_open(&options, &client, &err), BL_EXHAUSTED);
  stop(&fixture);
  start(&fixture, "host", "64 MiB", NULL);
  options = gpu_options(&fixture);
  assert_int_equal(bl_client_open(&options, &client, &err), BL_UNIMPLEMENTED);
  assert_non_null(strstr(err.text, "shm: same machine; memory of the store is the host's"));
  options.path = BL_CLIENT_PATH_CUDA_IPC;
  assert_int_equal(bl_client_open(&options, &client, &err), BL_PRECONDITION);
  assert_string_equal(err.text, "cuda-ipc was asked for: memory of the store is the host's");
  stop(&fixture);
  bl_arena_destroy(&buffers);
}

static void memory_that_is_not_handed_out(void **state) {
  (void)state;
  gpu_fixture_t fixture;
  bl_error_t err = {0};
  bl_client_t *client = NULL;
  setenv("FAKE_GPU_CLOSED", "1", 1);
  start(&fixture, "cuda:0", "64 MiB", "64 MiB");
  bl_client_options_t options = gpu_options(&fixture);
  options.path = BL_CLIENT_PATH_CUDA_IPC;
  assert_int_equal(bl_client_open(&options, &client, &err), BL_PRECONDITION);
  assert_string_equal(err.text, "cuda-ipc was asked for: this process: this fake GPU keeps its memory");
  unsetenv("FAKE_GPU_CLOSED");
  stop(&fixture);
}

int main(int argc, char **argv) {
  setenv("BALLAST_MODULES", BALLAST_BINARY_DIR "/tests/fake_gpu", 1);
  if (argc > 2 && strcmp(argv[1], "holder") == 0) {
    return hold(argv[2]);
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(blocks_go_from_device_to_device),     cmocka_unit_test(blocks_lie_in_both_tiers),
      cmocka_unit_test(memory_is_handed_out_by_name),        cmocka_unit_test(a_store_that_dies),
      cmocka_unit_test(slots_wait_for_the_end_of_a_process), cmocka_unit_test(holders_that_do_not_reach_the_gpu),
      cmocka_unit_test(memory_that_is_not_handed_out),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
