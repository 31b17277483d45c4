// SPDX-License-Identifier: Apache-2.0
// Verifies that a probe takes a peer that ends right after the handshake for one that refuses our certificate only if it
// does so twice: a server of gRPC refuses without a word, a process that was killed does not listen any more.
#include "authority.h"
#include "tls/probe.h"
#include "tls/session.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define LIMIT_MS 60000

typedef struct server {
  bl_tls_t *tls;
  int listener, ends; // how many connections it ends before it listens no more
} server_t;

static void *serve(void *context) {
  server_t *self = context;
  struct pollfd waiting = {.fd = self->listener, .events = POLLIN};
  for (; self->ends > 0 && poll(&waiting, 1, LIMIT_MS) == 1; self->ends--) {
    bl_tls_session_t *session = NULL;
    const int fd = accept(self->listener, NULL, NULL);
    if (bl_tls_session_create(self->tls, fd, true, BL_EVERY_ROLE, &session, NULL) == BL_OK) {
      (void)bl_tls_session_handshake(session); // the socket blocks
    }
    shutdown(fd, SHUT_RDWR);
    bl_tls_session_destroy(session);
    close(fd);
  }
  close(self->listener);
  return NULL;
}

static void expect(int ends, bl_status_t status, const char *part) {
  authority_t ours;
  authority_init(&ours, "stage");
  server_t server = {.tls = authority_tls(&ours, "stage"), .ends = ends};
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof at;
  char port[8];
  pthread_t thread;
  bl_error_t err = {0};
  server.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(server.listener, (const struct sockaddr *)&at, sizeof at), 0);
  assert_int_equal(listen(server.listener, 4), 0);
  assert_int_equal(getsockname(server.listener, (struct sockaddr *)&at, &length), 0);
  snprintf(port, sizeof port, "%d", ntohs(at.sin_port));
  assert_int_equal(pthread_create(&thread, NULL, serve, &server), 0);
  const bl_tls_probe_t probe = {.host = "127.0.0.1", .port = port, .roles = BL_EVERY_ROLE};
  const bl_status_t got = bl_tls_probe(server.tls, &probe, LIMIT_MS, &err);
  pthread_join(thread, NULL);
  if (got != status || strstr(err.text, part) == NULL) {
    fail_msg("%s: '%s'; wanted %s with '%s'", bl_status_name(got), err.text, bl_status_name(status), part);
  }
  bl_tls_release(server.tls);
  authority_cleanup(&ours);
}

static void an_end_is_no_refusal(void **state) {
  (void)state;
  expect(1, BL_UNAVAILABLE, "");
}

static void two_ends_are_one(void **state) {
  (void)state;
  expect(2, BL_UNAUTHENTICATED, "or it refuses this program's certificate");
}

int main(void) {
  signal(SIGPIPE, SIG_IGN);
  const struct CMUnitTest tests[] = {cmocka_unit_test(an_end_is_no_refusal), cmocka_unit_test(two_ends_are_one)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
