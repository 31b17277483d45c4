// SPDX-License-Identifier: Apache-2.0
// Verifies what a client sees when a server process is killed and comes back: a prompt BL_UNAVAILABLE that names the
// peer, a health watch that notices at once, and a channel that connects again by itself.
#include "echo_world.h"
#include "health_watch.h"
#include "loop/child.h"
#include "sys/clock.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

// A death must be known long before any timeout of ours; the bound leaves room for sanitizers and a busy machine.
#define PROMPT_MS 50000

typedef struct process {
  bl_child_t *child;
  unsigned ready;
  unsigned exited;
  int exit_code;
  int term_signal;
  char address[BL_RPC_ADDRESS_BYTES];
  char health_address[BL_RPC_ADDRESS_BYTES];
} process_t;

static void on_ready(bl_child_t *child, const char *line, void *context) {
  (void)child;
  process_t *process = context;
  if (line != NULL) {
    assert_int_equal(sscanf(line, "ready %255s %255s", process->address, process->health_address), 2);
    process->ready++;
  }
}

static void on_exit_child(bl_child_t *child, int exit_code, int term_signal, void *context) {
  (void)child;
  process_t *process = context;
  process->exited++;
  process->exit_code = exit_code;
  process->term_signal = term_signal;
}

static void start_process(world_t *world, process_t *process, const char *address, const char *health_address) {
  memset(process, 0, sizeof *process);
  const char *argv[] = {BALLAST_BINARY_DIR "/tests/rpc_echo_server",
                        address,
                        health_address,
                        BL_CHILD_LIFELINE_FD_TEXT,
                        BL_CHILD_READY_FD_TEXT,
                        NULL};
  const bl_child_options_t options = {
      .argv = argv, .lifeline = true, .on_ready = on_ready, .on_exit = on_exit_child, .context = process};
  bl_error_t err;
  assert_int_equal(bl_child_create(world->loop, &options, &process->child, &err), BL_OK);
}

static void kill_process(world_t *world, process_t *process) {
  assert_int_equal(bl_child_kill(process->child, SIGKILL), BL_OK);
  world_wait_for(world, &process->exited, 1);
  assert_int_equal(process->term_signal, SIGKILL);
  bl_child_destroy(process->child);
}

static void wait_until_answered(world_t *world, uint64_t limit_ms) {
  outcome_t outcome;
  uint64_t start_ns = bl_clock_now_ns();
  do {
    world_call(world, "Say", &(echo_request_t){.text = "back"}, 5000, &outcome);
    if (outcome.err.status != BL_OK) {
      assert_int_equal(outcome.err.status, BL_UNAVAILABLE);
      world_run_for(world, 20);
    }
    assert_in_range((bl_clock_now_ns() - start_ns) / BL_NS_PER_MS, 0, limit_ms);
  } while (outcome.err.status != BL_OK);
  assert_string_equal(outcome.text, "back");
}

// Kills the server with a unary call and a stream in flight, then starts it again at the same address.
static void check_kill_and_return(const char *address) {
  world_t world;
  process_t process;
  outcome_t unary, stream = {.hold_at = 1};
  world_init(&world, NULL, NULL);
  start_process(&world, &process, address, "127.0.0.1:0");
  world_wait_for(&world, &process.ready, 1);
  char taken[BL_RPC_ADDRESS_BYTES];
  memcpy(taken, process.address, sizeof taken);
  assert_int_equal(bl_rpc_channel_create(world.rpc, taken, NULL, &world.channel, NULL), BL_OK);
  wait_until_answered(&world, 100000);
  world_start(&world, "Hang", &(echo_request_t){0}, 100000, &unary);
  world_start_stream(&world, "Count", &(echo_request_t){.count = 1000000, .payload_bytes = 65536}, 100000, &stream);
  world_wait_for(&world, &stream.messages, 1);

  uint64_t start_ns = bl_clock_now_ns();
  kill_process(&world, &process);
  world_wait(&world, &unary);
  world_wait(&world, &stream);
  assert_in_range((bl_clock_now_ns() - start_ns) / BL_NS_PER_MS, 0, PROMPT_MS);
  assert_int_equal(unary.err.status, BL_UNAVAILABLE);
  assert_int_equal(stream.err.status, BL_UNAVAILABLE);
  assert_ptr_equal(strstr(unary.err.text, taken), unary.err.text); // begins with the address
  assert_non_null(strstr(unary.err.text, "Hang"));

  outcome_t refused;
  start_ns = bl_clock_now_ns();
  world_call(&world, "Say", &(echo_request_t){0}, 100000, &refused);
  assert_in_range((bl_clock_now_ns() - start_ns) / BL_NS_PER_MS, 0, PROMPT_MS);
  assert_int_equal(refused.err.status, BL_UNAVAILABLE);
  assert_non_null(strstr(refused.err.text, taken));

  start_process(&world, &process, taken, "127.0.0.1:0"); // a unix socket was left behind by the kill
  world_wait_for(&world, &process.ready, 1);
  wait_until_answered(&world, 100000);
  kill_process(&world, &process);
  world_cleanup(&world);
  if (strncmp(taken, "unix:", 5) == 0) {
    char lock[BL_RPC_ADDRESS_BYTES + 8];
    snprintf(lock, sizeof lock, "%s.lock", taken + 5);
    unlink(taken + 5);
    unlink(lock);
  }
}

static void a_killed_server_is_unavailable_at_once_tcp(void **state) {
  (void)state;
  check_kill_and_return("127.0.0.1:0");
}

static void a_killed_server_is_unavailable_at_once_unix(void **state) {
  (void)state;
  char folder[] = "/tmp/ballast-rpc-XXXXXX", address[BL_RPC_ADDRESS_BYTES];
  assert_non_null(mkdtemp(folder));
  snprintf(address, sizeof address, "unix:%s/s", folder);
  check_kill_and_return(address);
  assert_int_equal(rmdir(folder), 0);
}

// A process that stops without its sockets closing, as a machine that loses power does, is found by keepalive.
static void a_silent_server_is_found_by_keepalive(void **state) {
  (void)state;
  world_t world;
  process_t process;
  outcome_t outcome;
  world_init(&world, NULL, NULL);
  start_process(&world, &process, "127.0.0.1:0", "127.0.0.1:0");
  world_wait_for(&world, &process.ready, 1);
  const bl_rpc_channel_options_t options = {.keepalive_ms = 1500, .keepalive_timeout_ms = 500};
  assert_int_equal(bl_rpc_channel_create(world.rpc, process.address, &options, &world.channel, NULL), BL_OK);
  wait_until_answered(&world, 100000);
  world_start(&world, "Hang", &(echo_request_t){0}, 100000, &outcome);
  assert_int_equal(bl_child_kill(process.child, SIGSTOP), BL_OK);
  uint64_t start_ns = bl_clock_now_ns();
  world_wait(&world, &outcome);
  assert_int_equal(outcome.err.status, BL_UNAVAILABLE);
  assert_in_range((bl_clock_now_ns() - start_ns) / BL_NS_PER_MS, 0, PROMPT_MS);
  kill_process(&world, &process);
  world_cleanup(&world);
}

static void a_second_process_at_the_address_is_refused(void **state) {
  (void)state;
  world_t world;
  process_t first, second;
  world_init(&world, NULL, NULL);
  start_process(&world, &first, "127.0.0.1:0", "127.0.0.1:0");
  world_wait_for(&world, &first.ready, 1);
  start_process(&world, &second, first.address, "127.0.0.1:0");
  world_wait_for(&world, &second.exited, 1);
  assert_int_equal(second.exit_code, 3);
  assert_int_equal(second.ready, 0);
  bl_child_destroy(second.child);
  kill_process(&world, &first);
  world_cleanup(&world);
}

// ---- health --------------------------------------------------------------------------------------------------------

typedef struct seen {
  unsigned count;
  unsigned unreachable;
  unsigned serving;
  bl_rpc_health_state_t last;
  char text[BL_ERROR_TEXT_BYTES];
} seen_t;

static void on_health(bl_rpc_health_state_t state, const bl_error_t *err, void *context) {
  seen_t *seen = context;
  seen->count++;
  seen->last = state;
  seen->unreachable += state == BL_RPC_HEALTH_UNREACHABLE;
  seen->serving += state == BL_RPC_HEALTH_SERVING;
  if (state == BL_RPC_HEALTH_UNREACHABLE) {
    memcpy(seen->text, err->text, sizeof seen->text);
  }
}

static void a_watch_sees_death_and_return(void **state) {
  (void)state;
  world_t world;
  process_t process;
  seen_t seen = {0};
  health_watch_t watch;
  world_init(&world, NULL, NULL);
  start_process(&world, &process, "127.0.0.1:0", "127.0.0.1:0");
  world_wait_for(&world, &process.ready, 1);
  char taken[BL_RPC_ADDRESS_BYTES];
  memcpy(taken, process.health_address, sizeof taken);
  assert_int_equal(bl_rpc_channel_create(world.rpc, taken, NULL, &world.channel, NULL), BL_OK);
  assert_int_equal(health_watch_start(&watch, world.channel, "", on_health, &seen), BL_OK);
  world_wait_for(&world, &seen.serving, 1);
  uint64_t start_ns = bl_clock_now_ns();
  kill_process(&world, &process);
  world_wait_for(&world, &seen.unreachable, 1);
  assert_in_range((bl_clock_now_ns() - start_ns) / BL_NS_PER_MS, 0, PROMPT_MS);
  assert_non_null(strstr(seen.text, taken));
  start_process(&world, &process, "127.0.0.1:0", taken);
  world_wait_for(&world, &process.ready, 1);
  assert_int_equal(health_watch_start(&watch, world.channel, "", on_health, &seen), BL_OK); // over the same channel
  world_wait_for(&world, &seen.serving, 2);
  assert_int_equal(seen.count, 3); // serving, unreachable, serving
  kill_process(&world, &process);
  world_cleanup(&world);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_killed_server_is_unavailable_at_once_tcp),
      cmocka_unit_test(a_killed_server_is_unavailable_at_once_unix),
      cmocka_unit_test(a_silent_server_is_found_by_keepalive),
      cmocka_unit_test(a_second_process_at_the_address_is_refused),
      cmocka_unit_test(a_watch_sees_death_and_return),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
