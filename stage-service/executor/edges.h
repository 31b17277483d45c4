// SPDX-License-Identifier: Apache-2.0
// The edge buffers of one run. This code posts the receives of a plan when they are due, waits for them, and tracks
// what is still being sent from each buffer, so that nothing is overwritten before it is sent
// (schedule/ir/stage_plan.h, rules 3 to 5).
//
// There are three cases. If buffers lie in memory of the host, the transport moves them. If they lie on a device, the
// transport moves them directly to and from peers that it reaches that way (bl_transport_is_direct: cuda-ipc, nccl).
// For other peers it moves their twins: what is sent is copied to the twin after the operation that computes it, and
// what is received is copied from the twin before the operation that needs it. Such a device is asynchronous
// (engine.h), so a buffer or twin is given to the transport once the device no longer uses it. This thread checks for
// that whenever it waits.
//
// Thread: the compute thread.
#ifndef BALLAST_EXECUTOR_EDGES_H
#define BALLAST_EXECUTOR_EDGES_H

#include "executor/engine.h"
#include "executor/stall.h"
#include "schedule/ir/stage_plan.h"

typedef struct bl_edges {
  bl_engine_t *engine;
  const bl_stage_plan_t *plan;
  bl_stall_t *stall;   // of the run
  size_t next_receive; // next receive to post
  size_t held;         // sends and receives not yet given to the transport
} bl_edges_t;

// Begins attempt `attempt` on the transport and forgets the sends of earlier attempts.
BL_MUST_USE bl_status_t bl_edges_begin(bl_edges_t *edges, uint64_t attempt, bl_error_t *err);
// Posts the receives that are due before operation `index`.
BL_MUST_USE bl_status_t bl_edges_post(bl_edges_t *edges, size_t index, bl_error_t *err);
// Gives the transport what the device no longer uses. edges->held counts what it still uses.
BL_MUST_USE bl_status_t bl_edges_give(bl_edges_t *edges, bl_error_t *err);
// Waits for the tensors that the operation receives, and until the buffers that it writes are free.
BL_MUST_USE bl_status_t bl_edges_wait(bl_edges_t *edges, const bl_planned_op_t *op, bl_error_t *err);
// Sends the result of the operation: y from its output after F, dx from its input after I or B.
BL_MUST_USE bl_status_t bl_edges_send(bl_edges_t *edges, const bl_planned_op_t *op, bl_error_t *err);
// Called after the last operation. Gives every pending send to the transport.
BL_MUST_USE bl_status_t bl_edges_finish(bl_edges_t *edges, bl_error_t *err);
// Waits until everything was sent.
BL_MUST_USE bl_status_t bl_edges_wait_all_sent(bl_edges_t *edges, bl_error_t *err);
// Exchanges tied gradients with the peer. When this returns, the peer's part is in engine->tied_part and this rank's
// part was sent.
BL_MUST_USE bl_status_t bl_edges_exchange_tied(bl_edges_t *edges, bl_error_t *err);

#endif
