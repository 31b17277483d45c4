// SPDX-License-Identifier: Apache-2.0
// Verifies the transport between two stages whose tensors lie on GPUs of one machine (tests/fake_gpu, whose memory no
// CPU can touch and on which nothing happens until somebody asks), the other stage a process: tensors are pulled both
// ways in random orders, whichever end is ready first; a source is the sender's again only when it has been taken; a
// peer that is killed in the middle ends the wait with the cause, and its memory is given back; what keeps two stages
// from cuda-ipc is said and another path taken, or refused; twins in memory of the host are made only for those. The
// seed is fixed; BALLAST_TEST_SEED sets another.
#include "child.h"
#include "datapath/device_path.h"
#include "device/open.h"
#include "folder.h"
#include "seed.h"

#define TENSORS 24u
#define BYTES   300001u

typedef struct {
  bl_device_t *device;
  bl_arena_t arena, twins; // TENSORS to send, TENSORS that are received
  unsigned twins_made;
  bl_block_memory_t block_memory;
  bl_transport_t *transport;
  char path[96];
} stage_t;

static bl_tensor_key_t key_of(uint32_t micro_batch) {
  return (bl_tensor_key_t){.boundary = 3, .direction = BL_FORWARD, .micro_batch = micro_batch};
}

static bl_status_t make_twins(void *context, bl_arena_t *twins, size_t *count, bl_error_t *err) {
  stage_t *stage = context;
  stage->twins_made++;
  bl_status_t status = bl_arena_create(stage->device, NULL, BL_MEMORY_STAGING, BL_ARENA_STAGING_SHAREABLE,
                                       2ull * TENSORS * BYTES, &stage->twins, err);
  twins[(*count)++] = stage->twins;
  return status;
}

// Stage 0 has GPU 0, stage 1 GPU 1.
static void stage_open(stage_t *stage, int number, const char *folder) {
  bl_error_t err;
  *stage = (stage_t){.twins = {.fd = -1}};
  snprintf(stage->path, sizeof stage->path, "%s/%d.sock", folder, number);
  CHILD_OK(bl_device_open(BL_DEVICE_CUDA, (uint32_t)number, &stage->device, &err), err);
  CHILD_OK(bl_arena_create(stage->device, NULL, BL_MEMORY_EDGES, BL_ARENA_SHAREABLE, 2ull * TENSORS * BYTES,
                           &stage->arena, &err),
           err);
  bl_block_memory_describe(stage->device, NULL, false, &stage->block_memory);
  bl_transport_options_t options = {.stage = number,
                                    .unix_path = stage->path,
                                    .tcp_host = "127.0.0.1",
                                    .arenas = &stage->arena,
                                    .arena_count = 1,
                                    .device = stage->device,
                                    .make_twins = make_twins,
                                    .context = stage,
                                    .machine = getenv("TEST_MACHINE"),
                                    .block_memory = &stage->block_memory};
  CHILD_OK(bl_transport_create(&options, &stage->transport, &err), err);
}

static void stage_close(stage_t *stage) {
  bl_transport_destroy(stage->transport);
  bl_arena_destroy(&stage->arena);
  bl_arena_destroy(&stage->twins);
  bl_device_close(stage->device);
}

static uint8_t *source(const stage_t *stage, uint32_t n) {
  const bool nccl_link = stage->twins.base == NULL;
  return (nccl_link ? stage->arena.base : stage->twins.base) + (uint64_t)n * BYTES;
}

static uint8_t *destination(const stage_t *stage, uint32_t n) {
  return source(stage, TENSORS + n);
}

static void write_pattern(const stage_t *stage, uint8_t *to, uint64_t bytes, uint64_t seed) {
  bl_error_t err;
  uint8_t *host = malloc(bytes);
  pattern_fill(host, bytes, seed);
  CHILD_OK(bl_device_copy(stage->device, NULL, to, host, bytes, &err), err);
  free(host);
}

static bool has_pattern(const stage_t *stage, const uint8_t *from, uint64_t bytes, uint64_t seed) {
  bl_error_t err;
  uint8_t *host = malloc(2 * bytes);
  pattern_fill(host, bytes, seed);
  CHILD_OK(bl_device_copy(stage->device, NULL, host + bytes, from, bytes, &err), err);
  const bool same = memcmp(host, host + bytes, bytes) == 0;
  free(host);
  return same;
}

// Posts TENSORS both ways in an order of this end's own, waits in another, and looks at what came. As soon as the peer
// has one, its source is filled with other bytes.
static void swap_all(stage_t *stage, int number, uint64_t attempt) {
  const int32_t peer = !number;
  const uint64_t key = bl_random_key(attempt, number == 0 ? "left" : "right");
  uint64_t index = 0;
  bl_error_t err;
  for (uint32_t n = 0; n < TENSORS; n++) {
    write_pattern(stage, source(stage, n), BYTES - n, attempt * 1000 + n * 2 + (uint64_t)number);
  }
  CHILD_OK(bl_transport_begin(stage->transport, attempt, &err), err);
  for (uint32_t round = 0; round < 2; round++) {
    uint32_t order[2 * TENSORS];
    for (uint32_t i = 0; i < 2 * TENSORS; i++) {
      const uint32_t j = (uint32_t)bl_random_below(key, index++, i + 1);
      order[i] = order[j];
      order[j] = i;
    }
    for (uint32_t i = 0; i < 2 * TENSORS; i++) {
      const uint32_t n = order[i] / 2;
      const bool sends = order[i] % 2 == 0;
      const uint64_t bytes = BYTES - n;
      if (round == 0) {
        CHILD_OK(sends
                     ? bl_transport_post_send(stage->transport, peer, key_of(n), source(stage, n), bytes, &err)
                     : bl_transport_post_receive(stage->transport, peer, key_of(n), destination(stage, n), bytes, &err),
                 err);
        if (bl_random_below(key, index++, 4) == 0) {
          usleep(300); // what was posted here may be early, or late
        }
      } else if (sends) {
        CHILD_OK(bl_transport_wait_sent(stage->transport, peer, key_of(n), soon(), &err), err);
        write_pattern(stage, source(stage, n), bytes, 7);
      } else {
        CHILD_OK(bl_transport_wait_received(stage->transport, peer, key_of(n), soon(), &err), err);
      }
    }
  }
  for (uint32_t n = 0; n < TENSORS; n++) {
    if (!has_pattern(stage, destination(stage, n), BYTES - n, attempt * 1000 + n * 2 + (uint64_t)peer)) {
      fprintf(stderr, "stage %d: tensor %u of attempt %llu came changed\n", number, n, (unsigned long long)attempt);
      _exit(1);
    }
  }
}

// ---- the other process: child WHAT FOLDER PATH

static int run_child(char **arguments) {
  stage_t stage;
  contact_t contact;
  bl_transport_peer_t peer;
  bl_error_t err;
  bl_path_t path = BL_PATH_AUTO;
  uint64_t attempt;
  char what = arguments[0][0];
  stage_open(&stage, 0, arguments[1]);
  contact_fill(&contact, stage.transport);
  if (!bl_path_parse(arguments[2], &path) || !TELL(STDOUT_FILENO, contact) || !HEAR(STDIN_FILENO, contact)) {
    return 1;
  }
  contact_peer(&contact, 1, &peer);
  bl_status_t status = bl_transport_connect_wait(stage.transport, &peer, 1, path, soon(), &err);
  if (status != BL_OK) {
    TELL(STDOUT_FILENO, err);
    stage_close(&stage);
    return 3;
  }
  while (HEAR(STDIN_FILENO, attempt)) {
    if (what == 's') { // swaps
      swap_all(&stage, 0, attempt);
    } else { // sends one, which it keeps on its device
      CHILD_OK(bl_transport_begin(stage.transport, attempt, &err), err);
      write_pattern(&stage, source(&stage, 0), BYTES, attempt);
      CHILD_OK(bl_transport_post_send(stage.transport, 1, key_of(0), source(&stage, 0), BYTES, &err), err);
    }
    TELL(STDOUT_FILENO, attempt);
  }
  stage_close(&stage);
  return 0;
}

// `variable` (NULL: none) is set for the child alone, or for both.
typedef struct {
  const char *variable, *value;
  bool both;
} trouble_t;

static bl_status_t parent_try(stage_t *stage, child_t *child, const char *what, const char *folder, bl_path_t path,
                              const trouble_t *trouble, uint64_t deadline_ns, bl_error_t *err) {
  contact_t contact;
  bl_transport_peer_t peer;
  const char *const arguments[] = {"/proc/self/exe", "child", what, folder, bl_path_name(path), NULL};
  if (trouble->variable != NULL) {
    setenv(trouble->variable, trouble->value, 1);
  }
  child_start(child, arguments);
  assert_true(HEAR(child->from, contact)); // it has started
  if (trouble->variable != NULL && !trouble->both) {
    unsetenv(trouble->variable);
  }
  stage_open(stage, 1, folder);
  contact_peer(&contact, 0, &peer);
  contact_fill(&contact, stage->transport);
  assert_true(TELL(child->to, contact));
  const bl_status_t status = bl_transport_connect_wait(stage->transport, &peer, 1, path, deadline_ns, err);
  if (trouble->variable != NULL) {
    unsetenv(trouble->variable);
  }
  return status;
}

static void parent_connect(stage_t *stage, child_t *child, const char *what, const char *folder, bl_path_t path) {
  bl_error_t err;
  CHECK_OK(parent_try(stage, child, what, folder, path, &(trouble_t){0}, soon(), &err), err);
}

static void go(child_t *child, uint64_t attempt) {
  assert_true(TELL(child->to, attempt));
}

static void swap_with(stage_t *stage, child_t *child, uint64_t attempt) {
  uint64_t done;
  go(child, attempt);
  swap_all(stage, 1, attempt);
  assert_true(HEAR(child->from, done));
  assert_int_equal(done, attempt);
}

static void remove_folder(const char *folder) {
  char left[112];
  snprintf(left, sizeof left, "%s/0.sock", folder);
  unlink(left); // a killed process cannot
  assert_int_equal(rmdir(folder), 0);
}

static void check_path(const stage_t *stage, bl_path_t path, const char *reason) {
  bl_transport_path_t shown;
  assert_int_equal(bl_transport_paths(stage->transport, &shown, 1), 1);
  assert_int_equal(shown.path, path);
  if (strstr(shown.reason, reason) == NULL) {
    fail_msg("the reason is: %s", shown.reason);
  }
  assert_int_equal(bl_transport_is_direct(stage->transport, 0), path == BL_PATH_CUDA_IPC);
  assert_int_equal(stage->twins_made, path != BL_PATH_CUDA_IPC);
}

// ---- tests

static void swaps(bl_path_t asked, bl_path_t path, const char *reason) {
  char folder[] = "/tmp/ballast-test-XXXXXX";
  assert_non_null(mkdtemp(folder));
  stage_t stage;
  child_t child;
  const uint64_t seed = test_seed(20);
  parent_connect(&stage, &child, "swap", folder, asked);
  check_path(&stage, path, reason);
  for (uint64_t attempt = 1; attempt <= 6; attempt++) {
    swap_with(&stage, &child, seed % 1000 * 10 + attempt);
  }
  const bl_transport_counters_t counters = bl_transport_counters(stage.transport);
  assert_int_equal(counters.tensors_received, 6 * TENSORS);
  assert_int_equal(counters.tensors_sent, 6 * TENSORS);
  assert_int_equal(counters.bytes_copied, path == BL_PATH_SHM ? counters.bytes_received : 0);
  assert_int_equal(child_end(&child), 0);
  stage_close(&stage);
  remove_folder(folder);
}

static void tensors_are_pulled_from_device_to_device(void **state) {
  (void)state;
  swaps(BL_PATH_AUTO, BL_PATH_CUDA_IPC, "cuda-ipc: same machine"); // libuv keeps a pipe of the first loop
  const unsigned descriptors = count_descriptors(0);
  swaps(BL_PATH_CUDA_IPC, BL_PATH_CUDA_IPC, "cuda-ipc: asked for");
  setenv("FAKE_GPU_LEGACY", "1", 1);
  swaps(BL_PATH_AUTO, BL_PATH_CUDA_IPC, "cuda-ipc: same machine, legacy handles of memory");
  unsetenv("FAKE_GPU_LEGACY");
  assert_int_equal(count_descriptors(0), descriptors);
}

static void a_source_is_free_when_it_has_been_taken(void **state) {
  (void)state;
  char folder[] = "/tmp/ballast-test-XXXXXX";
  assert_non_null(mkdtemp(folder));
  stage_t stage;
  child_t child;
  bl_error_t err;
  uint64_t done;
  parent_connect(&stage, &child, "keep", folder, BL_PATH_AUTO);
  CHECK_OK(bl_transport_begin(stage.transport, 5, &err), err);
  CHECK_OK(bl_transport_post_send(stage.transport, 0, key_of(0), source(&stage, 0), BYTES, &err), err);
  go(&child, 5);
  assert_true(HEAR(child.from, done));
  // Offered, and nobody there has room for it.
  assert_int_equal(bl_transport_wait_sent(stage.transport, 0, key_of(0), bl_clock_now_ns() + 100 * BL_NS_PER_MS, &err),
                   BL_DEADLINE);
  CHECK_OK(bl_transport_post_receive(stage.transport, 0, key_of(0), destination(&stage, 0), BYTES, &err), err);
  CHECK_OK(bl_transport_wait_received(stage.transport, 0, key_of(0), soon(), &err), err);
  assert_true(has_pattern(&stage, destination(&stage, 0), BYTES, 5));
  // An attempt that is given up before its tensor came: nothing of it comes later.
  go(&child, 6);
  assert_true(HEAR(child.from, done));
  CHECK_OK(bl_transport_begin(stage.transport, 6, &err), err);
  CHECK_OK(bl_transport_post_receive(stage.transport, 0, key_of(0), destination(&stage, 0), BYTES, &err), err);
  bl_transport_abort(stage.transport);
  CHECK_OK(bl_transport_begin(stage.transport, 7, &err), err);
  write_pattern(&stage, destination(&stage, 0), BYTES, 99);
  go(&child, 7);
  assert_true(HEAR(child.from, done));
  CHECK_OK(bl_transport_post_receive(stage.transport, 0, key_of(0), destination(&stage, 1), BYTES, &err), err);
  CHECK_OK(bl_transport_wait_received(stage.transport, 0, key_of(0), soon(), &err), err);
  assert_true(has_pattern(&stage, destination(&stage, 0), BYTES, 99));
  assert_true(has_pattern(&stage, destination(&stage, 1), BYTES, 7));
  // Its memory must lie in an arena.
  uint8_t elsewhere[16];
  assert_int_equal(bl_transport_post_send(stage.transport, 0, key_of(2), elsewhere, sizeof elsewhere, &err),
                   BL_INVALID);
  assert_int_equal(child_end(&child), 0);
  stage_close(&stage);
  remove_folder(folder);
}

static void a_peer_that_dies_in_the_middle(void **state) {
  (void)state;
  const unsigned descriptors = count_descriptors(0);
  for (unsigned round = 0; round < 8; round++) {
    char folder[] = "/tmp/ballast-test-XXXXXX";
    assert_non_null(mkdtemp(folder));
    stage_t stage;
    child_t child;
    bl_error_t err;
    uint64_t done;
    parent_connect(&stage, &child, "keep", folder, BL_PATH_AUTO);
    CHECK_OK(bl_transport_begin(stage.transport, 1, &err), err);
    for (uint32_t n = 0; n < TENSORS; n++) { // it takes none of these, and sends one
      CHECK_OK(bl_transport_post_send(stage.transport, 0, key_of(n), source(&stage, n), BYTES, &err), err);
    }
    go(&child, 1);
    assert_true(HEAR(child.from, done));
    CHECK_OK(bl_transport_post_receive(stage.transport, 0, key_of(0), destination(&stage, 0), BYTES, &err), err);
    if (round % 2 == 0) {
      usleep(100 * round);
    }
    kill(child.pid, SIGKILL); // while it is pulled, or just before or behind
    const bl_status_t status = bl_transport_wait_received(stage.transport, 0, key_of(0), soon(), &err);
    if (status == BL_OK) { // it was whole
      assert_true(has_pattern(&stage, destination(&stage, 0), BYTES, 1));
    } else {
      assert_int_equal(status, BL_UNAVAILABLE);
      assert_non_null(strstr(err.text, "stage 0 closed the connection: it ended or was killed"));
    }
    assert_int_equal(bl_transport_wait_sent(stage.transport, 0, key_of(3), soon(), &err), BL_UNAVAILABLE);
    assert_true(WIFSIGNALED(child_end(&child)));
    CHECK_OK(bl_transport_begin(stage.transport, 2, &err), err); // nothing touches what is here any more
    stage_close(&stage);
    remove_folder(folder);
  }
  assert_int_equal(count_descriptors(0), descriptors);
}

// Copies take a while: the peer dies, and the attempt is given up, in the middle of one. What it reads is there until
// then, and nothing is written here once a new attempt has begun.
static void copies_that_nobody_waits_for(void **state) {
  (void)state;
  for (int dies = 0; dies < 2; dies++) {
    char folder[] = "/tmp/ballast-test-XXXXXX";
    assert_non_null(mkdtemp(folder));
    stage_t stage;
    child_t child;
    bl_error_t err;
    uint64_t done;
    const trouble_t slow = {"FAKE_GPU_COPY_MS", "150", true};
    CHECK_OK(parent_try(&stage, &child, "keep", folder, BL_PATH_AUTO, &slow, soon(), &err), err);
    CHECK_OK(bl_transport_begin(stage.transport, 1, &err), err);
    go(&child, 1);
    assert_true(HEAR(child.from, done));
    setenv(slow.variable, slow.value, 1);
    const uint64_t start_ns = bl_clock_now_ns();
    CHECK_OK(bl_transport_post_receive(stage.transport, 0, key_of(0), destination(&stage, 0), BYTES, &err), err);
    assert_int_equal(bl_transport_wait_received(stage.transport, 0, key_of(0), start_ns + 30 * BL_NS_PER_MS, &err),
                     BL_DEADLINE);
    if (dies) {
      kill(child.pid, SIGKILL);
      assert_int_equal(bl_transport_wait_received(stage.transport, 0, key_of(0), soon(), &err), BL_UNAVAILABLE);
    } else {
      bl_transport_abort(stage.transport);
    }
    CHECK_OK(bl_transport_begin(stage.transport, 2, &err), err);
    assert_true(bl_clock_now_ns() - start_ns >= 150 * BL_NS_PER_MS);
    unsetenv(slow.variable);
    write_pattern(&stage, destination(&stage, 0), BYTES, 42);
    usleep(20000);
    assert_true(has_pattern(&stage, destination(&stage, 0), BYTES, 42));
    if (!dies) {
      go(&child, 2);
      assert_true(HEAR(child.from, done));
      CHECK_OK(bl_transport_post_receive(stage.transport, 0, key_of(0), destination(&stage, 0), BYTES, &err), err);
      CHECK_OK(bl_transport_wait_received(stage.transport, 0, key_of(0), soon(), &err), err);
      assert_true(has_pattern(&stage, destination(&stage, 0), BYTES, 2));
    }
    const int status = child_end(&child);
    assert_true(dies ? WIFSIGNALED(status) : status == 0);
    stage_close(&stage);
    remove_folder(folder);
  }
}

static void a_peer_that_stands_still_costs_time(void **state) {
  (void)state;
  char folder[] = "/tmp/ballast-test-XXXXXX";
  assert_non_null(mkdtemp(folder));
  stage_t stage;
  child_t child;
  bl_error_t err;
  uint64_t done;
  parent_connect(&stage, &child, "keep", folder, BL_PATH_AUTO);
  CHECK_OK(bl_transport_begin(stage.transport, 1, &err), err);
  go(&child, 1);
  assert_true(HEAR(child.from, done));
  kill(child.pid, SIGSTOP); // what it has offered is there for the taking
  CHECK_OK(bl_transport_post_receive(stage.transport, 0, key_of(0), destination(&stage, 0), BYTES, &err), err);
  CHECK_OK(bl_transport_post_receive(stage.transport, 0, key_of(1), destination(&stage, 1), BYTES, &err), err);
  assert_int_equal(
      bl_transport_wait_received(stage.transport, 0, key_of(1), bl_clock_now_ns() + 100 * BL_NS_PER_MS, &err),
      BL_DEADLINE);
  bl_transport_abort(stage.transport);
  CHECK_OK(bl_transport_begin(stage.transport, 2, &err), err); // nobody waits for it
  kill(child.pid, SIGCONT);
  go(&child, 2);
  assert_true(HEAR(child.from, done));
  CHECK_OK(bl_transport_post_receive(stage.transport, 0, key_of(0), destination(&stage, 0), BYTES, &err), err);
  CHECK_OK(bl_transport_wait_received(stage.transport, 0, key_of(0), soon(), &err), err);
  assert_true(has_pattern(&stage, destination(&stage, 0), BYTES, 2));
  assert_int_equal(child_end(&child), 0);
  stage_close(&stage);
  remove_folder(folder);
}

// Asked for it is refused by the stage that opens the link, for that reason.
static void refused(const trouble_t *trouble, const char *why) {
  char folder[] = "/tmp/ballast-test-XXXXXX";
  assert_non_null(mkdtemp(folder));
  stage_t stage;
  child_t child;
  bl_error_t err, told;
  const uint64_t deadline_ns = bl_clock_now_ns() + 2 * BL_NS_PER_S; // if it is the child that says no
  assert_int_not_equal(parent_try(&stage, &child, "swap", folder, BL_PATH_CUDA_IPC, trouble, deadline_ns, &err), BL_OK);
  assert_true(HEAR(child.from, told));
  assert_int_equal(told.status, BL_PRECONDITION);
  if (strstr(told.text, "cuda-ipc is asked for: ") == NULL || strstr(told.text, why) == NULL) {
    fail_msg("it is refused so: %s", told.text);
  }
  assert_int_equal(WEXITSTATUS(child_end(&child)), 3);
  stage_close(&stage);
  remove_folder(folder);
}

// What keeps two stages from it is told, and they go by way of the host.
static void obstacle(const trouble_t *trouble, const char *why) {
  char folder[] = "/tmp/ballast-test-XXXXXX";
  assert_non_null(mkdtemp(folder));
  stage_t stage;
  child_t child;
  bl_error_t err;
  CHECK_OK(parent_try(&stage, &child, "swap", folder, BL_PATH_AUTO, trouble, soon(), &err), err);
  check_path(&stage, BL_PATH_SHM, "shm: same machine; not cuda-ipc: ");
  check_path(&stage, BL_PATH_SHM, why);
  swap_with(&stage, &child, 3);
  assert_int_equal(child_end(&child), 0);
  stage_close(&stage);
  remove_folder(folder);
  refused(trouble, why);
}

static void obstacles_are_named(void **state) {
  (void)state;
  obstacle(&(trouble_t){"FAKE_GPU_CLOSED", "1", false}, "this fake GPU keeps its memory");
  obstacle(&(trouble_t){"FAKE_GPU_ALONE", "1", true}, "stage 1: the machine has no peer access between fake GPUs");
  obstacle(&(trouble_t){"FAKE_GPU_COUNT", "1", false}, "stage 0: this process sees 1 GPUs, and not that one");
  // Sockets of the same name may be there, too.
  refused(&(trouble_t){"TEST_MACHINE", "elsewhere/1", false}, "peer is on another machine");
}

int main(int argc, char **argv) {
  setenv("BALLAST_MODULES", BALLAST_BINARY_DIR "/tests/fake_gpu", 1);
  if (argc == 5 && strcmp(argv[1], "child") == 0) {
    return run_child(argv + 2);
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tensors_are_pulled_from_device_to_device),
      cmocka_unit_test(a_source_is_free_when_it_has_been_taken),
      cmocka_unit_test(a_peer_that_dies_in_the_middle),
      cmocka_unit_test(copies_that_nobody_waits_for),
      cmocka_unit_test(a_peer_that_stands_still_costs_time),
      cmocka_unit_test(obstacles_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
