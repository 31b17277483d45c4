// SPDX-License-Identifier: Apache-2.0
#include "echo_wire.h"

#include "echo.pb-c.h"

#include <stdint.h>
#include <stdlib.h>

const ProtobufCServiceDescriptor *echo_service(void) {
  return &ballast__test__echo__descriptor;
}

echo_request_t echo_read_request(const ProtobufCMessage *input) {
  const Ballast__Test__EchoRequest *request = (const Ballast__Test__EchoRequest *)input;
  return (echo_request_t){.text = request->text,
                          .payload_bytes = request->payload.len,
                          .delay_ms = request->delay_ms,
                          .status = (bl_status_t)request->status,
                          .count = request->count,
                          .nothings = (uint32_t)request->n_nothings};
}

echo_response_t echo_read_response(const ProtobufCMessage *output) {
  const Ballast__Test__EchoResponse *response = (const Ballast__Test__EchoResponse *)output;
  return (echo_response_t){.text = response->text,
                           .payload_bytes = response->payload.len,
                           .index = response->index,
                           .remaining_ms = response->remaining_ms};
}

static Ballast__Test__EchoResponse make_response(const echo_response_t *from) {
  Ballast__Test__EchoResponse response = BALLAST__TEST__ECHO_RESPONSE__INIT;
  response.text = (char *)(from->text != NULL ? from->text : "");
  response.payload.len = from->payload_bytes;
  response.payload.data = calloc(1, from->payload_bytes + 1);
  response.index = from->index;
  response.remaining_ms = from->remaining_ms;
  return response;
}

void echo_reply(bl_rpc_call_t *call, const echo_response_t *from) {
  Ballast__Test__EchoResponse response = make_response(from);
  bl_rpc_call_reply(call, &response.base);
  free(response.payload.data);
}

bl_status_t echo_send(bl_rpc_call_t *call, const echo_response_t *from, bl_rpc_sent_fn sent, void *context) {
  Ballast__Test__EchoResponse response = make_response(from);
  bl_status_t status = bl_rpc_call_send(call, &response.base, sent, context);
  free(response.payload.data);
  return status;
}

static void fill_request(Ballast__Test__EchoRequest *request, const echo_request_t *from) {
  static Ballast__Test__Nothing nothing = BALLAST__TEST__NOTHING__INIT;
  ballast__test__echo_request__init(request);
  request->text = (char *)(from->text != NULL ? from->text : "");
  request->payload.len = from->payload_bytes;
  request->payload.data = calloc(1, from->payload_bytes + 1);
  request->delay_ms = from->delay_ms;
  request->status = (int32_t)from->status;
  request->count = from->count;
  request->n_nothings = from->nothings;
  request->nothings = calloc(from->nothings + 1, sizeof *request->nothings);
  for (size_t i = 0; i < from->nothings; i++) {
    request->nothings[i] = &nothing;
  }
}

static void free_request(Ballast__Test__EchoRequest *request) {
  free(request->payload.data);
  free(request->nothings);
}

bl_status_t echo_start(bl_rpc_channel_t *channel, const char *method, const echo_request_t *from, uint64_t deadline_ms,
                       bl_rpc_done_fn done, void *context, bl__rpc_request_t **handle, bl_error_t *err) {
  Ballast__Test__EchoRequest request;
  fill_request(&request, from);
  bl_status_t status = bl__rpc_request_start(channel, echo_service(), method, &request.base, deadline_ms, NULL, done,
                                             context, handle, err);
  free_request(&request);
  return status;
}

bl_status_t echo_start_stream(bl_rpc_channel_t *channel, const char *method, const echo_request_t *from,
                              uint64_t deadline_ms, bl_rpc_message_fn message, bl_rpc_done_fn done, void *context,
                              bl__rpc_request_t **handle, bl_error_t *err) {
  Ballast__Test__EchoRequest request;
  fill_request(&request, from);
  bl_status_t status = bl__rpc_request_start(channel, echo_service(), method, &request.base, deadline_ms, message, done,
                                             context, handle, err);
  free_request(&request);
  return status;
}
