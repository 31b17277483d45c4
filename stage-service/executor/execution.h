// SPDX-License-Identifier: Apache-2.0
// One run in progress, as the files that carry it out share it: executor.c (the order, waits, cores), operations.c (what
// is computed) and gradients.c. Private to them. Thread: the compute thread.
#ifndef BALLAST_EXECUTOR_EXECUTION_H
#define BALLAST_EXECUTOR_EXECUTION_H

#include "executor/edges.h"
#include "executor/executor.h"
#include "executor/parked.h"

typedef struct bl__execution {
  bl_engine_t *engine;
  const bl_run_t *run;
  bl_run_progress_t *progress;
  bl_vote_t *vote;
  bl_stall_t stall;
  bl_edges_t edges;
  bl_parked_t parked;
  bool has_core;             // if stages share cores; kept after an operation until the next wait
  bool computes;             // waits inside an operation keep the core, but for those of tensor groups
  uint64_t core_inside_ns;   // for which operations waited for a core that they had given up
  uint32_t core_micro_batch; // micro-batch that it computes on the core
} bl__execution_t;

static inline uint32_t bl__execution_slices(const bl__execution_t *execution) {
  return execution->engine->training.schedule->slices;
}

// ---- operations.c

// Computes an operation that is ready and sends its result, or moves its block.
bl_status_t bl__execution_compute(bl__execution_t *execution, const bl_planned_op_t *op, bl_error_t *err);
// Returns the pipe of the plan whose last chunk, with the head, is on this stage; the number of pipes: none.
uint32_t bl__execution_head_pipe(const bl__execution_t *execution);
// Tells the chunk with the head how many labels of the step, or of the validation, count. BL_INVALID: a mask.
BL_MUST_USE bl_status_t bl__execution_count_labels(const bl__execution_t *execution, bl_error_t *err);
// Collects in the vote what the head has written. After all work has ended.
void bl__execution_collect_losses(bl__execution_t *execution);

// ---- gradients.c

void bl__gradients_clear(bl_engine_chunk_t *chunk);
// Clears the gradients of a chunk before its first backward, if weights were in their place until now.
bl_status_t bl__gradients_begin(bl__execution_t *execution, bl_op_t op, bl_error_t *err);
// After the last operation: sums over replicas, tied parts and tensor ranks, and asks for squares.
bl_status_t bl__gradients_finish(bl__execution_t *execution, bl_error_t *err);
// Collects the squares in the vote. After all work has ended.
void bl__gradients_collect(bl__execution_t *execution);

#endif
