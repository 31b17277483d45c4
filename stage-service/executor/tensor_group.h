// SPDX-License-Identifier: Apache-2.0
// The ranks that share this stage's layers, over the hub: what code of a layer asks of its group (collective/group.h) becomes
// tensors to and from each of them, numbered in the order of asking, which is the same everywhere.
//
//   bl_tensor_group_create(engine, &group, err);       // with the engine; its windows are an arena of the hub
//   bl_tensor_group_begin(group, &rest);               // after bl_hub_begin
//   ... operations ...; bl_group_status(&group->group, err)
//   bl_tensor_group_settle(group, err);                // the peers have read all that is here
//
// A wait for a peer may be long, and where ranks share cores the peer may need this one's: `rest` gives it back meanwhile.
//
// Thread: the compute thread.
#ifndef BALLAST_EXECUTOR_TENSOR_GROUP_H
#define BALLAST_EXECUTOR_TENSOR_GROUP_H

#include "collective/group.h"
#include "executor/engine.h"
#include "executor/stall.h"
#include "model/windows.h"

// What goes on around a wait; NULL members: nothing.
typedef struct bl_tensor_rest {
  void *context;
  void (*begin)(void *context);                       // it will be a longer one
  bl_status_t (*end)(void *context, bl_error_t *err); // before going on, if begin was called
} bl_tensor_rest_t;

typedef struct bl_tensor_group {
  bl_group_t group; // first: the transport finds the rest by it
  bl_engine_t *engine;
  bl_windows_t windows;
  bl_tensor_rest_t rest;
  bl_stall_t *stall;               // of the run
  uint32_t count;                  // of what was done together in this attempt
  uint32_t used[BL_GROUP_WINDOWS]; // the last that used each window; 0: none
  uint32_t sent[BL_GROUP_WINDOWS]; // pieces that it sends to each peer
} bl_tensor_group_t;

// Needs engine->windows. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_tensor_group_create(bl_engine_t *engine, bl_tensor_group_t **group, bl_error_t *err);
void bl_tensor_group_destroy(bl_tensor_group_t *group); // NULL is fine
// All three do nothing where group is NULL: layers are not shared.
void bl_tensor_group_begin(bl_tensor_group_t *group, bl_stall_t *stall, const bl_tensor_rest_t *rest);
BL_MUST_USE bl_status_t bl_tensor_group_settle(bl_tensor_group_t *group, bl_error_t *err);
BL_MUST_USE bl_status_t bl_tensor_group_status(const bl_tensor_group_t *group, bl_error_t *err);

#endif
