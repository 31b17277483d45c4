// SPDX-License-Identifier: Apache-2.0
// Verifies that a client refuses a store of another release in words, before it connects to its data path, and gives the
// session back. The store is one that answers OpenSession as an older one does.
#include "client/client.h"
#include "rpc/server.h"

#include "ballast/v1/store.pb-c.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static atomic_uint opened, closed;

static void handle_open(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  (void)input;
  (void)context;
  uint8_t id[16] = {1};
  Ballast__V1__OpenSessionResponse output = BALLAST__V1__OPEN_SESSION_RESPONSE__INIT;
  output.session = 7;
  output.key = output.incarnation = (ProtobufCBinaryData){.data = id, .len = sizeof id};
  output.ttl_ms = 60000;
  output.arena_bytes = 1 << 20;
  output.data_address = (char *)"unix:/nobody/listens/here";
  atomic_fetch_add(&opened, 1);
  bl_rpc_call_reply(call, &output.base);
}

static void handle_close(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  (void)input;
  (void)context;
  Ballast__V1__CloseSessionResponse output = BALLAST__V1__CLOSE_SESSION_RESPONSE__INIT;
  atomic_fetch_add(&closed, 1);
  bl_rpc_call_reply(call, &output.base);
}

static void on_stopped(bl_rpc_server_t *server, void *context) {
  bl_rpc_server_destroy(server);
  bl_loop_stop(context);
}

typedef struct attempt {
  const char *address;
  bl_loop_t *loop;
  bl_rpc_server_t *server;
  bl_status_t status;
  bl_error_t err;
  bl_message_t over;
} attempt_t;

static void end(bl_message_t *message) {
  const attempt_t *attempt = BL_MESSAGE_OWNER(message, attempt_t, over);
  bl_rpc_server_shutdown(attempt->server, 0, on_stopped, attempt->loop);
}

// A client that waits, beside the loop of the server.
static void *open_client(void *argument) {
  attempt_t *attempt = argument;
  const bl_client_options_t options = {
      .size = sizeof options, .store = attempt->address, .job = "job", .arena_bytes = 1 << 20};
  bl_client_t *client = NULL;
  attempt->status = bl_client_open(&options, &client, &attempt->err);
  attempt->over.handle = end;
  bl_loop_post(attempt->loop, &attempt->over);
  return NULL;
}

static void an_older_store_is_refused_in_words(void **state) {
  (void)state;
  static const bl_rpc_method_t methods[] = {{"OpenSession", handle_open}, {"CloseSession", handle_close}};
  char address[BL_RPC_ADDRESS_BYTES];
  bl_error_t err;
  bl_loop_t *loop;
  bl_rpc_t *rpc;
  attempt_t attempt = {.address = address};
  assert_int_equal(bl_loop_create(&loop, &err), BL_OK);
  assert_int_equal(bl_rpc_create(loop, &rpc, &err), BL_OK);
  assert_int_equal(bl_rpc_server_create(rpc, NULL, &attempt.server, &err), BL_OK);
  assert_int_equal(bl_rpc_server_add_service(attempt.server, &ballast__v1__store__descriptor, methods, 2, NULL, &err),
                   BL_OK);
  assert_int_equal(bl_rpc_server_listen(attempt.server, "127.0.0.1:0", address, sizeof address, &err), BL_OK);
  assert_int_equal(bl_rpc_server_start(attempt.server, &err), BL_OK);
  attempt.loop = loop;
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, open_client, &attempt), 0);
  bl_loop_run(loop);
  pthread_join(thread, NULL);
  bl_rpc_destroy(rpc);
  bl_loop_destroy(loop);
  assert_int_equal(attempt.status, BL_PRECONDITION);
  assert_non_null(strstr(attempt.err.text, "speaks version 0 of the data path"));
  assert_non_null(strstr(attempt.err.text, address));
  assert_int_equal(atomic_load(&opened), 1);
  assert_int_equal(atomic_load(&closed), 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(an_older_store_is_refused_in_words)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
