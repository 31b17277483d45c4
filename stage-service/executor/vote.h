// SPDX-License-Identifier: Apache-2.0
// The outcome of one run on one stage, from which the driver decides about a commit.
//
// Thread: values; a vote belongs to its current owner.
#ifndef BALLAST_EXECUTOR_VOTE_H
#define BALLAST_EXECUTOR_VOTE_H

#include "base/status.h"
#include "step/stage_counters.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct bl_vote {
  uint64_t step;
  uint64_t attempt;
  uint64_t plan_version;
  bool finite;                   // all losses and gradients are finite
  int32_t nonfinite_micro_batch; // first whose loss is not finite, -1: none
  // Per micro-batch of this stage's pipe, mean over its tokens; on a stage with the head.
  double *losses;
  uint32_t loss_count;
  uint32_t *parameter_indices; // canonical index of each entry of `squares`
  double *squares;             // fp64 sum of squares of that tensor's gradient
  uint32_t square_count;
  uint64_t token_count;    // trained on or evaluated; on the stage with the head
  int32_t generated_token; // drawn by BL_RUN_GENERATE on the stage with the head, else -1
  bl_stage_counters_t counters;
  uint32_t *leased_peaks; // by store of the plan: most slots of that store in use at once
  uint32_t store_count;   // 0: the plan evicts nothing
} bl_vote_t;

// Allocates space for `losses` losses, `squares` squares and `stores` peaks, so that runs do not allocate.
// BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_vote_init(bl_vote_t *vote, uint32_t losses, uint32_t squares, uint32_t stores);
void bl_vote_cleanup(bl_vote_t *vote); // a zeroed one is fine

#endif
