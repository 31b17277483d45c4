// SPDX-License-Identifier: Apache-2.0
// Private to lib/rpc and to tests: a call being made that can be cancelled and held. It ends with `done` (channel.h).
// Thread: the loop's.
#ifndef BALLAST_RPC_REQUEST_H
#define BALLAST_RPC_REQUEST_H

#include "rpc/channel.h"

typedef struct bl__rpc_request bl__rpc_request_t;

// Starts a call as bl_rpc_channel_call does (`message` is NULL) or bl_rpc_channel_stream. *request may be NULL.
BL_MUST_USE bl_status_t bl__rpc_request_start(bl_rpc_channel_t *channel, const ProtobufCServiceDescriptor *service,
                                              const char *method, const ProtobufCMessage *input, uint64_t deadline_ms,
                                              bl_rpc_message_fn message, bl_rpc_done_fn done, void *context,
                                              bl__rpc_request_t **request, bl_error_t *err);
// `done` fires later with BL_CANCELLED, or with what had already arrived. May be called twice.
void bl__rpc_request_cancel(bl__rpc_request_t *request);
// A stream: reads no further message until resumed, so that flow control makes the server wait. Call it in `message`.
// The server's own end of the stream is read after its messages. A lost connection and the deadline end the stream at
// once.
void bl__rpc_request_hold(bl__rpc_request_t *request);
void bl__rpc_request_resume(bl__rpc_request_t *request);

#endif
