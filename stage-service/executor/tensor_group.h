// SPDX-License-Identifier: Apache-2.0
// The ranks that share this stage's layers: what code of a layer asks of its group (collective/group.h), done with each
// of them as it can be reached. Collectives are numbered in the order of asking, which is the same everywhere. Ranks on
// this machine see each other's windows and say on a progress page how far they are (collective/progress.h); what goes to
// and comes from others are tensors of the transport.
//
//   bl_tensor_group_create(engine, &group, err);       // with the engine; its windows are the transport's BL_WINDOWS_ARENA
//   bl_tensor_group_place(group);                      // the windows have memory
//   bl_tensor_group_begin(group, attempt, &cancelled, &stall, &rest, err);   // after bl_transport_begin
//   ... operations ...; bl_group_status(&group->group, err)
//   bl_tensor_group_settle(group, err);                // the peers have read all that is here
//
// A wait for a peer may be long, and where ranks share cores the peer may need this one's: `rest` gives it back
// meanwhile.
//
// Thread: the compute thread, but bl_tensor_group_wait.
#ifndef BALLAST_EXECUTOR_TENSOR_GROUP_H
#define BALLAST_EXECUTOR_TENSOR_GROUP_H

#include "collective/group.h"
#include "collective/progress.h"
#include "executor/engine.h"
#include "executor/stall.h"
#include "model/windows.h"

#define BL_WINDOWS_ARENA 0 // of the transport of a rank that shares its layers

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
  bl_group_progress_t progress;
  const uint8_t *peers[BL_GROUP_PROGRESS_MEMBERS]; // their windows, mapped here; NULL: over the transport, or this rank
  const atomic_bool *cancelled;                    // of the run
  bl_stall_t *stall;                               // of the run
  bl_tensor_rest_t rest;
  bool resting;
  _Atomic uint64_t awaited;        // on the progress page: number << 32 | member + 1; 0: nobody
  uint32_t count;                  // of what was done together in this attempt
  uint32_t taken;                  // of them: nothing of others is read any more
  uint32_t used[BL_GROUP_WINDOWS]; // the last that used each window; 0: none
  uint32_t sent[BL_GROUP_WINDOWS]; // pieces that it sends to each peer
} bl_tensor_group_t;

// Needs engine->windows. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_tensor_group_create(bl_engine_t *engine, bl_tensor_group_t **group, bl_error_t *err);
void bl_tensor_group_destroy(bl_tensor_group_t *group); // NULL is fine
// engine->windows has memory from now on.
void bl_tensor_group_place(bl_tensor_group_t *group);
// All do nothing where group is NULL: layers are not shared.
BL_MUST_USE bl_status_t bl_tensor_group_begin(bl_tensor_group_t *group, uint64_t attempt, const atomic_bool *cancelled,
                                              bl_stall_t *stall, const bl_tensor_rest_t *rest, bl_error_t *err);
BL_MUST_USE bl_status_t bl_tensor_group_settle(bl_tensor_group_t *group, bl_error_t *err);
BL_MUST_USE bl_status_t bl_tensor_group_status(const bl_tensor_group_t *group, bl_error_t *err);
// What it waits for on the progress page; false: nothing. What it waits for in the transport, bl_transport_waits tells. Any
// thread.
bool bl_tensor_group_wait(const bl_tensor_group_t *group, bl_transport_wait_t *wait);

#endif
