// SPDX-License-Identifier: Apache-2.0
// Calls to a server. A channel connects when it is first used. It reconnects by itself (after 100 ms, growing to 1 s).
// It shares no connection with other channels. Keepalive detects an unresponsive peer (a ping after 10 s without data,
// 5 s for its answer). Rules common to this library: rpc.h.
//
//   static void configured(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
//     if (err->status != BL_OK) ...            // err->text names the peer if the connection failed
//     const Ballast__V1__ConfigureResponse *response = (const Ballast__V1__ConfigureResponse *)output;
//   }
//   bl_rpc_channel_create(rpc, "10.0.0.2:7000", NULL, &channel, err);
//   bl_rpc_channel_call(channel, &ballast__v1__stage__descriptor, "Configure", &input.base, 30000,
//                       configured, self, err);
//
// Rules for requests:
//   1. If the function that starts a request returns an error, no callback fires. Otherwise the final callback (`done`)
//      fires exactly once, never before that function returns.
//   2. A server that cannot be reached is BL_UNAVAILABLE: at once if it refuses the connection or the connection
//      breaks, after the connect timeout (5 s) if nothing answers. A request does not wait until the server is ready.
//      The caller retries: only the caller knows what may be done twice.
//      A server whose certificate is refused is BL_UNAUTHENTICATED with the reason.
//   3. A status sent by the server arrives with the server's text and its exact status, even if two share a gRPC code.
//      Failures before the server answers (BL_UNAVAILABLE, BL_DEADLINE, BL_CANCELLED) start with "ADDRESS: Method: ".
#ifndef BALLAST_RPC_CHANNEL_H
#define BALLAST_RPC_CHANNEL_H

#include "rpc/rpc.h"

#include <protobuf-c/protobuf-c.h>

typedef struct bl_rpc_channel bl_rpc_channel_t;

typedef struct bl_rpc_channel_options {
  uint32_t message_limit_bytes;  // 0: BL_RPC_MESSAGE_LIMIT_BYTES
  uint32_t unpack_limit_bytes;   // 0: BL_RPC_UNPACK_LIMIT_BYTES
  uint32_t keepalive_ms;         // 0: 10000
  uint32_t keepalive_timeout_ms; // 0: 5000
  uint32_t connect_timeout_ms;   // 0: 5000; at least 100
  unsigned server_roles;         // TLS: allowed roles of the server (BL_STORES, ...); 0: any service
  bool plaintext;                // never TLS, at any address: for health ports
  // Replaces the security of the rpc. `access` is ignored. NULL: that of the rpc.
  const bl_rpc_security_t *security;
} bl_rpc_channel_options_t;

// Creates a channel without connecting. BL_INVALID: not an address. BL_DENIED: plaintext is not allowed for this
// address.
BL_MUST_USE bl_status_t bl_rpc_channel_create(bl_rpc_t *rpc, const char *address,
                                              const bl_rpc_channel_options_t *options, bl_rpc_channel_t **channel,
                                              bl_error_t *err);
// Cancels requests in flight: their `done` fires with BL_CANCELLED before this returns. NULL is fine.
void bl_rpc_channel_destroy(bl_rpc_channel_t *channel);
const char *bl_rpc_channel_address(const bl_rpc_channel_t *channel);
bl_loop_t *bl_rpc_channel_loop(const bl_rpc_channel_t *channel);

// `output` is non-NULL exactly if err->status is BL_OK and the request was unary. It is valid during the callback.
typedef void (*bl_rpc_done_fn)(const ProtobufCMessage *output, const bl_error_t *err, void *context);
// One message of a stream, valid during the callback. The next is read after the callback returns.
typedef void (*bl_rpc_message_fn)(const ProtobufCMessage *output, void *context);

// Sends one message and receives one. `input` is packed before this returns. A request that the end of the server cuts
// off ends with BL_UNAVAILABLE. BL_INVALID: no such method. BL_EXHAUSTED: `input` is larger than the message limit.
BL_MUST_USE bl_status_t bl_rpc_channel_call(bl_rpc_channel_t *channel, const ProtobufCServiceDescriptor *service,
                                            const char *method, const ProtobufCMessage *input, uint64_t deadline_ms,
                                            bl_rpc_done_fn done, void *context, bl_error_t *err);
// Sends one message and receives a stream: `message` fires for each message, then `done`.
BL_MUST_USE bl_status_t bl_rpc_channel_stream(bl_rpc_channel_t *channel, const ProtobufCServiceDescriptor *service,
                                              const char *method, const ProtobufCMessage *input, uint64_t deadline_ms,
                                              bl_rpc_message_fn message, bl_rpc_done_fn done, void *context,
                                              bl_error_t *err);

#endif
