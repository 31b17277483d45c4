// SPDX-License-Identifier: Apache-2.0
// One call being made: start, messages, status, release.
#include "rpc/channel_core.h"
#include "rpc/explanation.h"
#include "rpc/message.h"

#include <grpc/support/time.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- life -----------------------------------------------------------------------------------------------------------

static bl__rpc_request_t *take_request(bl_rpc_channel_t *channel) {
  bl__rpc_request_t *request = channel->free;
  if (request != NULL) {
    channel->free = request->next;
    channel->free_count--;
  } else {
    request = calloc(1, sizeof *request);
    if (request == NULL) {
      return NULL;
    }
    bl__arena_init(&request->arena, channel->unpack_limit_bytes);
  }
  request->channel = channel;
  request->rpc = channel->rpc;
  request->previous = NULL;
  request->next = channel->requests;
  if (channel->requests != NULL) {
    channel->requests->previous = request;
  }
  channel->requests = request;
  request->outstanding = 0;
  request->input = request->output = NULL;
  request->code = GRPC_STATUS_UNKNOWN;
  request->text = grpc_empty_slice();
  request->receiving = request->held = request->in_message = request->exhausted = request->has_status = false;
  request->explaining = false;
  grpc_metadata_array_init(&request->initial);
  grpc_metadata_array_init(&request->trailing);
  bl_error_clear(&request->failure);
  return request;
}

static void leave_channel(bl__rpc_request_t *request) {
  bl_rpc_channel_t *channel = request->channel;
  *(request->previous != NULL ? &request->previous->next : &channel->requests) = request->next;
  if (request->next != NULL) {
    request->next->previous = request->previous;
  }
}

// Called after all events have arrived. Frees what gRPC allocated, and keeps the structure for a later call.
static void release_request(bl__rpc_request_t *request) {
  grpc_call_unref(request->call);
  bl__line_release(request->line);
  if (request->output != NULL) {
    grpc_byte_buffer_destroy(request->output);
  }
  grpc_slice_unref(request->text);
  grpc_metadata_array_destroy(&request->initial);
  grpc_metadata_array_destroy(&request->trailing);
  bl__arena_reset(&request->arena);
  bl_rpc_channel_t *channel = request->channel;
  if (channel == NULL) {
    free(request);
    return;
  }
  leave_channel(request);
  if (channel->free_count == BL__CHANNEL_FREE_REQUESTS) {
    free(request);
    return;
  }
  channel->free_count++;
  request->next = channel->free;
  channel->free = request;
}

static void report_done(bl__rpc_request_t *request, const ProtobufCMessage *output, const bl_error_t *err) {
  bl_rpc_done_fn done = request->done;
  request->done = NULL;
  done(output, err, request->context);
}

void bl__rpc_request_abandon(bl__rpc_request_t *request) {
  bl_error_t err;
  (void)bl_error_set(&err, BL_CANCELLED, "%s: %s: the channel was closed", request->channel->address,
                     request->method->name);
  leave_channel(request);
  request->channel = NULL;
  grpc_call_cancel(request->call, NULL);
  if (request->done != NULL) {
    report_done(request, NULL, &err);
  }
}

// ---- the end of a request -------------------------------------------------------------------------------------------

// Returns the server's own status if it was sent by name. BL_OK: it was not.
static bl_status_t said_status(const bl__rpc_request_t *request) {
  for (size_t i = 0; i < request->trailing.count; i++) {
    const grpc_metadata *entry = &request->trailing.metadata[i];
    if (grpc_slice_str_cmp(entry->key, BL__RPC_STATUS_KEY) != 0) {
      continue;
    }
    for (int status = 0; status < BL_STATUS_COUNT; status++) {
      if (grpc_slice_str_cmp(entry->value, bl_status_name((bl_status_t)status)) == 0 && status != BL_OK) {
        return (bl_status_t)status;
      }
    }
  }
  return BL_OK;
}

// Otherwise maps the gRPC code. A call that was cancelled, but not by this side, means that the server ended.
static bl_status_t read_status(const bl__rpc_request_t *request) {
  const bl_status_t said = said_status(request);
  const bool ended = request->code == GRPC_STATUS_CANCELLED && !request->cancelled;
  return said != BL_OK ? said : ended ? BL_UNAVAILABLE : bl_status_from_grpc_code((int)request->code);
}

// Returns true if an attempt may find the cause (explanation.h).
static bool read_error(const bl__rpc_request_t *request, bl_error_t *err) {
  if (request->failure.status != BL_OK) {
    *err = request->failure;
    return false;
  }
  if (request->code == GRPC_STATUS_OK) {
    bl_error_clear(err);
    return false;
  }
  const bl_status_t status = read_status(request);
  if (status == BL_UNAVAILABLE && request->code == GRPC_STATUS_CANCELLED) {
    (void)bl_error_set(err, status, "%s: %s: the server ended before it answered", request->channel->address,
                       request->method->name);
    return false;
  }
  const int length = (int)GRPC_SLICE_LENGTH(request->text);
  const char *text = (const char *)GRPC_SLICE_START_PTR(request->text);
  const bool on_the_way = status == BL_UNAVAILABLE || status == BL_DEADLINE || status == BL_CANCELLED;
  if (on_the_way) {
    (void)bl_error_set(err, status, "%s: %s: %.*s", request->channel->address, request->method->name, length, text);
    return status == BL_UNAVAILABLE && bl__channel_explain(request->channel, err);
  }
  (void)bl_error_set(err, status, "%.*s", length, text);
  return false;
}

// Unpacks request->output. A failure becomes the request's.
static const ProtobufCMessage *read_output(bl__rpc_request_t *request) {
  ProtobufCMessage *output = NULL;
  bl_status_t status =
      bl__message_unpack(request->method->output, request->output, &request->arena, &output, &request->failure);
  grpc_byte_buffer_destroy(request->output);
  request->output = NULL;
  if (status != BL_OK) {
    if (status == BL_INVALID) { // the server's message is wrong, not the caller's argument
      request->failure.status = BL_DATA_LOSS;
    }
    bl_error_prefix(&request->failure, "%s: %s", request->channel->address, request->method->name);
  }
  return output;
}

static void end_explained(bl__rpc_request_t *request, const bl_error_t *err) {
  request->explaining = false;
  if (request->done != NULL) {
    report_done(request, NULL, err); // may destroy the channel; the request outlives it
  }
  release_request(request);
}

void bl__rpc_requests_end(bl_rpc_t *rpc) {
  bl__explanations_end(rpc, release_request);
}

static void end_request(bl__rpc_request_t *request) {
  if (request->done != NULL) {
    bl_error_t err;
    const ProtobufCMessage *output = NULL;
    if (!request->stream && request->code == GRPC_STATUS_OK) {
      if (request->output != NULL) {
        output = read_output(request);
      } else {
        (void)bl_error_set(&request->failure, BL_INTERNAL, "%s: %s: the server answered without a message",
                           request->channel->address, request->method->name);
      }
    }
    if (read_error(request, &err) && bl__explanation_begin(request, &err, end_explained)) {
      request->explaining = true;
      return;
    }
    report_done(request, output, &err); // may destroy the channel; the request outlives it
  }
  release_request(request);
}

static void free_input(bl__rpc_request_t *request) {
  if (request->input != NULL) {
    grpc_byte_buffer_destroy(request->input);
    request->input = NULL;
  }
}

// ---- streams --------------------------------------------------------------------------------------------------------

static void on_received(bl_message_t *message);

static void receive_next(bl__rpc_request_t *request) {
  request->receiving = true;
  request->outstanding++;
  bl__rpc_tag_arm(request->rpc, &request->received, on_received);
  grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &request->output};
  bl__rpc_start(request->call, &op, 1, &request->received);
}

// Continues after an event: reads the next message of a stream, or ends the request when gRPC is done with it. A stream
// that ended with OK is read to its end, in whatever order its last messages and its status arrive.
static void advance(bl__rpc_request_t *request) {
  const bool readable = request->stream && !request->exhausted && request->done != NULL &&
                        (!request->has_status || request->code == GRPC_STATUS_OK);
  if (readable) {
    if (!request->receiving && !request->held && !request->in_message) {
      receive_next(request);
    }
  } else if (request->has_status && request->outstanding == 0 && !request->in_message && !request->explaining) {
    end_request(request);
  }
}

static void on_received(bl_message_t *message) {
  bl__rpc_request_t *request = BL__TAG_OWNER(message, bl__rpc_request_t, received);
  request->outstanding--;
  request->receiving = false;
  if (!request->received.ok || request->output == NULL) {
    request->exhausted = true;
  } else if (request->done != NULL) {
    const ProtobufCMessage *output = read_output(request);
    if (output == NULL) {
      grpc_call_cancel(request->call, NULL);
      request->exhausted = true;
    } else {
      request->in_message = true; // keeps the request if its callback destroys the channel
      request->message(output, request->context);
      request->in_message = false;
      bl__arena_reset(&request->arena);
    }
  }
  advance(request);
}

static void on_status(bl_message_t *message) {
  bl__rpc_request_t *request = BL__TAG_OWNER(message, bl__rpc_request_t, ended);
  request->outstanding--;
  request->has_status = true;
  advance(request);
}

void bl__rpc_request_hold(bl__rpc_request_t *request) {
  request->held = true;
}

void bl__rpc_request_resume(bl__rpc_request_t *request) {
  request->held = false;
  advance(request);
}

// ---- start ----------------------------------------------------------------------------------------------------------

static void on_started(bl_message_t *message) {
  bl__rpc_request_t *request = BL__TAG_OWNER(message, bl__rpc_request_t, started);
  request->outstanding--;
  free_input(request);
  request->has_status |= !request->stream;
  advance(request);
}

static grpc_slice method_path(const ProtobufCServiceDescriptor *service, const ProtobufCMethodDescriptor *method) {
  char path[256];
  snprintf(path, sizeof path, "/%s/%s", service->name, method->name);
  return grpc_slice_from_copied_string(path);
}

static gpr_timespec deadline_after(uint64_t deadline_ms) {
  if (deadline_ms >= INT64_MAX) {
    return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  }
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis((int64_t)deadline_ms, GPR_TIMESPAN));
}

// Starts the batches of a request. A unary call has one. A stream has one for what is sent and one for the status.
static void start_batches(bl__rpc_request_t *request) {
  grpc_op ops[6];
  memset(ops, 0, sizeof ops);
  size_t count = 0;
  ops[count++] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
  ops[count++] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = request->input};
  ops[count++] = (grpc_op){.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
  ops[count++] = (grpc_op){.op = GRPC_OP_RECV_INITIAL_METADATA,
                           .data.recv_initial_metadata.recv_initial_metadata = &request->initial};
  grpc_op status = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
                    .data.recv_status_on_client = {.trailing_metadata = &request->trailing,
                                                   .status = &request->code,
                                                   .status_details = &request->text}};
  if (!request->stream) {
    ops[count++] = (grpc_op){.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &request->output};
    ops[count++] = status;
  }
  request->outstanding++;
  bl__rpc_tag_arm(request->rpc, &request->started, on_started);
  bl__rpc_start(request->call, ops, count, &request->started);
  if (request->stream) {
    request->outstanding++;
    bl__rpc_tag_arm(request->rpc, &request->ended, on_status);
    bl__rpc_start(request->call, &status, 1, &request->ended);
    receive_next(request);
  }
}

bl_status_t bl__rpc_request_start(bl_rpc_channel_t *channel, const ProtobufCServiceDescriptor *service,
                                  const char *method_name, const ProtobufCMessage *input, uint64_t deadline_ms,
                                  bl_rpc_message_fn message, bl_rpc_done_fn done, void *context,
                                  bl__rpc_request_t **result, bl_error_t *err) {
  assert(bl_loop_is_current(channel->rpc->loop));
  const ProtobufCMethodDescriptor *method = protobuf_c_service_descriptor_get_method_by_name(service, method_name);
  if (method == NULL) {
    return bl_error_set(err, BL_INVALID, "service %s has no method %s", service->name, method_name);
  }
  grpc_byte_buffer *packed;
  bl_status_t status = bl__message_pack(input, channel->message_limit_bytes, &packed, err);
  if (status != BL_OK) {
    bl_error_prefix(err, "%s: %s", channel->address, method->name);
    return status;
  }
  bl__rpc_request_t *request = take_request(channel);
  if (request == NULL) {
    grpc_byte_buffer_destroy(packed);
    return bl_error_set(err, BL_EXHAUSTED, "%s: %s: out of memory", channel->address, method->name);
  }
  request->method = method;
  request->input = packed;
  request->stream = message != NULL;
  request->message = message;
  request->done = done;
  request->context = context;
  grpc_slice path = method_path(service, method);
  request->line = bl__channel_take_line(channel);
  request->call = grpc_channel_create_call(request->line->channel, NULL, GRPC_PROPAGATE_DEFAULTS, channel->rpc->queue,
                                           path, NULL, deadline_after(deadline_ms), NULL);
  grpc_slice_unref(path);
  if (result != NULL) {
    *result = request;
  }
  start_batches(request);
  return BL_OK;
}

bl_status_t bl_rpc_channel_call(bl_rpc_channel_t *channel, const ProtobufCServiceDescriptor *service,
                                const char *method, const ProtobufCMessage *input, uint64_t deadline_ms,
                                bl_rpc_done_fn done, void *context, bl_error_t *err) {
  return bl__rpc_request_start(channel, service, method, input, deadline_ms, NULL, done, context, NULL, err);
}

bl_status_t bl_rpc_channel_stream(bl_rpc_channel_t *channel, const ProtobufCServiceDescriptor *service,
                                  const char *method, const ProtobufCMessage *input, uint64_t deadline_ms,
                                  bl_rpc_message_fn message, bl_rpc_done_fn done, void *context, bl_error_t *err) {
  assert(message != NULL);
  return bl__rpc_request_start(channel, service, method, input, deadline_ms, message, done, context, NULL, err);
}

void bl__rpc_request_cancel(bl__rpc_request_t *request) {
  assert(bl_loop_is_current(request->rpc->loop));
  request->cancelled = true;
  grpc_call_cancel(request->call, NULL);
}
