// SPDX-License-Identifier: Apache-2.0
// What the ranks with copies of the same chunk exchange in a run. Every weight arrives from the copy that updates it
// before the first operation of its chunk. Its gradient is sent to that copy after the chunk's last operation, and is
// added there to those of all other copies in the order of model/fold.h. All ranks do this in every run, so no rank
// needs to know what another one has. Tensors move during the operations of other chunks. Copies are on other replicas,
// and with two pipes on another stage (model/grid.h).
//
//   bl_replicas_begin(engine, err);                       // after bl_transport_begin
//   bl_replicas_wait_weights(engine, chunk, stall, err);  // before an operation of this chunk
//   bl_replicas_wait_weights_sent(engine, chunk, stall, err);     // before its gradients are cleared
//   bl_replicas_send_gradients(engine, chunk, err);       // after its last one
//   bl_replicas_give(engine, err);                        // between operations
//   bl_replicas_reduce(engine, stall, err);               // of a run that trains
//   bl_replicas_finish(engine, stall, reduced, err);
//
// A run that ended well has received all weights and sent all gradients. Afterwards a rank changes only what it updates
// itself, so a commit needs no communication, and a run that is repeated finds everything unchanged.
//
// A device computes a gradient after bl_replicas_send_gradients has returned, so the transport is given it later. Ranks
// that are not reached directly (bl_engine_is_direct) exchange the twins of weights and gradients.
//
// If copies share out the masters (bl_engine_shares_masters), weights are sent from the place of their gradients and
// received there. So a chunk's gradients can be cleared only when its weights have been sent. All ranks post all
// receives of weights when they begin a run, so waiting for that needs nothing else from anyone.
//
// With one copy all functions do nothing. Statuses: BL_UNAVAILABLE, ...: a peer, from the transport. Thread: the
// compute thread.
#ifndef BALLAST_EXECUTOR_REPLICAS_H
#define BALLAST_EXECUTOR_REPLICAS_H

#include "executor/engine.h"
#include "executor/stall.h"

BL_MUST_USE bl_status_t bl_replicas_begin(bl_engine_t *engine, bl_error_t *err);
BL_MUST_USE bl_status_t bl_replicas_wait_weights(bl_engine_t *engine, bl_engine_chunk_t *chunk, bl_stall_t *stall,
                                                 bl_error_t *err);
// Waits until other ranks have the weights that this one sends them.
BL_MUST_USE bl_status_t bl_replicas_wait_weights_sent(bl_engine_t *engine, bl_engine_chunk_t *chunk, bl_stall_t *stall,
                                                      bl_error_t *err);
BL_MUST_USE bl_status_t bl_replicas_send_gradients(bl_engine_t *engine, bl_engine_chunk_t *chunk, bl_error_t *err);
// Gives the transport the gradients that the device has computed since.
BL_MUST_USE bl_status_t bl_replicas_give(bl_engine_t *engine, bl_error_t *err);
// Call it when peers need nothing else from this rank any more: it waits for the device.
// When it returns, the gradients of what this rank updates are those of the step. Gradients of other parameters are
// unchanged.
BL_MUST_USE bl_status_t bl_replicas_reduce(bl_engine_t *engine, bl_stall_t *stall, bl_error_t *err);
// Waits until other ranks have read everything that they read from this one, and for weights of chunks that had no
// operation.
BL_MUST_USE bl_status_t bl_replicas_finish(bl_engine_t *engine, bl_stall_t *stall, bool reduced, bl_error_t *err);

#endif
