// SPDX-License-Identifier: Apache-2.0
// The calls of ballast.v1.Store for operators: list, get, watch, revoke, drain, quota, status. Part of service_wire.h.
// Thread: the loop's.
#ifndef BALLAST_ACTIVATION_STORE_OPERATOR_WIRE_H
#define BALLAST_ACTIVATION_STORE_OPERATOR_WIRE_H

#include "rpc/server.h"
#include "store.h"

#include <protobuf-c/protobuf-c.h>

#define BL_OPERATOR_WATCHERS 64 // at a time; bounds a client that watches in a loop

typedef struct bl_watcher {
  bl_rpc_call_t *call; // NULL: unused
  uint64_t next;       // revision
} bl_watcher_t;

// Called before the table drains or resumes at the request of an operator.
typedef void bl_operator_on_drain_t(bool draining, void *context);

typedef struct bl_operator {
  bl_store_t *store;
  bl_operator_on_drain_t *on_drain; // may be NULL
  void *drain_context;
  bl_watcher_t watchers[BL_OPERATOR_WATCHERS];
} bl_operator_t;

void bl_operator_list(bl_operator_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input);
void bl_operator_get(bl_operator_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input);
void bl_operator_watch(bl_operator_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input);
void bl_operator_revoke(bl_operator_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input);
void bl_operator_drain(bl_operator_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input);
void bl_operator_quota(bl_operator_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input);
void bl_operator_status(bl_operator_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input);

// Sends new changes to the watchers that can take more.
void bl_operator_tell(bl_operator_t *self);
void bl_operator_end_watches(bl_operator_t *self);

#endif
