// SPDX-License-Identifier: Apache-2.0
// Verifies: requests are answered on the loop's thread with the right code, type and body; other methods, unknown
// paths, over-long paths and addresses that are none are refused; connections that clients keep do not lock others out;
// a stop with requests under way ends.
#include "observe/http.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

typedef struct fixture {
  bl_loop_t *loop;
  bl_http_t *http;
  char bound[BL_HTTP_ADDRESS_BYTES];
  unsigned port;
  int answered;
} fixture_t;

static void answer(const char *path, bl_http_answer_t *answer, void *context) {
  fixture_t *fixture = context;
  assert_true(bl_loop_is_current(fixture->loop));
  fixture->answered++;
  if (strcmp(path, "/metrics") == 0) {
    answer->type = BL_HTTP_TYPE_METRICS;
    answer->body = strdup("up 1\n");
    answer->body_bytes = 5;
  }
}

static int start(void **state) {
  static fixture_t fixture;
  bl_error_t err;
  fixture = (fixture_t){0};
  assert_int_equal(bl_loop_create(&fixture.loop, &err), BL_OK);
  assert_int_equal(bl_http_create(fixture.loop, "127.0.0.1:0", answer, &fixture, fixture.bound, &fixture.http, &err),
                   BL_OK);
  assert_int_equal(sscanf(fixture.bound, "127.0.0.1:%u", &fixture.port), 1);
  *state = &fixture;
  return 0;
}

static int stop(void **state) {
  fixture_t *fixture = *state;
  bl_http_destroy(fixture->http);
  bl_loop_destroy(fixture->loop);
  return 0;
}

static int connect_to(unsigned port) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  const struct timeval limit = {.tv_sec = 10}; // less than the silence after which the server closes a connection
  assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
  return fd;
}

typedef struct exchange {
  fixture_t *fixture;
  const char *request;
  char reply[4096];
} exchange_t;

static void *exchange_thread(void *context) {
  exchange_t *exchange = context;
  int fd = connect_to(exchange->fixture->port);
  assert_int_equal(write(fd, exchange->request, strlen(exchange->request)), strlen(exchange->request));
  size_t used = 0;
  ssize_t count;
  while ((count = read(fd, exchange->reply + used, sizeof exchange->reply - 1 - used)) > 0) {
    used += (size_t)count;
  }
  exchange->reply[used] = '\0';
  close(fd);
  bl_loop_stop(exchange->fixture->loop);
  return NULL;
}

static void talk(fixture_t *fixture, const char *request, exchange_t *exchange) {
  *exchange = (exchange_t){.fixture = fixture, .request = request};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, exchange_thread, exchange), 0);
  bl_loop_run(fixture->loop);
  pthread_join(thread, NULL);
}

#define CLOSE "Host: x\r\nConnection: close\r\n"

static void a_get_is_answered_on_the_loop(void **state) {
  fixture_t *fixture = *state;
  exchange_t exchange;
  talk(fixture, "GET /metrics?x=1 HTTP/1.1\r\n" CLOSE "\r\n", &exchange);
  assert_memory_equal(exchange.reply, "HTTP/1.1 200 OK\r\n", 17);
  assert_non_null(strstr(exchange.reply, "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  assert_non_null(strstr(exchange.reply, "\r\n\r\nup 1\n"));
  assert_int_equal(fixture->answered, 1);
  talk(fixture, "HEAD /metrics HTTP/1.1\r\n" CLOSE "\r\n", &exchange);
  assert_memory_equal(exchange.reply, "HTTP/1.1 200 OK\r\n", 17);
  assert_null(strstr(exchange.reply, "up 1"));
}

static void others_are_refused(void **state) {
  fixture_t *fixture = *state;
  exchange_t exchange;
  talk(fixture, "GET /nothing HTTP/1.1\r\n" CLOSE "\r\n", &exchange);
  assert_memory_equal(exchange.reply, "HTTP/1.1 404 ", 13);
  fixture->answered = 0;
  talk(fixture, "POST /metrics HTTP/1.1\r\n" CLOSE "Content-Length: 3\r\n\r\nabc", &exchange);
  assert_memory_equal(exchange.reply, "HTTP/1.1 405 ", 13);
  talk(fixture, "\1\2 garbage\r\n\r\n", &exchange);
  assert_int_equal(fixture->answered, 0);
  char request[2048] = "GET /";
  memset(request + 5, 'a', 1000);
  strcpy(request + 1005, " HTTP/1.1\r\n" CLOSE "\r\n");
  talk(fixture, request, &exchange);
  assert_memory_equal(exchange.reply, "HTTP/1.1 404 ", 13);
}

// As browsers do that keep connections for later.
static void *keeping_thread(void *context) {
  exchange_t *exchange = context;
  static const char request[] = "GET /page HTTP/1.1\r\nHost: x\r\n\r\n";
  int fds[BL_HTTP_CONNECTIONS];
  for (int i = 0; i < BL_HTTP_CONNECTIONS; i++) {
    char reply[512];
    fds[i] = connect_to(exchange->fixture->port);
    assert_int_equal(write(fds[i], request, sizeof request - 1), sizeof request - 1);
    assert_true(read(fds[i], reply, sizeof reply) > 0);
  }
  exchange_thread(context);
  for (int i = 0; i < BL_HTTP_CONNECTIONS; i++) {
    close(fds[i]);
  }
  return NULL;
}

static void connections_that_are_kept_take_no_place(void **state) {
  fixture_t *fixture = *state;
  exchange_t exchange = {.fixture = fixture, .request = "GET /metrics HTTP/1.1\r\n" CLOSE "\r\n"};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, keeping_thread, &exchange), 0);
  bl_loop_run(fixture->loop);
  pthread_join(thread, NULL);
  assert_memory_equal(exchange.reply, "HTTP/1.1 200 OK\r\n", 17);
}

// Nobody runs the loop: the request is handed over and waits. The stop must answer it, not hang.
static void a_stop_ends_waiting_requests(void **state) {
  fixture_t *fixture = *state;
  int fds[4];
  for (int i = 0; i < 4; i++) {
    static const char request[] = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    fds[i] = connect_to(fixture->port);
    assert_int_equal(write(fds[i], request, sizeof request - 1), sizeof request - 1);
  }
  bl_http_destroy(fixture->http);
  fixture->http = NULL;
  for (int i = 0; i < 4; i++) {
    char reply[512];
    while (read(fds[i], reply, sizeof reply) > 0) {
    }
    close(fds[i]);
  }
}

static void addresses_are_checked(void **state) {
  fixture_t *fixture = *state;
  bl_error_t err;
  char bound[BL_HTTP_ADDRESS_BYTES];
  bl_http_t *http;
  static const char *const wrong[] = {
      "", ":", "x", "127.0.0.1", "127.0.0.1:", "127.0.0.1:70000", "::1:80", "h:1x", "no.such.host.invalid:1"};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    assert_int_equal(bl_http_create(fixture->loop, wrong[i], answer, fixture, bound, &http, &err), BL_INVALID);
  }
  assert_int_equal(bl_http_create(fixture->loop, fixture->bound, answer, fixture, bound, &http, &err), BL_PRECONDITION);
  assert_non_null(strstr(err.text, "another process listens there"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_get_is_answered_on_the_loop, start, stop),
      cmocka_unit_test_setup_teardown(others_are_refused, start, stop),
      cmocka_unit_test_setup_teardown(connections_that_are_kept_take_no_place, start, stop),
      cmocka_unit_test_setup_teardown(a_stop_ends_waiting_requests, start, stop),
      cmocka_unit_test_setup_teardown(addresses_are_checked, start, stop),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
