// SPDX-License-Identifier: Apache-2.0
// The administrator's calls of ballast.v1.Store (role operator): list, get, watch, revoke, drain, quota, status. Part
// of service_wire.h. Thread: the loop's.
#ifndef BALLAST_ACTIVATION_STORE_ADMIN_WIRE_H
#define BALLAST_ACTIVATION_STORE_ADMIN_WIRE_H

#include "rpc/server.h"
#include "store.h"

#include <protobuf-c/protobuf-c.h>

#define BL_ADMIN_WATCHERS 64 // at a time; bounds a client that watches in a loop

typedef struct bl_watcher {
  bl_rpc_call_t *call; // NULL: unused
  uint64_t next;       // revision
} bl_watcher_t;

// Called before the table drains or resumes at the request of an operator. False: the process is ending, and drains on.
typedef bool bl_admin_on_drain_t(bool draining, void *context);

typedef struct bl_admin {
  bl_store_t *store;
  bl_admin_on_drain_t *on_drain; // may be NULL
  void *drain_context;
  bl_watcher_t watchers[BL_ADMIN_WATCHERS];
} bl_admin_t;

void bl_admin_list(bl_admin_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input);
void bl_admin_get(bl_admin_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input);
void bl_admin_watch(bl_admin_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input);
void bl_admin_revoke(bl_admin_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input);
void bl_admin_drain(bl_admin_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input);
void bl_admin_quota(bl_admin_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input);
void bl_admin_status(bl_admin_t *self, bl_rpc_call_t *call, const ProtobufCMessage *input);

// Sends new changes to the watchers that can take more.
void bl_admin_tell(bl_admin_t *self);
void bl_admin_end_watches(bl_admin_t *self);

#endif
