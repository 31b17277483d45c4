// SPDX-License-Identifier: Apache-2.0
// Verifies what happens around calls: shutdown with calls in flight, channels that go away, addresses that are taken,
// sockets left behind, garbage on a port.
#include "echo_world.h"
#include "rpc/channel.h"
#include "sys/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64];

static int make_folder(void **state) {
  (void)state;
  snprintf(folder, sizeof folder, "/tmp/ballast-rpc-XXXXXX");
  return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state) {
  (void)state;
  return rmdir(folder); // fails when a test left something behind
}

static void shutdown_lets_calls_finish(void **state) {
  (void)state;
  world_t world;
  outcome_t outcome;
  world_init(&world, "127.0.0.1:0", NULL);
  world_start(&world, "Later", &(echo_request_t){.text = "done", .delay_ms = 100}, 100000, &outcome);
  world_wait_for(&world, &world.echo.arrived, 1);
  world_stop_server(&world, 100000);
  world_wait(&world, &outcome);
  assert_string_equal(outcome.err.text, "");
  assert_string_equal(outcome.text, "done");
  assert_int_equal(world.echo.cancelled, 0);
  world_cleanup(&world);
}

static void shutdown_cancels_what_does_not_finish(void **state) {
  (void)state;
  world_t world;
  outcome_t unary, stream = {.hold_at = 1};
  world_init(&world, "127.0.0.1:0", NULL);
  world_start(&world, "Hang", &(echo_request_t){0}, 100000, &unary);
  world_start_stream(&world, "Count", &(echo_request_t){.count = 1000000, .payload_bytes = 65536}, 100000, &stream);
  world_wait_for(&world, &world.echo.arrived, 2);
  uint64_t start_ns = bl_clock_now_ns();
  world_stop_server(&world, 50);
  assert_in_range((bl_clock_now_ns() - start_ns) / BL_NS_PER_MS, 40, 50000);
  assert_int_equal(world.echo.cancelled, 2);
  world_wait(&world, &unary);
  assert_int_equal(stream.done, 0); // its end comes after the messages that were not read yet
  bl__rpc_request_resume(stream.request);
  world_wait(&world, &stream);
  assert_int_equal(unary.err.status, BL_UNAVAILABLE); // nobody gave it up
  assert_int_equal(stream.err.status, BL_UNAVAILABLE);
  outcome_t outcome;
  world_call(&world, "Say", &(echo_request_t){0}, 5000, &outcome); // nobody listens any more
  assert_int_equal(outcome.err.status, BL_UNAVAILABLE);
  world_cleanup(&world);
}

static void destroying_a_channel_answers_its_requests(void **state) {
  (void)state;
  world_t world;
  outcome_t unary, stream = {.hold_at = 1};
  world_init(&world, "127.0.0.1:0", NULL);
  world_start(&world, "Hang", &(echo_request_t){0}, 100000, &unary);
  world_start_stream(&world, "Count", &(echo_request_t){.count = 1000000, .payload_bytes = 65536}, 100000, &stream);
  world_wait_for(&world, &stream.messages, 1);
  bl_rpc_channel_destroy(world.channel);
  world.channel = NULL;
  assert_int_equal(unary.done, 1);
  assert_int_equal(stream.done, 1);
  assert_int_equal(unary.err.status, BL_CANCELLED);
  assert_int_equal(stream.err.status, BL_CANCELLED);
  world_wait_for(&world, &world.echo.cancelled, 2);
  assert_int_equal(unary.done, 1);
  world_cleanup(&world);
}

typedef struct closer {
  world_t *world;
  unsigned messages;
  unsigned done;
} closer_t;

static void close_channel(world_t *world) {
  bl_rpc_channel_t *channel = world->channel;
  world->channel = NULL; // its requests end inside, and come here again
  bl_rpc_channel_destroy(channel);
}

static void close_in_message(const ProtobufCMessage *output, void *context) {
  closer_t *closer = context;
  closer->messages++;
  close_channel(closer->world);
  assert_int_equal(echo_read_response(output).index, 0); // still readable
}

static void close_in_done(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  (void)err;
  closer_t *closer = context;
  closer->done++;
  close_channel(closer->world);
  if (output != NULL) {
    assert_string_equal(echo_read_response(output).text, "still here");
  }
}

static void a_channel_may_be_destroyed_in_its_callbacks(void **state) {
  (void)state;
  world_t world;
  closer_t closer = {.world = &world};
  world_init(&world, "127.0.0.1:0", NULL);
  assert_int_equal(echo_start(world.channel, "Say", &(echo_request_t){.text = "still here"}, 100000, close_in_done,
                              &closer, NULL, NULL),
                   BL_OK);
  world_wait_for(&world, &closer.done, 1);
  assert_int_equal(bl_rpc_channel_create(world.rpc, world.echo.address, NULL, &world.channel, NULL), BL_OK);
  closer.done = 0;
  assert_int_equal(echo_start_stream(world.channel, "Count", &(echo_request_t){.count = 5}, 100000, close_in_message,
                                     close_in_done, &closer, NULL, NULL),
                   BL_OK);
  world_wait_for(&world, &closer.messages, 1);
  world_run_for(&world, 20);
  assert_int_equal(closer.messages, 1);
  assert_int_equal(closer.done, 1);
  world_cleanup(&world);
}

static void a_server_that_never_served_can_go(void **state) {
  (void)state;
  world_t world;
  bl_rpc_server_t *server;
  char address[BL_RPC_ADDRESS_BYTES];
  bl_error_t err;
  world_init(&world, NULL, NULL);
  assert_int_equal(bl_rpc_server_create(world.rpc, NULL, &server, &err), BL_OK);
  assert_int_equal(bl_rpc_server_start(server, &err), BL_PRECONDITION);
  snprintf(address, sizeof address, "unix:%s/unused", folder);
  assert_int_equal(bl_rpc_server_listen(server, address, NULL, 0, &err), BL_OK);
  bl_rpc_server_destroy(server);
  world_cleanup(&world);
}

// ---- addresses -----------------------------------------------------------------------------------------------------

static bl_status_t try_listen(world_t *world, const char *address, bl_error_t *err) {
  bl_rpc_server_t *server;
  assert_int_equal(bl_rpc_server_create(world->rpc, NULL, &server, err), BL_OK);
  bl_status_t status = bl_rpc_server_listen(server, address, NULL, 0, err);
  bl_rpc_server_destroy(server);
  return status;
}

static void a_second_server_is_refused(void **state) {
  (void)state;
  world_t world;
  bl_error_t err;
  outcome_t outcome;
  world_init(&world, "127.0.0.1:0", NULL);
  assert_int_equal(try_listen(&world, world.echo.address, &err), BL_PRECONDITION);
  assert_non_null(strstr(err.text, world.echo.address));
  assert_non_null(strstr(err.text, "another process listens there"));
  world_cleanup(&world);

  char address[BL_RPC_ADDRESS_BYTES];
  snprintf(address, sizeof address, "unix:%s/s", folder);
  world_init(&world, address, NULL);
  assert_int_equal(try_listen(&world, address, &err), BL_PRECONDITION);
  assert_non_null(strstr(err.text, "alive"));
  world_call(&world, "Say", &(echo_request_t){.text = "mine"}, 5000, &outcome); // not stolen
  assert_string_equal(outcome.text, "mine");
  struct stat status;
  assert_int_equal(stat(address + 5, &status), 0);
  assert_int_equal(status.st_mode & 0777, 0600);
  world_cleanup(&world);
  assert_int_equal(access(address + 5, F_OK), -1);
}

static int bind_socket(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  memcpy(address.sun_path, path, strlen(path) + 1);
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
  return fd;
}

static void only_dead_sockets_are_replaced(void **state) {
  (void)state;
  world_t world;
  bl_error_t err;
  char address[BL_RPC_ADDRESS_BYTES];
  const char *path = address + 5;
  snprintf(address, sizeof address, "unix:%s/left", folder);
  int fd = bind_socket(path);
  assert_int_equal(listen(fd, 1), 0); // somebody who takes no lock, but lives
  world_init(&world, NULL, NULL);
  assert_int_equal(try_listen(&world, address, &err), BL_PRECONDITION);
  assert_non_null(strstr(err.text, "answers"));
  assert_int_equal(access(path, F_OK), 0);
  close(fd); // dies
  assert_int_equal(try_listen(&world, address, &err), BL_OK);
  assert_int_equal(access(path, F_OK), -1);

  FILE *file = fopen(path, "w"); // never remove what is not a socket
  assert_non_null(file);
  fclose(file);
  assert_int_equal(try_listen(&world, address, &err), BL_PRECONDITION);
  assert_int_equal(access(path, F_OK), 0);
  unlink(path);
  world_cleanup(&world);
}

static void bad_addresses_are_explained(void **state) {
  (void)state;
  world_t world;
  bl_error_t err;
  bl_rpc_channel_t *channel;
  world_init(&world, NULL, NULL);
  static const char *const bad[] = {"", "host", "host:", ":80", "host:99999", "host:80x", "::1:80", "unix:relative"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    assert_int_equal(bl_rpc_channel_create(world.rpc, bad[i], NULL, &channel, &err), BL_INVALID);
    assert_non_null(strstr(err.text, bad[i]));
    assert_int_equal(try_listen(&world, bad[i], &err), BL_INVALID);
  }
  char address[BL_RPC_ADDRESS_BYTES];
  snprintf(address, sizeof address, "unix:%s/%0150d", folder, 0);
  assert_int_equal(try_listen(&world, address, &err), BL_INVALID);
  snprintf(address, sizeof address, "unix:%s/nowhere/s", folder);
  assert_int_equal(try_listen(&world, address, &err), BL_NOT_FOUND);
  bl_rpc_secure(world.rpc, &(bl_rpc_security_t){.plaintext_ok = true});
  assert_int_equal(try_listen(&world, "192.0.2.1:0", &err), BL_IO); // not an address of this machine
  assert_non_null(strstr(err.text, "192.0.2.1:0"));
  world_cleanup(&world);
}

static void names_and_ipv6_work(void **state) {
  (void)state;
  static const char *const addresses[] = {"localhost:0", "[::1]:0"};
  for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
    world_t world;
    bl_error_t err;
    outcome_t outcome;
    world_init(&world, NULL, NULL);
    if (try_listen(&world, addresses[i], &err) != BL_OK) {
      print_message("skipped %s: %s\n", addresses[i], err.text);
      world_cleanup(&world);
      continue;
    }
    world_cleanup(&world);
    world_init(&world, addresses[i], NULL);
    world_call(&world, "Say", &(echo_request_t){.text = "hi"}, 100000, &outcome);
    assert_string_equal(outcome.err.text, "");
    assert_string_equal(outcome.text, "hi");
    world_cleanup(&world);
  }
}

// ---- garbage -------------------------------------------------------------------------------------------------------

static int connect_to(const char *address) {
  const char *port = strrchr(address, ':') + 1;
  struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&peer, sizeof peer), 0);
  return fd;
}

static void garbage_on_the_port_harms_nobody(void **state) {
  (void)state;
  world_t world;
  outcome_t outcome;
  world_init(&world, "127.0.0.1:0", NULL);
  static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  char garbage[4096];
  uint32_t x = 12345;
  for (unsigned round = 0; round < 20; round++) {
    int fd = connect_to(world.echo.address);
    for (size_t i = 0; i < sizeof garbage; i++) {
      x = x * 1664525 + 1013904223;
      garbage[i] = (char)(x >> 24);
    }
    if (round % 2 == 0) { // frames of garbage after a good start
      memcpy(garbage, preface, sizeof preface - 1);
    }
    ssize_t written = send(fd, garbage, sizeof garbage, MSG_NOSIGNAL);
    assert_true(written > 0 || errno == EPIPE || errno == ECONNRESET);
    close(fd);
    world_call(&world, "Say", &(echo_request_t){.text = "fine"}, 5000, &outcome);
    assert_string_equal(outcome.text, "fine");
  }
  world_cleanup(&world);
}

// A listener that never speaks, as a wrong port or a hung machine: the connect timeout ends the call, not its deadline.
static void a_mute_peer_is_unavailable(void **state) {
  (void)state;
  world_t world;
  outcome_t outcome;
  struct sockaddr_in self = {.sin_family = AF_INET};
  socklen_t size = sizeof self;
  self.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&self, sizeof self), 0);
  assert_int_equal(listen(fd, 4), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&self, &size), 0);
  char address[64];
  snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(self.sin_port));
  world_init(&world, NULL, NULL);
  const bl_rpc_channel_options_t options = {.connect_timeout_ms = 300};
  assert_int_equal(bl_rpc_channel_create(world.rpc, address, &options, &world.channel, NULL), BL_OK);
  uint64_t start_ns = bl_clock_now_ns();
  world_call(&world, "Say", &(echo_request_t){0}, 100000, &outcome);
  assert_int_equal(outcome.err.status, BL_UNAVAILABLE);
  assert_ptr_equal(strstr(outcome.err.text, address), outcome.err.text);
  assert_in_range((bl_clock_now_ns() - start_ns) / BL_NS_PER_MS, 250, 50000);
  world_cleanup(&world);
  close(fd);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(shutdown_lets_calls_finish),
      cmocka_unit_test(shutdown_cancels_what_does_not_finish),
      cmocka_unit_test(destroying_a_channel_answers_its_requests),
      cmocka_unit_test(a_channel_may_be_destroyed_in_its_callbacks),
      cmocka_unit_test(a_server_that_never_served_can_go),
      cmocka_unit_test(a_second_server_is_refused),
      cmocka_unit_test(only_dead_sockets_are_replaced),
      cmocka_unit_test(bad_addresses_are_explained),
      cmocka_unit_test(names_and_ipv6_work),
      cmocka_unit_test(garbage_on_the_port_harms_nobody),
      cmocka_unit_test(a_mute_peer_is_unavailable),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
