// SPDX-License-Identifier: Apache-2.0
// Verifies two stages that see different machines: network namespaces joined by a veth pair, each with a /dev/shm and a
// run folder of its own. `auto` must reach tcp by itself, also when the machine texts wrongly agree; without leave to
// send plaintext it must refuse. Needs the right to make namespaces; otherwise the program is skipped (exit 77).
#include "child.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>

#define TENSOR_BYTES (5ull << 20)

static const char *const hosts[2] = {"10.213.77.1", "10.213.77.2"};
static char names[2][32];

// One order for a child: connect in this way, then move one tensor from stage 0 to stage 1.
typedef struct {
  contact_t peer;
  uint64_t attempt;
} order_t;

typedef struct {
  bl_status_t status;
  bl_path_t path;
  char text[BL_ERROR_TEXT_BYTES]; // the reason of the path, or what went wrong
} answer_t;

static const bl_tensor_key_t key = {.boundary = 2, .direction = BL_FORWARD};

static bl_status_t obey(bl_transport_t *transport, int stage, bl_arena_t *arena, const order_t *order,
                        bl_error_t *err) {
  bl_transport_peer_t peer;
  contact_peer(&order->peer, !stage, &peer);
  bl_status_t status =
      bl_transport_connect_wait(transport, &peer, 1, BL_PATH_AUTO, bl_clock_now_ns() + 5ull * BL_NS_PER_S, err);
  if (status != BL_OK || (status = bl_transport_begin(transport, order->attempt, err)) != BL_OK) {
    return status;
  }
  if (stage == 0) {
    pattern_fill(arena->base, TENSOR_BYTES, order->attempt);
    status = bl_transport_post_send(transport, 1, key, arena->base, TENSOR_BYTES, err);
    return status != BL_OK ? status : bl_transport_wait_sent(transport, 1, key, soon(), err);
  }
  uint8_t *to = malloc(TENSOR_BYTES), *want = malloc(TENSOR_BYTES);
  pattern_fill(want, TENSOR_BYTES, order->attempt);
  status = bl_transport_post_receive(transport, 0, key, to, TENSOR_BYTES, err);
  status = status != BL_OK ? status : bl_transport_wait_received(transport, 0, key, soon(), err);
  if (status == BL_OK && memcmp(to, want, TENSOR_BYTES) != 0) {
    status = bl_error_set(err, BL_DATA_LOSS, "the tensor differs");
  }
  free(to);
  free(want);
  return status;
}

// child STAGE MACHINE PLAINTEXT, inside its network namespace
static int run_child(char **arguments) {
  int stage = atoi(arguments[0]);
  bl_arena_t arena;
  bl_transport_t *transport;
  bl_error_t err = {0};
  // What is private to a host: shared memory and the folder of sockets.
  if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
      mount("none", "/dev/shm", "tmpfs", 0, NULL) != 0 || mount("none", "/tmp", "tmpfs", 0, NULL) != 0) {
    return 1;
  }
  CHILD_OK(bl_arena_create(bl_device_host(), NULL, BL_MEMORY_EDGES, BL_ARENA_SHAREABLE, TENSOR_BYTES, &arena, &err),
           err);
  bl_transport_options_t options = {.stage = stage,
                                    .unix_path = stage == 0 ? "/tmp/0.sock" : "/tmp/1.sock",
                                    .tcp_host = hosts[stage],
                                    .arenas = &arena,
                                    .arena_count = 1,
                                    .machine = arguments[1][0] != '\0' ? arguments[1] : NULL,
                                    .plaintext_ok = strcmp(arguments[2], "plaintext") == 0};
  answer_t answer = {.status = bl_transport_create(&options, &transport, &err)};
  contact_t contact = {0};
  if (answer.status == BL_OK) {
    contact_fill(&contact, transport);
  }
  memcpy(answer.text, err.text, sizeof answer.text);
  order_t order;
  if (!TELL(STDOUT_FILENO, answer) || !TELL(STDOUT_FILENO, contact) || answer.status != BL_OK) {
    return 0;
  }
  while (HEAR(STDIN_FILENO, order)) {
    bl_transport_path_t shown = {0};
    answer = (answer_t){.status = obey(transport, stage, &arena, &order, &err)};
    if (bl_transport_paths(transport, &shown, 1) == 1) {
      answer.path = shown.path;
    }
    snprintf(answer.text, sizeof answer.text, "%s", answer.status == BL_OK ? shown.reason : err.text);
    if (!TELL(STDOUT_FILENO, answer)) {
      break;
    }
  }
  bl_transport_destroy(transport);
  bl_arena_destroy(&arena);
  return 0;
}

static int shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int shell(const char *format, ...) {
  char command[512];
  va_list args;
  va_start(args, format);
  vsnprintf(command, sizeof command, format, args);
  va_end(args);
  return system(command);
}

static void remove_namespaces(void) {
  for (int i = 0; i < 2; i++) {
    shell("ip netns del %s 2>/dev/null", names[i]); // takes the veth pair with it
  }
}

static bool make_namespaces(void) {
  for (int i = 0; i < 2; i++) {
    snprintf(names[i], sizeof names[i], "ballast-%d-%d", (int)getpid(), i);
    if (shell("ip netns add %s 2>/dev/null", names[i]) != 0) {
      return false;
    }
  }
  if (shell("ip -n %s link add v0 type veth peer name v1 netns %s 2>/dev/null", names[0], names[1]) != 0) {
    return false;
  }
  for (int i = 0; i < 2; i++) {
    if (shell("ip -n %s addr add %s/24 dev v%d && ip -n %s link set v%d up && ip -n %s link set lo up", names[i],
              hosts[i], i, names[i], i, names[i]) != 0) {
      return false;
    }
  }
  return true;
}

static void start(child_t children[2], const char *machine, const char *plaintext, answer_t answers[2],
                  contact_t contacts[2]) {
  char program[256];
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  assert_true(length > 0);
  program[length] = '\0';
  for (int i = 0; i < 2; i++) {
    const char *const arguments[] = {"ip",    "netns",   "exec", names[i], program, "child", i == 0 ? "0" : "1",
                                     machine, plaintext, NULL};
    child_start(&children[i], arguments);
  }
  for (int i = 0; i < 2; i++) {
    assert_true(HEAR(children[i].from, answers[i]));
    assert_true(HEAR(children[i].from, contacts[i]));
  }
}

static void expect_tcp(const char *machine, const char *reason) {
  child_t children[2];
  answer_t answers[2];
  contact_t contacts[2];
  start(children, machine, "plaintext", answers, contacts);
  for (uint64_t attempt = 1; attempt <= 2; attempt++) {
    for (int i = 0; i < 2; i++) {
      order_t order = {.peer = contacts[!i], .attempt = attempt};
      assert_int_equal(answers[i].status, BL_OK);
      assert_true(TELL(children[i].to, order));
    }
    for (int i = 0; i < 2; i++) {
      assert_true(HEAR(children[i].from, answers[i]));
      if (answers[i].status != BL_OK || strncmp(answers[i].text, reason, strlen(reason)) != 0) {
        fail_msg("stage %d: %s: %s, expected %s", i, bl_status_name(answers[i].status), answers[i].text, reason);
      }
      assert_int_equal(answers[i].path, BL_PATH_TCP);
    }
  }
  for (int i = 0; i < 2; i++) {
    assert_int_equal(child_end(&children[i]), 0);
  }
}

static void other_machines_are_reached_by_tcp(void **state) {
  (void)state;
  expect_tcp("", "tcp: peer is on another machine");
}

static void agreeing_texts_do_not_mislead(void **state) {
  (void)state;
  expect_tcp("the same/1", "tcp: shm failed: connect to unix:/tmp/1.sock: ");
}

static void plaintext_needs_leave(void **state) {
  (void)state;
  child_t children[2];
  answer_t answers[2];
  contact_t contacts[2];
  start(children, "", "refuse", answers, contacts);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(answers[i].status, BL_DENIED);
    assert_non_null(strstr(answers[i].text, "not encrypted"));
    child_end(&children[i]);
  }
}

int main(int argc, char **argv) {
  if (argc == 5 && strcmp(argv[1], "child") == 0) {
    return run_child(argv + 2);
  }
  if (!make_namespaces()) {
    remove_namespaces();
    printf("skipped: network namespaces cannot be made here (root and iproute2 are needed)\n");
    return 77;
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(other_machines_are_reached_by_tcp),
      cmocka_unit_test(agreeing_texts_do_not_mislead),
      cmocka_unit_test(plaintext_needs_leave),
  };
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  remove_namespaces();
  return failed;
}
