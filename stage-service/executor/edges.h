// SPDX-License-Identifier: Apache-2.0
// The edge buffers of one run: posts the receives of a plan when they are due, waits for them, and keeps track of what
// still leaves from which buffer, so that nothing is overwritten before it has left (schedule/ir/slots.h, rules 3 to
// 5).
//
// Three ways: the transport moves memory of the host. Where buffers lie on a device, it moves them as they are to peers
// that it reaches directly (bl_transport_is_direct: cuda-ipc, nccl), and their twins to others: what leaves is copied
// to the twin behind the operation that makes it, what came is copied from the twin in front of the operation that
// needs it. A device is told ahead, so that a buffer or twin is given to the transport once the device is done with it,
// which this thread looks for whenever it waits.
//
// Thread: the compute thread.
#ifndef BALLAST_EXECUTOR_EDGES_H
#define BALLAST_EXECUTOR_EDGES_H

#include "executor/engine.h"
#include "executor/stall.h"
#include "schedule/ir/slots.h"

typedef struct bl_edges {
  bl_engine_t *engine;
  const bl_stage_plan_t *plan;
  bl_stall_t *stall;   // of the run
  size_t next_receive; // the first that is not posted
  size_t held;         // sends and receives that are not given to the transport yet
  // When the attempt began: the ranks that the transport reached directly, and whether buffers have twins.
  uint32_t direct[BL_TRANSPORT_MAX_PEERS];
  uint32_t direct_count;
  bool twins;
} bl_edges_t;

// Begins attempt `attempt` on the transport and forgets what left in earlier ones.
BL_MUST_USE bl_status_t bl_edges_begin(bl_edges_t *edges, uint64_t attempt, bl_error_t *err);
// Posts the receives that are due before operation `index`.
BL_MUST_USE bl_status_t bl_edges_post(bl_edges_t *edges, size_t index, bl_error_t *err);
// Waits for what the operation receives, and until the buffers that it writes are free.
BL_MUST_USE bl_status_t bl_edges_wait(bl_edges_t *edges, const bl_planned_op_t *op, bl_error_t *err);
// Sends what the operation made: y from its output after F, dx from its input after I or B.
BL_MUST_USE bl_status_t bl_edges_send(bl_edges_t *edges, const bl_planned_op_t *op, bl_error_t *err);
// After the last operation: gives the transport all that leaves.
BL_MUST_USE bl_status_t bl_edges_finish(bl_edges_t *edges, bl_error_t *err);
// Waits until all that was sent has left.
BL_MUST_USE bl_status_t bl_edges_settle(bl_edges_t *edges, bl_error_t *err);
// Swaps tied gradients with the peer: the peer's part arrives in engine->tied_part, ours has left when this returns.
BL_MUST_USE bl_status_t bl_edges_exchange_tied(bl_edges_t *edges, bl_error_t *err);

#endif
