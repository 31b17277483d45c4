// SPDX-License-Identifier: Apache-2.0
// AdamW (Loshchilov and Hutter, 2019) as PyTorch computes it: one step's update in terms of the operation table.
//
// Thread: pure functions, any thread.
#ifndef BALLAST_COMPUTE_OPTIMIZER_ADAMW_H
#define BALLAST_COMPUTE_OPTIMIZER_ADAMW_H

#include "compute/ops/ops.h"

#include <stdbool.h>
#include <stdint.h>

// Which tensors decay.
typedef enum bl_decay { BL_DECAY_MATRICES, BL_DECAY_ALL } bl_decay_t;

typedef struct bl_adamw_settings {
  double beta1, beta2;
  double epsilon;
  double weight_decay;
  bl_decay_t decay;
} bl_adamw_settings_t;

typedef struct bl_adamw_step {
  uint64_t step;         // step of the whole training, from 1; used by the bias correction
  double rate;           // learning rate of this step
  double gradient_scale; // clipping factor, 1 without
} bl_adamw_step_t;

// Returns the options for one tensor, a matrix or not. This is the one place that decides what decays. Bias corrections
// are computed in double and rounded once.
bl_adamw_t bl_adamw_for_step(const bl_adamw_settings_t *settings, const bl_adamw_step_t *step, bool matrix);

#endif
