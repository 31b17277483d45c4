// SPDX-License-Identifier: Apache-2.0
// The messages of echo.proto: the only place that knows their generated code.
#ifndef BALLAST_TESTS_RPC_ECHO_WIRE_H
#define BALLAST_TESTS_RPC_ECHO_WIRE_H

#include "rpc/request.h"
#include "rpc/server.h"

typedef struct echo_request {
  const char *text; // NULL: ""
  size_t payload_bytes;
  uint32_t delay_ms;
  bl_status_t status;
  uint32_t count;
  uint32_t nothings;
} echo_request_t;

typedef struct echo_response {
  const char *text;
  size_t payload_bytes;
  uint32_t index;
  uint64_t remaining_ms;
} echo_response_t;

const ProtobufCServiceDescriptor *echo_service(void);
// Borrowed from the message.
echo_request_t echo_read_request(const ProtobufCMessage *input);
echo_response_t echo_read_response(const ProtobufCMessage *output);

void echo_reply(bl_rpc_call_t *call, const echo_response_t *response);
BL_MUST_USE bl_status_t echo_send(bl_rpc_call_t *call, const echo_response_t *response, bl_rpc_sent_fn sent,
                                  void *context);

BL_MUST_USE bl_status_t echo_start(bl_rpc_channel_t *channel, const char *method, const echo_request_t *request,
                                   uint64_t deadline_ms, bl_rpc_done_fn done, void *context, bl__rpc_request_t **handle,
                                   bl_error_t *err);
BL_MUST_USE bl_status_t echo_start_stream(bl_rpc_channel_t *channel, const char *method, const echo_request_t *request,
                                          uint64_t deadline_ms, bl_rpc_message_fn message, bl_rpc_done_fn done,
                                          void *context, bl__rpc_request_t **handle, bl_error_t *err);

#endif
