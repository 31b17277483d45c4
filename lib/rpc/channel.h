// SPDX-License-Identifier: Apache-2.0
// Calling a server. A channel connects when it is first used, reconnects by itself (after 100 ms, growing to 1 s), has
// connections of its own, and notices a silent peer by keepalive (a ping after 10 s of silence, 5 s for its answer).
// Rules common to this library: rpc.h.
//
//   static void configured(bl_rpc_request_t *request, const ProtobufCMessage *output, const bl_error_t *err,
//                          void *context) {
//     if (err->status != BL_OK) ...            // err->text names the peer where the connection failed
//     const Ballast__V1__ConfigureResponse *response = (const Ballast__V1__ConfigureResponse *)output;
//   }
//   bl_rpc_channel_create(rpc, "10.0.0.2:7000", NULL, &channel, err);
//   bl_rpc_channel_call(channel, &ballast__v1__stage__descriptor, "Configure", &input.base, 30000,
//                       configured, self, NULL, err);
//
// Rules for requests:
//   1. When starting one returns an error, no callback fires. Otherwise the final callback (`done`) fires exactly
//      once, never before the starting function returns; after it the request is gone.
//   2. A server that cannot be reached is BL_UNAVAILABLE, at once when connecting is refused or the connection breaks,
//      after the connect timeout (5 s) when nobody answers; there is no waiting for it to become ready. Retrying is
//      the caller's: only the caller knows what may be done twice.
//      A server whose certificate is refused is BL_UNAUTHENTICATED with the reason.
//   3. A status sent by the server arrives with the server's text and its exact status, also where two share a gRPC
//      code. Failures of the way there (BL_UNAVAILABLE, BL_DEADLINE, BL_CANCELLED) start with "ADDRESS: Method: ".
#ifndef BALLAST_RPC_CHANNEL_H
#define BALLAST_RPC_CHANNEL_H

#include "rpc/rpc.h"

#include <protobuf-c/protobuf-c.h>

typedef struct bl_rpc_channel bl_rpc_channel_t;
typedef struct bl_rpc_request bl_rpc_request_t; // one call being made

typedef struct bl_rpc_channel_options {
  uint32_t message_limit_bytes;      // 0: BL_RPC_MESSAGE_LIMIT_BYTES
  uint32_t unpack_limit_bytes;       // 0: BL_RPC_UNPACK_LIMIT_BYTES
  uint32_t keepalive_ms;             // 0: 10000
  uint32_t keepalive_timeout_ms;     // 0: 5000
  uint32_t connect_timeout_ms;       // 0: 5000; at least 100
  unsigned server_roles;             // TLS: what the server may be (BL_STORES, ...); 0: any service
  bool plaintext;                    // never TLS, anywhere: for health ports
  const bl_rpc_security_t *security; // instead of what the rpc was secured with; its `access` means nothing. NULL: that
} bl_rpc_channel_options_t;

// Connects nothing yet. BL_INVALID: not an address. BL_DENIED: plaintext there, which nobody allowed.
BL_MUST_USE bl_status_t bl_rpc_channel_create(bl_rpc_t *rpc, const char *address,
                                              const bl_rpc_channel_options_t *options, bl_rpc_channel_t **channel,
                                              bl_error_t *err);
// Ends requests that are under way: their `done` fires with BL_CANCELLED before this returns. NULL is fine.
void bl_rpc_channel_destroy(bl_rpc_channel_t *channel);
const char *bl_rpc_channel_address(const bl_rpc_channel_t *channel);
bl_loop_t *bl_rpc_channel_loop(const bl_rpc_channel_t *channel);

// `output` is non-NULL exactly when err->status is BL_OK and the request was unary; valid during the callback.
typedef void (*bl_rpc_done_fn)(bl_rpc_request_t *request, const ProtobufCMessage *output, const bl_error_t *err,
                               void *context);
// One message of a stream, valid during the callback. The next is read when this returns, unless it called
// bl_rpc_request_hold.
typedef void (*bl_rpc_message_fn)(bl_rpc_request_t *request, const ProtobufCMessage *output, void *context);

// One message there, one back. `input` is packed before this returns. *request (may be NULL) is for
// bl_rpc_request_cancel, which ends it with BL_CANCELLED; one that the server's end cut off ends with BL_UNAVAILABLE.
// BL_INVALID: no such method. BL_EXHAUSTED: `input` is larger than the message limit.
BL_MUST_USE bl_status_t bl_rpc_channel_call(bl_rpc_channel_t *channel, const ProtobufCServiceDescriptor *service,
                                            const char *method, const ProtobufCMessage *input, uint64_t deadline_ms,
                                            bl_rpc_done_fn done, void *context, bl_rpc_request_t **request,
                                            bl_error_t *err);
// One message there, a stream back: `message` for each, then `done`.
BL_MUST_USE bl_status_t bl_rpc_channel_stream(bl_rpc_channel_t *channel, const ProtobufCServiceDescriptor *service,
                                              const char *method, const ProtobufCMessage *input, uint64_t deadline_ms,
                                              bl_rpc_message_fn message, bl_rpc_done_fn done, void *context,
                                              bl_rpc_request_t **request, bl_error_t *err);

// Gives the request up; `done` fires later with BL_CANCELLED, or with what had already arrived. May be called twice.
void bl_rpc_request_cancel(bl_rpc_request_t *request);
// A stream: reads no further message until resumed, so that the server comes to wait (flow control). In `message`.
// The server's own end of the stream is read after its messages; a lost connection and the deadline end it at once.
void bl_rpc_request_hold(bl_rpc_request_t *request);
void bl_rpc_request_resume(bl_rpc_request_t *request);

#endif
