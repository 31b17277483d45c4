// SPDX-License-Identifier: Apache-2.0
// Runs one plan on an engine: executes the operations of a stage in order, receives what each needs and sends its
// results. Nothing here depends on the name of a schedule.
//
// Thread: bl_executor_run on the compute thread. Any thread may read the progress.
#ifndef BALLAST_EXECUTOR_EXECUTOR_H
#define BALLAST_EXECUTOR_EXECUTOR_H

#include "executor/engine.h"
#include "executor/plan.h"
#include "executor/vote.h"

#include <stdatomic.h>

typedef struct bl_run {
  const bl_executor_plan_t *plan;
  bl_run_id_t id;         // of the plan's kind
  uint64_t first_window;  // BL_RUN_VALIDATE
  const uint32_t *tokens; // BL_RUN_GENERATE: the context, oldest first, at most seq of them
  uint32_t token_count;
  uint64_t draw_seed;
  double temperature; // 0: the likeliest token
} bl_run_t;

typedef struct bl_run_progress {
  _Atomic uint32_t done;          // operations finished
  _Atomic uint32_t slots;         // in use
  _Atomic uint64_t wait_since_ns; // start of its wait for a peer or a store; 0: it computes
  _Atomic uint64_t core_since_ns; // start of its wait for a core; 0: it does not wait
  _Atomic uint32_t core_micro_batch;
  atomic_bool cancelled;
} bl_run_progress_t;

// Fills *vote, whose arrays must fit the plan's micro-batches and the engine's parameters. After BL_RUN_TRAIN the
// gradients are those of the step, until the next run. BL_CANCELLED; BL_UNAVAILABLE, BL_DATA_LOSS, BL_DEADLINE: a peer,
// named, or memory (executor/parked.h); BL_INVALID: data (file and offset); BL_INTERNAL: compute.
BL_MUST_USE bl_status_t bl_executor_run(bl_engine_t *engine, const bl_run_t *run, bl_run_progress_t *progress,
                                        bl_vote_t *vote, bl_error_t *err);

// Makes the run end with BL_CANCELLED at its next operation or wait. After bl_executor_run has returned, no transfer of
// its attempt touches a slot. Thread: any.
void bl_executor_interrupt(bl_engine_t *engine, bl_run_progress_t *progress);

// Applies AdamW with the gradients of the last BL_RUN_TRAIN. BL_INTERNAL: compute.
BL_MUST_USE bl_status_t bl_executor_update(bl_engine_t *engine, uint64_t step, double scale, double learning_rate,
                                           bl_error_t *err);

#endif
