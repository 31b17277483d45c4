// SPDX-License-Identifier: Apache-2.0
// What the ranks with copies of the same chunk do together in a run: every weight comes from the copy that updates it,
// before the first operation of its chunk, and its gradient goes there, after the chunk's last one, and is added to
// those of all others in the order of model/fold.h. All of them do this in every run, so nobody needs to know what
// another one has. Tensors move beside the operations of other chunks. Copies are on other replicas, and with two pipes
// on another stage (model/grid.h).
//
//   bl_replicas_begin(engine, err);                       // after bl_transport_begin
//   bl_replicas_wait_weights(engine, chunk, stall, err);  // before an operation of this chunk
//   bl_replicas_send_gradients(engine, chunk, err);       // after its last one
//   bl_replicas_reduce(engine, stall, err);               // of a run that trains
//   bl_replicas_settle(engine, stall, reduced, err);
//
// A run that ended well has had all weights and sent all gradients; only what it updates itself changes afterwards, so
// that a commit talks to nobody, and a run that is made again finds everything as it was.
//
// With one copy nothing is done. Statuses: BL_UNAVAILABLE, ...: a peer, as the transport says. Thread: the compute
// thread.
#ifndef BALLAST_EXECUTOR_REPLICAS_H
#define BALLAST_EXECUTOR_REPLICAS_H

#include "executor/engine.h"
#include "executor/stall.h"

BL_MUST_USE bl_status_t bl_replicas_begin(bl_engine_t *engine, bl_error_t *err);
BL_MUST_USE bl_status_t bl_replicas_wait_weights(bl_engine_t *engine, bl_engine_chunk_t *chunk, bl_stall_t *stall,
                                                 bl_error_t *err);
BL_MUST_USE bl_status_t bl_replicas_send_gradients(bl_engine_t *engine, bl_engine_chunk_t *chunk, bl_error_t *err);
// The gradients of what is updated here are those of the step when it returns; those of others are as they were.
BL_MUST_USE bl_status_t bl_replicas_reduce(bl_engine_t *engine, bl_stall_t *stall, bl_error_t *err);
// Waits until all that others read here has been read, and for weights of chunks that had no operation.
BL_MUST_USE bl_status_t bl_replicas_settle(bl_engine_t *engine, bl_stall_t *stall, bool reduced, bl_error_t *err);

#endif
