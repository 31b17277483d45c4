// SPDX-License-Identifier: Apache-2.0
// The ranks that share this stage's layers. It implements what code of a layer asks of its group (collective/group.h),
// with each rank over the path by which it can be reached. Collectives are numbered in the order of the calls, which is
// the same on all ranks. Ranks on this machine map each other's windows and publish their progress on a progress page
// (collective/progress.h). With other ranks, data are exchanged as tensors of the transport.
//
//   bl_tensor_group_create(engine, &group, err);       // with the engine
//   bl_tensor_group_place(group);                      // engine->exchange_buffers has memory
//   bl_tensor_group_begin(group, attempt, &cancelled, &stall, &rest, err);   // after bl_transport_begin
//   ... operations ...; bl_group_status(&group->group, err)
//   bl_tensor_group_wait_read(group, err);                // the peers have read all that is here
//
// Ranks on devices are a group of NCCL (executor/device_group.h), with notes for what their CPUs agree on.
//
// A wait for a peer may be long, and if ranks share cores the peer may need this rank's core: `rest` releases it
// meanwhile.
//
// Thread: the compute thread, except bl_tensor_group_wait and bl_tensor_group_interrupt.
#ifndef BALLAST_EXECUTOR_TENSOR_GROUP_H
#define BALLAST_EXECUTOR_TENSOR_GROUP_H

#include "collective/group.h"
#include "collective/progress.h"
#include "executor/engine.h"
#include "executor/stall.h"
#include "model/exchange_buffers.h"

#define BL_EXCHANGE_BUFFERS_ARENA 0 // number of engine->exchange_buffers in the transport, if ranks share layers

// Calls around a wait; NULL members: nothing.
typedef struct bl_tensor_rest {
  void *context;
  void (*begin)(void *context);                       // the wait will be a longer one
  bl_status_t (*end)(void *context, bl_error_t *err); // before continuing, if begin was called
  bool (*needed)(void *context, uint32_t rank);       // whether this rank has no core: begin is called at once
} bl_tensor_rest_t;

typedef struct bl_device_group bl_device_group_t;

typedef struct bl_tensor_group {
  bl_group_t group; // first, so that the transport finds the struct by it
  bl_engine_t *engine;
  bl_device_group_t *device; // NULL: the host. What follows `resting` is of the host
  bl_exchange_buffers_t exchange_buffers;
  const atomic_bool *cancelled; // of the run
  bl_stall_t *stall;            // of the run
  bl_tensor_rest_t rest;
  bool resting;
  bl_group_progress_t progress;
  const uint8_t *peers[BL_GROUP_PROGRESS_MEMBERS]; // their buffers, mapped here; NULL: over the transport, or this rank
  _Atomic uint64_t awaited;                        // on the progress page: number << 32 | member + 1; 0: no member
  uint32_t count;                                  // collectives in this attempt
  uint32_t taken;                                  // of them: those whose data from other ranks are no longer read
  uint32_t used[BL_GROUP_WINDOWS];                 // last collective that used each window; 0: none
  uint32_t sent[BL_GROUP_WINDOWS];                 // pieces sent to each peer
} bl_tensor_group_t;

// Needs engine->exchange_buffers. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_tensor_group_create(bl_engine_t *engine, bl_tensor_group_t **group, bl_error_t *err);
void bl_tensor_group_destroy(bl_tensor_group_t *group); // NULL is fine
// All do nothing if group is NULL: layers are not shared.
// Call it once engine->exchange_buffers has memory.
void bl_tensor_group_place(bl_tensor_group_t *group);
BL_MUST_USE bl_status_t bl_tensor_group_begin(bl_tensor_group_t *group, uint64_t attempt, const atomic_bool *cancelled,
                                              bl_stall_t *stall, const bl_tensor_rest_t *rest, bl_error_t *err);
BL_MUST_USE bl_status_t bl_tensor_group_wait_read(bl_tensor_group_t *group, bl_error_t *err);
// Call it when all work of the run has ended on the device. Returns why collectives in it were not complete, or BL_OK.
BL_MUST_USE bl_status_t bl_tensor_group_finish(bl_tensor_group_t *group, bl_error_t *err);
// Ends collectives that a device waits in, so that it comes to rest. Any thread.
void bl_tensor_group_interrupt(bl_tensor_group_t *group);
BL_MUST_USE bl_status_t bl_tensor_group_status(const bl_tensor_group_t *group, bl_error_t *err);
// Sets *wait to what the group waits for on the progress page; false: nothing. bl_transport_waits returns what it waits
// for in the transport. Thread: any.
bool bl_tensor_group_wait(const bl_tensor_group_t *group, bl_transport_wait_t *wait);

// The rank of a member in the grid.
uint32_t bl_tensor_group_rank(const bl_tensor_group_t *group, uint32_t member);
// Where a part of another rank is received, in the exchange buffers.
uint8_t *bl_tensor_group_staged(const bl_tensor_group_t *group, uint32_t part, uint64_t block_bytes);

#endif
