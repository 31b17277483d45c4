// SPDX-License-Identifier: Apache-2.0
// What the replicas of a stage do together in a run: before the first operation every weight comes from the replica that
// updates it, and after the last one its gradient goes there and is added to those of all others, in the order of
// model/fold.h. All of them call this in every run, so nobody needs to know what another one has.
//
// A run that ended well has had all weights and sent all gradients; only what it updates itself changes afterwards, so that
// a commit talks to nobody, and a run that is made again finds everything as it was.
//
// With one replica nothing is done. Thread: the compute thread.
#ifndef BALLAST_EXECUTOR_REPLICAS_H
#define BALLAST_EXECUTOR_REPLICAS_H

#include "executor/engine.h"
#include "executor/stall.h"

// After bl_hub_begin: all weights are current when it returns. BL_UNAVAILABLE, ...: a peer, as the hub says.
BL_MUST_USE bl_status_t bl_replicas_gather(bl_engine_t *engine, bl_stall_t *stall, bl_error_t *err);
// The gradients of what this replica updates are those of the step when it returns; those of others are as they were.
BL_MUST_USE bl_status_t bl_replicas_reduce(bl_engine_t *engine, bl_stall_t *stall, bl_error_t *err);
// Waits until all that other replicas read here has been read.
BL_MUST_USE bl_status_t bl_replicas_settle(bl_engine_t *engine, bl_stall_t *stall, bool reduced, bl_error_t *err);

#endif
