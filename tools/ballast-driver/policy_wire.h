// SPDX-License-Identifier: Apache-2.0
// The calls of ballast.v1.Driver about policies: SetPolicy, GetPolicy, PolicyHistory. Handlers for service_wire.c; their
// context is the bl_driver_service_t. Thread: the loop's.
#ifndef BALLAST_DRIVER_POLICY_WIRE_H
#define BALLAST_DRIVER_POLICY_WIRE_H

#include "rpc/server.h"

void bl_policy_handle_set(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);
void bl_policy_handle_get(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);
void bl_policy_handle_history(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);

#endif
