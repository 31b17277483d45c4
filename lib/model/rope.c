// SPDX-License-Identifier: Apache-2.0
#include "model/rope.h"

#include <math.h>
#include <stddef.h>

#define FULL_TURN 6.283185307179586

double bl_rope_frequency(const bl_rope_t *rope, uint64_t i, uint64_t head_dim) {
  const double frequency = 1.0 / pow(rope->theta, 2.0 * (double)i / (double)head_dim);
  const double slow = rope->kind == BL_ROPE_DEFAULT ? frequency : frequency / rope->factor;
  if (rope->kind != BL_ROPE_LLAMA3) {
    return slow;
  }
  const double turns = rope->original * frequency / FULL_TURN; // in the original sequence
  if (turns < rope->low_frequency) {
    return slow;
  }
  if (turns > rope->high_frequency) {
    return frequency;
  }
  const double share = (turns - rope->low_frequency) / (rope->high_frequency - rope->low_frequency);
  return (1.0 - share) * slow + share * frequency;
}

static bool is_positive(double number) {
  return isfinite(number) && number > 0;
}

const char *bl_rope_fault(const bl_rope_t *rope) {
  if (!is_positive(rope->theta)) {
    return "rope_theta must be above 0";
  }
  if (rope->kind == BL_ROPE_DEFAULT) {
    return NULL;
  }
  if (!isfinite(rope->factor) || rope->factor < 1) {
    return "factor must be at least 1";
  }
  if (rope->kind == BL_ROPE_LINEAR) {
    return NULL;
  }
  if (!is_positive(rope->low_frequency) || !is_positive(rope->high_frequency) ||
      rope->low_frequency >= rope->high_frequency) {
    return "low_freq_factor must be above 0 and below high_freq_factor";
  }
  return is_positive(rope->original) ? NULL : "original_max_position_embeddings must be above 0";
}
