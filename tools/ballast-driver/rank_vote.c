// SPDX-License-Identifier: Apache-2.0
#include "rank_vote.h"

#include "model/layer_parts.h"
#include "model/shard.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Returns a copy of `count` items. NULL: there are none, or no memory.
static void *copy_items(const void *items, size_t count, size_t item_bytes) {
  void *copy = count > 0 ? malloc(count * item_bytes) : NULL;
  if (copy != NULL) {
    memcpy(copy, items, count * item_bytes);
  }
  return copy;
}

bl_status_t bl_rank_vote_copy(bl_rank_vote_t *to, const bl_rank_vote_t *from) {
  bl_rank_vote_t made = *from;
  made.losses = copy_items(from->losses, from->loss_count, sizeof *from->losses);
  made.parameter_indices = copy_items(from->parameter_indices, from->square_count, sizeof *from->parameter_indices);
  made.squares = copy_items(from->squares, from->square_count, sizeof *from->squares);
  made.leased_peaks = copy_items(from->leased_peaks, from->store_count, sizeof *from->leased_peaks);
  bl_rank_vote_cleanup(to);
  if ((from->store_count > 0 && made.leased_peaks == NULL) || (from->loss_count > 0 && made.losses == NULL) ||
      (from->square_count > 0 && (made.parameter_indices == NULL || made.squares == NULL))) {
    bl_rank_vote_cleanup(&made);
    return BL_EXHAUSTED;
  }
  *to = made;
  return BL_OK;
}

void bl_rank_vote_cleanup(bl_rank_vote_t *vote) {
  free(vote->losses);
  free(vote->parameter_indices);
  free(vote->squares);
  free(vote->leased_peaks);
  *vote = (bl_rank_vote_t){0};
}

const char *bl_finite_advice(double clip) {
  return clip > 0 ? "lower train.lr or train.clip" : "lower train.lr or set train.clip";
}

static bl_status_t check_finite(const bl_rank_vote_t *votes, const bl_grid_t *grid, double clip, bl_error_t *err) {
  char name[BL_GRID_NAME_BYTES];
  // Losses of all ranks are checked first, because for them the micro-batch is known.
  for (size_t s = 0; s < bl_grid_ranks(grid); s++) {
    if (!votes[s].finite && votes[s].nonfinite_micro_batch >= 0) {
      return bl_error_set(err, BL_PRECONDITION,
                          "step %" PRIu64 ": the loss of micro-batch %" PRId32 " is not finite (%s); %s, or look at "
                          "the data of that micro-batch",
                          votes[s].step, votes[s].nonfinite_micro_batch, bl_grid_name(grid, (uint32_t)s, name),
                          bl_finite_advice(clip));
    }
  }
  for (size_t s = 0; s < bl_grid_ranks(grid); s++) {
    if (!votes[s].finite) {
      return bl_error_set(err, BL_PRECONDITION,
                          "step %" PRIu64 ": a gradient of %s is not finite though all losses are; %s", votes[s].step,
                          bl_grid_name(grid, (uint32_t)s, name), bl_finite_advice(clip));
    }
  }
  return BL_OK;
}

static bl_status_t sum_losses(const bl_rank_vote_t *votes, const bl_grid_t *grid, size_t micro_batches,
                              bl_vote_result_t *result, bl_error_t *err) {
  size_t reported = 0;
  double sum = 0;
  const bool back =
      bl_copies_pipes(bl_grid_copies(grid)) > 1; // the head of pipe 0 is on the last stage, that of pipe 1 on the first
  const size_t each = (size_t)grid->stages * grid->tensor;
  for (size_t k = 0; k < bl_grid_ranks(grid); k++) { // replicas, and so their micro-batches, follow each other
    const bl_rank_vote_t *vote = &votes[back ? k / each * each + each - 1 - k % each : k];
    for (size_t i = 0; i < vote->loss_count; i++, reported++) {
      sum += vote->losses[i];
    }
    result->tokens += vote->tokens;
  }
  if (reported != micro_batches) {
    return bl_error_set(err, BL_INTERNAL, "step %" PRIu64 ": %zu losses were reported, the step has %zu micro-batches",
                        votes[0].step, reported, micro_batches);
  }
  result->loss = sum / (double)micro_batches;
  return BL_OK;
}

// Sets squares[] of all numbers (bl_square_number); -1: not reported.
static bl_status_t collect_squares(const bl_rank_vote_t *votes, const bl_grid_t *grid, uint32_t parameters,
                                   double *squares, bl_error_t *err) {
  const uint32_t numbers = bl_square_numbers(grid, parameters);
  for (uint32_t i = 0; i < numbers; i++) {
    squares[i] = -1; // squares are not negative
  }
  char name[BL_GRID_NAME_BYTES];
  for (size_t s = 0; s < bl_grid_ranks(grid); s++) {
    for (size_t i = 0; i < votes[s].square_count; i++) {
      const uint32_t number = votes[s].parameter_indices[i];
      if (number >= numbers || squares[number] >= 0) {
        return bl_error_set(err, BL_INTERNAL, "step %" PRIu64 ": %s reports tensor %" PRIu32 ", %s", votes[s].step,
                            bl_grid_name(grid, (uint32_t)s, name), number / bl_square_numbers(grid, 1),
                            number >= numbers                    ? "which does not exist"
                            : bl_grid_ranks(grid) > grid->stages ? "which another rank has reported"
                                                                 : "which another stage has reported");
      }
      squares[number] = votes[s].squares[i];
    }
  }
  return BL_OK;
}

// Adds the squares of a tensor, part by part and in a part share by share. Returns false if some are missing, or if
// others are there.
static bool add_tensor(const bl_model_t *model, const bl_grid_t *grid, uint32_t index, const double *squares,
                       double *sum) {
  const bl_parameter_t parameter = bl_parameter_get(model, index);
  const uint32_t parts = bl_layer_parts_cut(parameter.role) ? grid->tensor_parts : 1,
                 shares = bl_shard_count(&parameter, grid->data_parts), most = bl_grid_shares(grid->data_parts);
  bool complete = true;
  double of_tensor = 0;
  for (uint32_t part = 0; part < grid->tensor_parts; part++) {
    for (uint32_t share = 0; share < most; share++) {
      const double of_share = squares[bl_square_number(grid, index, part, share)];
      const bool wanted = part < parts && share < shares;
      complete = complete && wanted == !(of_share < 0);
      of_tensor += wanted ? of_share : 0;
    }
  }
  *sum += of_tensor;
  return complete;
}

static bl_status_t sum_squares(const bl_rank_vote_t *votes, const bl_grid_t *grid, const bl_model_t *model,
                               double *scratch, bl_vote_result_t *result, bl_error_t *err) {
  const uint32_t parameters = bl_parameter_count(model);
  bl_status_t status = collect_squares(votes, grid, parameters, scratch, err);
  double sum = 0;
  for (uint32_t i = 0; i < parameters && status == BL_OK; i++) {
    if (!add_tensor(model, grid, i, scratch, &sum)) {
      return bl_error_set(err, BL_INTERNAL, "step %" PRIu64 ": no stage reports the gradient of tensor %" PRIu32,
                          votes[0].step, i);
    }
  }
  result->grad_norm = sqrt(sum);
  return status;
}

bl_status_t bl_vote_result_count(const bl_rank_vote_t *votes, const bl_grid_t *grid, size_t micro_batches,
                                 const bl_model_t *model, double clip, double *scratch, bl_vote_result_t *result,
                                 bl_error_t *err) {
  bl_vote_result_t counted = {0};
  bl_status_t status = check_finite(votes, grid, clip, err);
  if (status == BL_OK) {
    status = sum_losses(votes, grid, micro_batches, &counted, err);
  }
  if (status == BL_OK) {
    status = sum_squares(votes, grid, model, scratch, &counted, err);
  }
  if (status == BL_OK && !(isfinite(counted.loss) && isfinite(counted.grad_norm))) {
    status = bl_error_set(err, BL_PRECONDITION, "step %" PRIu64 ": the %s is not finite; %s", votes[0].step,
                          isfinite(counted.loss) ? "gradient norm" : "loss", bl_finite_advice(clip));
  }
  if (status == BL_OK) {
    *result = counted;
  }
  return status;
}

double bl_clip_scale(double clip, double grad_norm) {
  if (clip <= 0) {
    return 1;
  }
  double scale = clip / (grad_norm + 1e-6);
  return scale < 1 ? scale : 1;
}
