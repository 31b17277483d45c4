// SPDX-License-Identifier: Apache-2.0
// Private to lib/rpc: the messages of grpc.health.v1. Only this module includes their generated code.
#ifndef BALLAST_RPC_HEALTH_WIRE_H
#define BALLAST_RPC_HEALTH_WIRE_H

#include "rpc/health.h"

const ProtobufCServiceDescriptor *bl__health_service(void);

const char *bl__health_read_request(const ProtobufCMessage *input); // the requested service
bl_rpc_health_state_t bl__health_read_response(const ProtobufCMessage *output);

void bl__health_reply(bl_rpc_call_t *call, bl_rpc_health_state_t state);
BL_MUST_USE bl_status_t bl__health_send(bl_rpc_call_t *call, bl_rpc_health_state_t state, bl_rpc_sent_fn sent,
                                        void *context);

BL_MUST_USE bl_status_t bl__health_start_check(bl_rpc_channel_t *channel, const char *service, uint64_t deadline_ms,
                                               bl_rpc_done_fn done, void *context, bl_error_t *err);

#endif
