// SPDX-License-Identifier: Apache-2.0
// One call being served: from its arrival through the handler's answers to its release.
#include "rpc/message.h"
#include "rpc/server_core.h"
#include "sys/log.h"

#include <grpc/support/alloc.h>
#include <grpc/support/time.h>

#include <stdio.h>
#include <string.h>

#define SERVICE_BYTES 128

static void release_if_over(bl_rpc_call_t *call) {
  if (!call->ended || call->outstanding > 0) {
    return;
  }
  grpc_call_unref(call->call);
  call->call = NULL;
  bl__arena_reset(&call->arena);
  bl__server_release(call);
}

// ---- cancellation ---------------------------------------------------------------------------------------------------

static void on_closed(bl_message_t *message) {
  bl_rpc_call_t *call = BL__TAG_OWNER(message, bl_rpc_call_t, closed);
  call->outstanding--;
  if (call->cancelled_by_peer && !call->finishing) {
    call->cancelled = true;
    if (call->on_cancel != NULL) {
      bl_rpc_cancel_fn on_cancel = call->on_cancel;
      call->on_cancel = NULL;
      on_cancel(call, call->cancel_context); // if it finishes the call, the call lives until the event of that batch
    }
  }
  release_if_over(call);
}

// Watches for the end of the call. The final batch of a call that is answered inside its handler does this instead,
// which saves an event.
static void request_close(bl_rpc_call_t *call) {
  call->close_requested = true;
  call->outstanding++;
  bl__rpc_tag_arm(call->server->rpc, &call->closed, on_closed);
  grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER, .data.recv_close_on_server.cancelled = &call->cancelled_by_peer};
  bl__rpc_start(call->call, &op, 1, &call->closed);
}

void bl_rpc_call_on_cancel(bl_rpc_call_t *call, bl_rpc_cancel_fn cancelled, void *context) {
  assert(!call->finishing);
  call->on_cancel = call->cancelled ? NULL : cancelled;
  call->cancel_context = context;
  if (call->cancelled && cancelled != NULL) {
    cancelled(call, context);
  }
}

bool bl_rpc_call_is_cancelled(const bl_rpc_call_t *call) {
  return call->cancelled;
}

// ---- answers --------------------------------------------------------------------------------------------------------

static void on_ended(bl_message_t *message) {
  bl_rpc_call_t *call = BL__TAG_OWNER(message, bl_rpc_call_t, finished);
  call->outstanding--;
  call->ended = true;
  if (call->output != NULL) {
    grpc_byte_buffer_destroy(call->output);
    call->output = NULL;
  }
  grpc_slice_unref(call->text);
  release_if_over(call);
}

static size_t add_metadata(bl_rpc_call_t *call, grpc_op *ops, size_t count) {
  if (!call->metadata_sent) {
    call->metadata_sent = true;
    ops[count++] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
  }
  return count;
}

static void start_final(bl_rpc_call_t *call) {
  grpc_op ops[4];
  memset(ops, 0, sizeof ops);
  size_t count = add_metadata(call, ops, 0);
  if (call->output != NULL) {
    ops[count++] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = call->output};
  }
  grpc_metadata exact; // the status by its name, because several share a gRPC code
  memset(&exact, 0, sizeof exact);
  exact.key = grpc_slice_from_static_string(BL__RPC_STATUS_KEY);
  exact.value = grpc_slice_from_static_string(bl_status_name(call->status));
  grpc_op *final = &ops[count++];
  final->op = GRPC_OP_SEND_STATUS_FROM_SERVER;
  final->data.send_status_from_server.status = (grpc_status_code)bl_status_grpc_code(call->status);
  if (call->status != BL_OK) {
    final->data.send_status_from_server.status_details = &call->text;
    final->data.send_status_from_server.trailing_metadata_count = 1;
    final->data.send_status_from_server.trailing_metadata = &exact;
  }
  if (!call->close_requested) {
    call->close_requested = true;
    ops[count++] =
        (grpc_op){.op = GRPC_OP_RECV_CLOSE_ON_SERVER, .data.recv_close_on_server.cancelled = &call->cancelled_by_peer};
  }
  call->outstanding++;
  bl__rpc_tag_arm(call->server->rpc, &call->finished, on_ended);
  bl__rpc_start(call->call, ops, count, &call->finished);
}

void bl_rpc_call_finish(bl_rpc_call_t *call, bl_status_t status, const char *text) {
  assert(bl_loop_is_current(call->server->rpc->loop));
  assert(!call->finishing);
  call->finishing = true;
  call->on_cancel = NULL;
  call->on_sent = NULL;
  call->on_read = NULL;
  call->status = status;
  call->text = grpc_slice_from_copied_string(text != NULL ? text : "");
  if (call->sending == NULL) {
    start_final(call);
  } // else on_sent calls start_final
}

void bl_rpc_call_fail(bl_rpc_call_t *call, const bl_error_t *err) {
  bl_rpc_call_finish(call, err->status, err->text);
}

void bl_rpc_call_reply(bl_rpc_call_t *call, const ProtobufCMessage *output) {
  bl_error_t err;
  bl_status_t status = bl__message_pack(output, call->server->message_limit_bytes, &call->output, &err);
  bl_rpc_call_finish(call, status, status != BL_OK ? err.text : NULL);
}

static void on_sent(bl_message_t *message) {
  bl_rpc_call_t *call = BL__TAG_OWNER(message, bl_rpc_call_t, sent);
  call->outstanding--;
  grpc_byte_buffer_destroy(call->sending);
  call->sending = NULL;
  if (call->finishing) {
    start_final(call);
  } else if (call->sent.ok && call->on_sent != NULL) {
    bl_rpc_sent_fn sent = call->on_sent;
    call->on_sent = NULL;
    sent(call, call->sent_context);
  } // an unsent message means that the call is cancelled; on_closed reports that
}

bl_status_t bl_rpc_call_send(bl_rpc_call_t *call, const ProtobufCMessage *output, bl_rpc_sent_fn sent, void *context) {
  assert(bl_loop_is_current(call->server->rpc->loop));
  assert(!call->finishing);
  if (call->cancelled) {
    return BL_CANCELLED;
  }
  if (call->sending != NULL) {
    return BL_PRECONDITION;
  }
  bl_status_t status = bl__message_pack(output, call->server->message_limit_bytes, &call->sending, NULL);
  if (status != BL_OK) {
    return status;
  }
  call->on_sent = sent;
  call->sent_context = context;
  grpc_op ops[2];
  memset(ops, 0, sizeof ops);
  size_t count = add_metadata(call, ops, 0);
  ops[count++] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = call->sending};
  call->outstanding++;
  bl__rpc_tag_arm(call->server->rpc, &call->sent, on_sent);
  bl__rpc_start(call->call, ops, count, &call->sent);
  return BL_OK;
}

bool bl_rpc_call_can_send(const bl_rpc_call_t *call) {
  return call->sending == NULL && !call->cancelled && !call->finishing;
}

// ---- a client's stream ----------------------------------------------------------------------------------------------

// Unpacks the message in call->payload. On failure it ends the call and returns NULL.
static ProtobufCMessage *unpack(bl_rpc_call_t *call) {
  bl_error_t err;
  ProtobufCMessage *input = NULL;
  bl_status_t status = bl__message_unpack(call->method->descriptor->input, call->payload, &call->arena, &input, &err);
  grpc_byte_buffer_destroy(call->payload);
  call->payload = NULL;
  if (status != BL_OK) {
    bl_rpc_call_fail(call, &err);
    return NULL;
  }
  return input;
}

static void on_received(bl_message_t *message) {
  bl_rpc_call_t *call = BL__TAG_OWNER(message, bl_rpc_call_t, received);
  call->outstanding--;
  if (call->finishing) {
    if (call->payload != NULL) {
      grpc_byte_buffer_destroy(call->payload);
      call->payload = NULL;
    }
    release_if_over(call);
    return;
  }
  ProtobufCMessage *input = NULL;
  if (call->payload != NULL) {
    input = unpack(call);
    if (input == NULL) {
      return;
    }
  }
  bl_rpc_handler_fn read = call->on_read;
  call->on_read = NULL;
  read(call, input, call->read_context);
}

void bl_rpc_call_read(bl_rpc_call_t *call, bl_rpc_handler_fn read, void *context) {
  assert(bl_loop_is_current(call->server->rpc->loop));
  assert(!call->finishing && call->on_read == NULL);
  call->on_read = read;
  call->read_context = context;
  bl__arena_reset(&call->arena);
  call->outstanding++;
  bl__rpc_tag_arm(call->server->rpc, &call->received, on_received);
  grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &call->payload};
  bl__rpc_start(call->call, &op, 1, &call->received);
}

// ---- arrival --------------------------------------------------------------------------------------------------------

// Returns the program that serves this, with its article.
static const char *program_of(const char *service, char text[SERVICE_BYTES]) {
  static const struct {
    const char *service, *program;
  } programs[] = {{"ballast.v1.Stage", "a stage-service"},
                  {"ballast.v1.Store", "an activation-store"},
                  {"ballast.v1.Driver", "a ballast-driver"},
                  {"grpc.health.v1.Health", "a health port"}};
  for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++) {
    if (strcmp(service, programs[i].service) == 0) {
      return programs[i].program;
    }
  }
  snprintf(text, SERVICE_BYTES, "a server of %.*s", SERVICE_BYTES - 16, service);
  return text;
}

// Sets the text for a method that is not served. `path`: "/ballast.v1.Store/Status".
static bl_status_t refuse_method(const bl_rpc_server_t *server, const char *path, bl_error_t *err) {
  char asked[SERVICE_BYTES], asked_text[SERVICE_BYTES], own_text[SERVICE_BYTES];
  const ProtobufCServiceDescriptor *own = server->methods[0].service; // what is added later supplements it
  path += path[0] == '/';
  snprintf(asked, sizeof asked, "%.*s", (int)strcspn(path, "/"), path);
  if (own == NULL || strcmp(own->name, asked) == 0) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "this server has no method /%s", path);
  }
  return bl_error_set(err, BL_UNIMPLEMENTED, "%s answers here, not %s: correct the address",
                      program_of(own->name, own_text), program_of(asked, asked_text));
}

static void refuse_unknown(bl_rpc_call_t *call) {
  char *method = grpc_slice_to_c_string(call->details.method);
  bl_error_t err;
  (void)refuse_method(call->server, method, &err);
  gpr_free(method);
  bl_rpc_call_fail(call, &err);
}

// Checks whether the caller may call this method. Without TLS every process that reaches the address may: loopback,
// unix sockets.
static bl_status_t check_access(bl_rpc_call_t *call, bl_error_t *err) {
  const bl_rpc_t *rpc = call->server->rpc;
  call->identity.role = BL_ROLE_NONE;
  if (rpc->tls == NULL || call->server->plaintext) {
    return BL_OK;
  }
  bl_status_t status = bl__call_identity(call->call, &call->identity, err);
  if (status == BL_OK && call->identity.role != BL_ROLE_NONE && rpc->access != NULL) {
    status = rpc->access(call->method->service->name, call->method->descriptor->name, &call->identity, err);
  }
  if (status != BL_OK) {
    char peer[BL_RPC_ADDRESS_BYTES];
    bl_log(BL_LOG_WARNING, "refused %s of %s: %s", call->method->descriptor->name, bl_rpc_call_peer(call, peer),
           err->text);
  }
  return status;
}

static void serve(bl_rpc_call_t *call) {
  if (call->payload == NULL) {
    bl_error_t err; // larger than gRPC's receive limit, or not sent
    (void)bl_error_set(&err, BL_EXHAUSTED, "%s: no message, or one of more than %zu bytes",
                       call->method->descriptor->name, call->server->message_limit_bytes);
    bl_rpc_call_fail(call, &err);
    return;
  }
  const ProtobufCMessage *input = unpack(call);
  if (input == NULL) {
    return;
  }
  call->method->handle(call, input, call->method->context);
  if (!call->close_requested) {
    request_close(call); // not answered yet: from now on it can be cancelled
  }
}

void bl__call_on_arrived(bl_message_t *message) {
  bl_rpc_call_t *call = BL__TAG_OWNER(message, bl_rpc_call_t, arrived);
  bl_rpc_server_t *server = call->server;
  if (!call->arrived.ok) {
    bl__server_unrequest(call);
    return;
  }
  server->request_count--;
  server->active_count++;
  call->next = server->active;
  if (server->active != NULL) {
    server->active->previous = call;
  }
  server->active = call;
  bl__server_request(server, call->method);
  bl_error_t err;
  if (server->state != BL__SERVER_SERVING) {
    bl_rpc_call_finish(call, BL_UNAVAILABLE, "this server is shutting down");
  } else if (call->method->descriptor == NULL) {
    refuse_unknown(call);
  } else if (check_access(call, &err) != BL_OK) {
    bl_rpc_call_fail(call, &err);
  } else if (server->active_count > server->max_calls) {
    (void)bl_error_set(&err, BL_EXHAUSTED, "this server is at its limit of %u calls", server->max_calls);
    bl_rpc_call_fail(call, &err);
  } else {
    serve(call);
    return;
  }
  if (call->payload != NULL) {
    grpc_byte_buffer_destroy(call->payload);
    call->payload = NULL;
  }
}

// ---- queries of a handler -------------------------------------------------------------------------------------------

uint64_t bl_rpc_call_remaining_ms(const bl_rpc_call_t *call) {
  gpr_timespec deadline = gpr_convert_clock_type(call->deadline, GPR_CLOCK_MONOTONIC);
  if (gpr_time_cmp(deadline, gpr_inf_future(GPR_CLOCK_MONOTONIC)) == 0) {
    return BL_RPC_NO_DEADLINE;
  }
  int32_t left_ms = gpr_time_to_millis(gpr_time_sub(deadline, gpr_now(GPR_CLOCK_MONOTONIC)));
  return left_ms > 0 ? (uint64_t)left_ms : 0;
}

const char *bl_rpc_call_peer(const bl_rpc_call_t *call, char text[BL_RPC_ADDRESS_BYTES]) {
  char *peer = grpc_call_get_peer(call->call);
  snprintf(text, BL_RPC_ADDRESS_BYTES, "%s", peer != NULL ? peer : "unknown");
  gpr_free(peer);
  return text;
}

const bl_identity_t *bl_rpc_call_identity(const bl_rpc_call_t *call) {
  return &call->identity;
}

bl_rpc_server_t *bl_rpc_call_server(const bl_rpc_call_t *call) {
  return call->server;
}
