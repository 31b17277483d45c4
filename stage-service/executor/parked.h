// SPDX-License-Identifier: Apache-2.0
// The blocks of one run: which are in their slots, which were evicted, and how each is restored before its backward. A
// block is loaded from where it was parked, or recomputed from its kept input (PROTOCOL.md 5).
//
// E hands the block to the parking (executor/parking.h). The slot is free when the block has left. The executor waits
// for that only when the slot is next written, so the copy has as much time as the plan leaves it. L begins the load,
// and the block's I or B waits for it. An L directly before that operation waits for its slot and begins the load while
// the gradient is still being received. This holds in both transfer modes (schedule/ir/schedule.h): they differ in
// where the plan puts E and L, and from when on it counts the slot as free.
//
// On an asynchronous device (engine.h) the CPU waits for none of this. Transfers begin when the device reaches them
// (parking.h, rule 9). The device hashes what leaves, and what is loaded into its own memory: a block with a wrong hash
// is found at the end of the run (bl_parked_judge), which is then repeated. Blocks that move through twins of slots are
// copied there, and back, in the order of the device's stream; the parking checks them in the twin.
//
// Thread: the compute thread. The engine owns the tables, one entry per block and slot, so that a run allocates
// nothing.
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

// Sets all blocks to be in their slots. BL_OK without a parking.
BL_MUST_USE bl_status_t bl_parked_begin(bl_parked_t *parked, bl_error_t *err);
// Called after a run that failed. When it returns, nothing touches a slot any more.
void bl_parked_abort(bl_parked_t *parked);

// Called after F: notes where the block's kept input is.
void bl_parked_made(bl_parked_t *parked, const bl_planned_op_t *op);
// E and L. Like the functions below they also return BL_CANCELLED, or a status of the parking that ends the run.
BL_MUST_USE bl_status_t bl_parked_evict(bl_parked_t *parked, const bl_planned_op_t *op, bl_error_t *err);
BL_MUST_USE bl_status_t bl_parked_load(bl_parked_t *parked, const bl_planned_op_t *op, bl_error_t *err);
// Processes evictions that have ended and whose slot the plan counts as free before operation `index`.
BL_MUST_USE bl_status_t bl_parked_reap(bl_parked_t *parked, size_t index, bl_error_t *err);
// Called before an operation writes a slot. Waits until the block in it has left.
BL_MUST_USE bl_status_t bl_parked_wait_slot(bl_parked_t *parked, uint32_t slot, bl_error_t *err);
// Called before I or B. Waits until the block is in its slot. BL_DATA_LOSS: a recomputed block differs from the evicted
// one; or a block was lost and the job then wants the step repeated (balance.on_loss).
BL_MUST_USE bl_status_t bl_parked_wait_block(bl_parked_t *parked, const bl_planned_op_t *op, bl_error_t *err);
// Called after the last operation, when all work queued on the device has ended. BL_DATA_LOSS: a loaded block differs
// from the evicted one.
BL_MUST_USE bl_status_t bl_parked_judge(const bl_parked_t *parked, bl_error_t *err);

#endif
