// SPDX-License-Identifier: Apache-2.0
#include "echo_server.h"

#include "echo_wire.h"
#include "loop/timer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void say(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  echo_server_t *echo = context;
  echo->arrived++;
  (void)bl_rpc_call_peer(call, echo->peer);
  assert(bl_rpc_call_server(call) == echo->server);
  echo_request_t request = echo_read_request(input);
  echo_response_t response = {.text = request.text,
                              .payload_bytes = request.payload_bytes,
                              .index = request.count,
                              .remaining_ms = bl_rpc_call_remaining_ms(call)};
  echo_reply(call, &response);
}

static void fail(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  echo_server_t *echo = context;
  echo->arrived++;
  echo_request_t request = echo_read_request(input);
  bl_rpc_call_finish(call, request.status, request.text);
}

static void hang_cancelled(bl_rpc_call_t *call, void *context) {
  echo_server_t *echo = context;
  echo->cancelled++;
  echo->hanging--;
  bl_rpc_call_finish(call, BL_CANCELLED, "given up");
}

static void hang(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  (void)input;
  echo_server_t *echo = context;
  echo->arrived++;
  echo->hanging++;
  bl_rpc_call_on_cancel(call, hang_cancelled, echo);
}

// ---- Later: answers from a timer -----------------------------------------------------------------------------------

typedef struct later {
  echo_server_t *echo;
  bl_rpc_call_t *call;
  bl_timer_t *timer;
  const char *text; // of the call's input, which lives as long as the call
} later_t;

static void later_end(later_t *later) {
  bl_timer_destroy(later->timer);
  free(later);
}

static void later_fire(bl_timer_t *timer, void *context) {
  (void)timer;
  later_t *later = context;
  echo_response_t response = {.text = later->text};
  echo_reply(later->call, &response);
  later_end(later);
}

static void later_cancelled(bl_rpc_call_t *call, void *context) {
  later_t *later = context;
  later->echo->cancelled++;
  bl_rpc_call_finish(call, BL_CANCELLED, "given up");
  later_end(later);
}

static void later(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  echo_server_t *echo = context;
  echo->arrived++;
  echo_request_t request = echo_read_request(input);
  later_t *self = calloc(1, sizeof *self);
  if (self == NULL || bl_timer_create(bl_rpc_loop(echo->rpc), later_fire, self, &self->timer, NULL) != BL_OK) {
    abort();
  }
  self->echo = echo;
  self->call = call;
  self->text = request.text;
  bl_rpc_call_on_cancel(call, later_cancelled, self);
  bl_timer_start(self->timer, request.delay_ms, 0);
}

// ---- Count: a stream, one message at a time ------------------------------------------------------------------------

typedef struct count {
  echo_server_t *echo;
  uint32_t index;
  echo_request_t request;
} count_t;

static void count_next(bl_rpc_call_t *call, void *context) {
  count_t *count = context;
  if (count->index > 0) {
    count->echo->sent++;
  }
  if (count->index == count->request.count) {
    bl_status_t status = count->request.status;
    free(count);
    bl_rpc_call_finish(call, status, "counted");
    return;
  }
  echo_response_t response = {.payload_bytes = count->request.payload_bytes, .index = count->index++};
  if (echo_send(call, &response, count_next, count) != BL_OK) {
    abort();
  }
}

static void count_cancelled(bl_rpc_call_t *call, void *context) {
  count_t *count = context;
  count->echo->cancelled++;
  free(count);
  bl_rpc_call_finish(call, BL_CANCELLED, NULL);
}

static void count(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  echo_server_t *echo = context;
  echo->arrived++;
  count_t *self = calloc(1, sizeof *self);
  if (self == NULL) {
    abort();
  }
  self->echo = echo;
  self->request = echo_read_request(input);
  bl_rpc_call_on_cancel(call, count_cancelled, self);
  count_next(call, self);
}

bl_status_t echo_server_start(echo_server_t *echo, bl_rpc_t *rpc, const char *address,
                              const bl_rpc_server_options_t *options, bl_error_t *err) {
  static const bl_rpc_method_t methods[] = {
      {"Say", say}, {"Later", later}, {"Fail", fail}, {"Hang", hang}, {"Count", count}};
  memset(echo, 0, sizeof *echo);
  echo->rpc = rpc;
  bl_status_t status = bl_rpc_server_create(rpc, options, &echo->server, err);
  if (status != BL_OK) {
    return status;
  }
  status =
      bl_rpc_server_add_service(echo->server, echo_service(), methods, sizeof methods / sizeof methods[0], echo, err);
  if (status == BL_OK) {
    status = bl_rpc_server_listen(echo->server, address, echo->address, sizeof echo->address, err);
  }
  if (status == BL_OK) {
    status = bl_rpc_server_start(echo->server, err);
  }
  if (status != BL_OK) {
    bl_rpc_server_destroy(echo->server);
    echo->server = NULL;
  }
  return status;
}
