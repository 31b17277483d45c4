// SPDX-License-Identifier: Apache-2.0
// Verifies the data path between two processes: tensors there and back, a peer killed in the middle of a transfer is
// known long before any deadline and leaves its arenas to who reads them, a stopped one only costs time, and nothing
// stays behind in descriptors or /dev/shm.
#include "child.h"
#include "folder.h"

#define TENSOR_BYTES (2ull << 20)
#define ECHOES       6ull
#define FILLED       0x5a

static bl_tensor_key_t key_of(bl_direction_t direction, uint32_t micro_batch) {
  return (bl_tensor_key_t){.direction = direction, .micro_batch = micro_batch};
}

typedef struct {
  bl_arena_t arena;
  bl_transport_t *transport;
  char path[96];
} stage_t;

static void stage_open(stage_t *stage, int number, const char *folder) {
  bl_error_t err;
  snprintf(stage->path, sizeof stage->path, "%s/%d.sock", folder, number);
  CHILD_OK(bl_arena_create(bl_device_host(), NULL, BL_MEMORY_EDGES, BL_ARENA_SHAREABLE, ECHOES * TENSOR_BYTES,
                           &stage->arena, &err),
           err);
  bl_transport_options_t options = {
      .stage = number, .unix_path = stage->path, .tcp_host = "127.0.0.1", .arenas = &stage->arena, .arena_count = 1};
  CHILD_OK(bl_transport_create(&options, &stage->transport, &err), err);
}

static void stage_close(stage_t *stage) {
  bl_transport_destroy(stage->transport);
  bl_arena_destroy(&stage->arena);
}

// Receives, adds one to every byte in its own arena, sends back.
static void echo(stage_t *stage) {
  bl_error_t err;
  for (uint32_t i = 0; i < ECHOES; i++) {
    uint8_t *buffer = stage->arena.base + i * TENSOR_BYTES;
    CHILD_OK(bl_transport_post_receive(stage->transport, 1, key_of(BL_BACKWARD, i), buffer, TENSOR_BYTES, &err), err);
  }
  for (uint32_t i = 0; i < ECHOES; i++) {
    uint8_t *buffer = stage->arena.base + i * TENSOR_BYTES;
    CHILD_OK(bl_transport_wait_received(stage->transport, 1, key_of(BL_BACKWARD, i), soon(), &err), err);
    for (size_t k = 0; k < TENSOR_BYTES; k++) {
      buffer[k]++;
    }
    CHILD_OK(bl_transport_post_send(stage->transport, 1, key_of(BL_FORWARD, i), buffer, TENSOR_BYTES, &err), err);
  }
  for (uint32_t i = 0; i < ECHOES; i++) {
    CHILD_OK(bl_transport_wait_sent(stage->transport, 1, key_of(BL_FORWARD, i), soon(), &err), err);
  }
}

// Sends tensors as fast as they are taken, until it is killed.
static void stream(stage_t *stage) {
  bl_error_t err;
  for (uint32_t i = 0;; i++) {
    CHILD_OK(bl_transport_post_send(stage->transport, 1, key_of(BL_FORWARD, i), stage->arena.base,
                                    ECHOES * TENSOR_BYTES, &err),
             err);
    CHILD_OK(bl_transport_wait_sent(stage->transport, 1, key_of(BL_FORWARD, i), UINT64_MAX, &err), err);
  }
}

// child WHAT FOLDER PATH
static int run_child(char **arguments) {
  stage_t stage;
  contact_t contact;
  bl_transport_peer_t peer;
  bl_error_t err;
  bl_path_t path = BL_PATH_AUTO;
  uint8_t end;
  stage_open(&stage, 0, arguments[1]);
  memset(stage.arena.base, FILLED, ECHOES * TENSOR_BYTES);
  contact_fill(&contact, stage.transport);
  if (!bl_path_parse(arguments[2], &path) || !TELL(STDOUT_FILENO, contact) || !HEAR(STDIN_FILENO, contact)) {
    return 1;
  }
  contact_peer(&contact, 1, &peer);
  CHILD_OK(bl_transport_connect_wait(stage.transport, &peer, 1, path, soon(), &err), err);
  CHILD_OK(bl_transport_begin(stage.transport, 1, &err), err);
  if (strcmp(arguments[0], "echo") == 0) {
    echo(&stage);
  } else if (strcmp(arguments[0], "stream") == 0) {
    stream(&stage);
  }
  while (HEAR(STDIN_FILENO, end)) {
  }
  stage_close(&stage);
  return 0;
}

static void parent_connect(stage_t *stage, child_t *child, const char *what, const char *folder, bl_path_t path) {
  contact_t contact;
  bl_transport_peer_t peer;
  bl_error_t err;
  const char *const arguments[] = {"/proc/self/exe", "child", what, folder, bl_path_name(path), NULL};
  child_start(child, arguments);
  stage_open(stage, 1, folder);
  assert_true(HEAR(child->from, contact));
  contact_peer(&contact, 0, &peer);
  contact_fill(&contact, stage->transport);
  assert_true(TELL(child->to, contact));
  CHECK_OK(bl_transport_connect_wait(stage->transport, &peer, 1, path, soon(), &err), err);
  CHECK_OK(bl_transport_begin(stage->transport, 1, &err), err);
}

static void there_and_back(bl_path_t path, const char *reason) {
  char folder[] = "/tmp/ballast-test-XXXXXX";
  assert_non_null(mkdtemp(folder));
  stage_t stage;
  child_t child;
  bl_error_t err;
  parent_connect(&stage, &child, "echo", folder, path);
  bl_transport_path_t shown;
  assert_int_equal(bl_transport_paths(stage.transport, &shown, 1), 1);
  assert_string_equal(shown.reason, reason);
  uint8_t *back = malloc(ECHOES * TENSOR_BYTES);
  pattern_fill(stage.arena.base, ECHOES * TENSOR_BYTES, 3);
  for (uint32_t i = 0; i < ECHOES; i++) {
    uint64_t at = i * TENSOR_BYTES;
    CHECK_OK(bl_transport_post_receive(stage.transport, 0, key_of(BL_FORWARD, i), back + at, TENSOR_BYTES, &err), err);
    CHECK_OK(
        bl_transport_post_send(stage.transport, 0, key_of(BL_BACKWARD, i), stage.arena.base + at, TENSOR_BYTES, &err),
        err);
  }
  for (uint32_t i = ECHOES; i-- > 0;) {
    CHECK_OK(bl_transport_wait_received(stage.transport, 0, key_of(BL_FORWARD, i), soon(), &err), err);
    CHECK_OK(bl_transport_wait_sent(stage.transport, 0, key_of(BL_BACKWARD, i), soon(), &err), err);
  }
  for (size_t k = 0; k < ECHOES * TENSOR_BYTES; k++) {
    back[k]--;
  }
  pattern_check(back, ECHOES * TENSOR_BYTES, 3, bl_path_name(path));
  assert_int_equal(child_end(&child), 0);
  free(back);
  stage_close(&stage);
  assert_int_equal(rmdir(folder), 0);
}

static void tensors_go_there_and_back(void **state) {
  (void)state;
  there_and_back(BL_PATH_AUTO, "shm: same machine"); // libuv keeps a pipe of the first loop
  unsigned descriptors = count_descriptors(0), shared = count_entries("/dev/shm");
  there_and_back(BL_PATH_SHM, "shm: asked for");
  there_and_back(BL_PATH_TCP, "tcp: asked for");
  assert_int_equal(count_descriptors(0), descriptors);
  assert_int_equal(count_entries("/dev/shm"), shared);
}

// Receives tensor `i` of the stream; `give_up_ns` bounds the wait.
static bl_status_t take(stage_t *stage, uint32_t i, uint8_t *to, uint64_t give_up_ns, bl_error_t *err) {
  bl_status_t status =
      bl_transport_post_receive(stage->transport, 0, key_of(BL_FORWARD, i), to, ECHOES * TENSOR_BYTES, err);
  return status != BL_OK ? status
                         : bl_transport_wait_received(stage->transport, 0, key_of(BL_FORWARD, i), give_up_ns, err);
}

static void killed_peers_are_known_before_any_deadline(void **state) {
  (void)state;
  unsigned descriptors = count_descriptors(0), shared = count_entries("/dev/shm");
  uint8_t *to = malloc(ECHOES * TENSOR_BYTES);
  for (int round = 0; round < 6; round++) {
    char folder[] = "/tmp/ballast-test-XXXXXX";
    assert_non_null(mkdtemp(folder));
    stage_t stage;
    child_t child;
    bl_error_t err;
    parent_connect(&stage, &child, "stream", folder, round % 2 == 0 ? BL_PATH_SHM : BL_PATH_TCP);
    uint32_t i = 0;
    for (; i < 3; i++) {
      CHECK_OK(take(&stage, i, to, soon(), &err), err);
    }
    CHECK_OK(bl_transport_post_receive(stage.transport, 0, key_of(BL_FORWARD, i), to, ECHOES * TENSOR_BYTES, &err),
             err);
    kill(child.pid, SIGKILL); // the transfer of tensor 3 is under way
    bl_status_t status = bl_transport_wait_received(stage.transport, 0, key_of(BL_FORWARD, i), soon(), &err);
    while (status == BL_OK) { // it may have been whole already
      status = take(&stage, ++i, to, soon(), &err);
    }
    assert_int_equal(status, BL_UNAVAILABLE); // and not BL_DEADLINE: it is seen, not waited for
    assert_non_null(strstr(err.text, "stage 0 closed the connection: it ended or was killed"));
    assert_true(WIFSIGNALED(child_end(&child)));
    char left[112];
    snprintf(left, sizeof left, "%s/0.sock", folder);
    unlink(left); // a killed process cannot; run folders are removed by who made them
    stage_close(&stage);
    assert_int_equal(rmdir(folder), 0);
  }
  free(to);
  assert_int_equal(count_descriptors(0), descriptors);
  assert_int_equal(count_entries("/dev/shm"), shared);
}

// Who reads a peer's arena goes on when the peer is killed, and reads what it left.
static void killed_peers_leave_their_arenas(void **state) {
  (void)state;
  for (int round = 0; round < 4; round++) {
    char folder[] = "/tmp/ballast-test-XXXXXX";
    assert_non_null(mkdtemp(folder));
    stage_t stage;
    child_t child;
    bl_error_t err;
    const uint8_t *base = NULL;
    uint64_t bytes = 0, passes = 0, others = 0;
    parent_connect(&stage, &child, "fill", folder, BL_PATH_SHM);
    CHECK_OK(bl_transport_peer_arena(stage.transport, 0, 0, &base, &bytes, &err), err);
    assert_int_equal(bytes, ECHOES * TENSOR_BYTES);
    for (bool live = true; live; passes++) {
      live = bl_transport_peer_arenas_live(stage.transport, 0); // and a pass after its end
      for (uint64_t i = 0; i < bytes; i++) {
        others += base[i] != FILLED;
      }
      if (passes == 0) {
        kill(child.pid, SIGKILL);
      }
    }
    assert_true(passes >= 2);
    assert_int_equal(others, 0);
    assert_true(WIFSIGNALED(child_end(&child)));
    char left[112];
    snprintf(left, sizeof left, "%s/0.sock", folder);
    unlink(left);
    stage_close(&stage);
    assert_int_equal(rmdir(folder), 0);
  }
}

static void stopped_peers_only_cost_time(void **state) {
  (void)state;
  uint8_t *to = malloc(ECHOES * TENSOR_BYTES);
  for (bl_path_t path = BL_PATH_SHM; path <= BL_PATH_TCP; path++) {
    char folder[] = "/tmp/ballast-test-XXXXXX";
    assert_non_null(mkdtemp(folder));
    stage_t stage;
    child_t child;
    bl_error_t err;
    parent_connect(&stage, &child, "stream", folder, path);
    CHECK_OK(take(&stage, 0, to, soon(), &err), err);
    kill(child.pid, SIGSTOP);
    bl_status_t status = BL_OK;
    uint32_t i = 0;
    while (status == BL_OK) { // what it had offered before may still come
      status = take(&stage, ++i, to, bl_clock_now_ns() + 200ull * BL_NS_PER_MS, &err);
    }
    assert_int_equal(status, BL_DEADLINE);
    kill(child.pid, SIGCONT);
    CHECK_OK(bl_transport_wait_received(stage.transport, 0, key_of(BL_FORWARD, i), soon(), &err), err);
    kill(child.pid, SIGKILL);
    child_end(&child);
    char left[112];
    snprintf(left, sizeof left, "%s/0.sock", folder);
    unlink(left);
    stage_close(&stage);
    assert_int_equal(rmdir(folder), 0);
  }
  free(to);
}

int main(int argc, char **argv) {
  if (argc == 5 && strcmp(argv[1], "child") == 0) {
    return run_child(argv + 2);
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tensors_go_there_and_back),
      cmocka_unit_test(killed_peers_are_known_before_any_deadline),
      cmocka_unit_test(killed_peers_leave_their_arenas),
      cmocka_unit_test(stopped_peers_only_cost_time),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
