// SPDX-License-Identifier: Apache-2.0
// The driver's copy of one rank's vote, and the sum of the votes of all ranks.
//
// Losses and gradient norms must not depend on how the model is divided (EXECUTION.md 8). Sums are taken over
// micro-batches in their order and over tensors in canonical order, in fp64, never over partial sums of stages.
//
// Pure. Thread: values of their owner.
#ifndef BALLAST_DRIVER_RANK_VOTE_H
#define BALLAST_DRIVER_RANK_VOTE_H

#include "base/error.h"
#include "model/grid.h"
#include "model/model.h"
#include "step/stage_counters.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// One rank's vote. As an argument it may borrow its arrays; one created by bl_rank_vote_copy owns them.
typedef struct bl_rank_vote {
  uint64_t step;
  uint64_t attempt; // 0: none
  bool finite;
  int32_t nonfinite_micro_batch; // -1: none
  double *losses;                // [loss_count], per micro-batch of its pipe, mean over its tokens; stages with a head
  size_t loss_count;
  uint32_t *parameter_indices; // [square_count], by bl_square_number
  double *squares;             // [square_count], fp64 sum of squares of that tensor's gradient
  size_t square_count;
  uint64_t tokens; // stages with a head
  bl_stage_counters_t counters;
  uint32_t *leased_peaks; // [store_count], by store of the plan: most slots of that store that the stage used at once
  size_t store_count;     // 0: it evicts nothing
} bl_rank_vote_t;

// Makes *to an owned copy and frees what it owned before. BL_EXHAUSTED leaves it without a vote.
BL_MUST_USE bl_status_t bl_rank_vote_copy(bl_rank_vote_t *to, const bl_rank_vote_t *from);
void bl_rank_vote_cleanup(bl_rank_vote_t *vote); // a zeroed one is fine

// The result of all votes of one training attempt.
typedef struct bl_vote_result {
  double loss;      // mean over the micro-batches
  double grad_norm; // before clipping
  uint64_t tokens;
} bl_vote_result_t;

// Sums up the votes of all ranks of `grid` for a step of `micro_batches` micro-batches. scratch [bl_square_numbers].
// BL_INTERNAL: a loss or a tensor is missing, or was counted twice; names rank and tensor. BL_PRECONDITION: a loss or
// gradient is not finite; names step, micro-batch and rank, and advises as bl_finite_advice(clip).
BL_MUST_USE bl_status_t bl_vote_result_count(const bl_rank_vote_t *votes, const bl_grid_t *grid, size_t micro_batches,
                                             const bl_model_t *model, double clip, double *scratch,
                                             bl_vote_result_t *result, bl_error_t *err);

// Returns what to do about a number that is not finite. clip: train.clip, 0 if gradients are not clipped.
const char *bl_finite_advice(double clip);

// Returns the factor on every gradient: min(1, clip / (norm + 1e-6)); 1 if clip is 0.
double bl_clip_scale(double clip, double grad_norm);

#endif
