// SPDX-License-Identifier: Apache-2.0
// The blocks of one run: which are in their slots, which have left, and how each comes back before its backward, from
// where it was parked or made again from its kept input (PROTOCOL.md 5).
//
// E hands the block to the parking (executor/parking.h) and the slot is free when it has left: that is waited for when
// the slot is next written, not before, so the copy has as long as the plan leaves it. L begins the copy back, and the
// block's I or B waits for it. An L directly before that one waits for its slot and begins the copy while the gradient is
// on its way. In both transfer modes (schedule/ir/schedule.h): they differ in where the plan puts E and L and from when on
// it counts the slot as free.
//
// On a device that is told ahead the CPU waits for none of it: the device hashes what leaves and what has come back, transfers
// begin when it has come to them (parking.h, rule 9), and what came back changed is found at the end of the run
// (bl_parked_judge), which is then run again.
//
// Thread: the compute thread. The tables are the engine's, one entry per block and slot, so that nothing is allocated.
#ifndef BALLAST_EXECUTOR_PARKED_H
#define BALLAST_EXECUTOR_PARKED_H

#include "executor/engine.h"
#include "executor/plan.h"
#include "executor/stall.h"
#include "executor/vote.h"

typedef struct bl_parked {
  bl_engine_t *engine;
  const bl_executor_plan_t *plan;
  bl_stall_t *stall;
  bl_stage_counters_t *counters; // evicted, loaded, lost, dropped, recomputed, busy_ns
  uint64_t attempt;
} bl_parked_t;

// All blocks are at home. BL_OK without a parking.
BL_MUST_USE bl_status_t bl_parked_begin(bl_parked_t *parked, bl_error_t *err);
// After a run that failed: nothing touches a slot any more.
void bl_parked_abort(bl_parked_t *parked);

// After F: where the block's kept input is.
void bl_parked_made(bl_parked_t *parked, const bl_planned_op_t *op);
// E and L. What the functions below return besides: BL_CANCELLED, or what the parking says is beyond repair.
BL_MUST_USE bl_status_t bl_parked_evict(bl_parked_t *parked, const bl_planned_op_t *op, bl_error_t *err);
BL_MUST_USE bl_status_t bl_parked_load(bl_parked_t *parked, const bl_planned_op_t *op, bl_error_t *err);
// Takes note of evictions that are over and whose slot the plan counts as free before operation `index`.
BL_MUST_USE bl_status_t bl_parked_reap(bl_parked_t *parked, size_t index, bl_error_t *err);
// Before an operation writes a slot: waits until what was in it has left.
BL_MUST_USE bl_status_t bl_parked_wait_slot(bl_parked_t *parked, uint32_t slot, bl_error_t *err);
// Before I or B: the block is in its slot. BL_DATA_LOSS: made again, it is not what it was; or it was lost, and the job
// wants the step to be run again then (balance.on_loss).
BL_MUST_USE bl_status_t bl_parked_wait_block(bl_parked_t *parked, const bl_planned_op_t *op, bl_error_t *err);
// After the last operation, when all that the device was told is over. BL_DATA_LOSS: a block was not what had left.
BL_MUST_USE bl_status_t bl_parked_judge(const bl_parked_t *parked, bl_error_t *err);

#endif
