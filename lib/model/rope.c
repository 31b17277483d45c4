// SPDX-License-Identifier: Apache-2.0
#include "model/rope.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define TWO_PI 6.283185307179586

bool bl_rope_equal(const bl_rope_t *a, const bl_rope_t *b) {
  return a->kind == b->kind && a->theta == b->theta && a->factor == b->factor && a->low_frequency == b->low_frequency &&
         a->high_frequency == b->high_frequency && a->original == b->original && a->dims == b->dims &&
         memcmp(a->divisors, b->divisors, sizeof a->divisors) == 0;
}

double bl_rope_scale(const bl_rope_t *rope) {
  return rope->kind == BL_ROPE_LONG && rope->factor > 1 ? sqrt(1 + log(rope->factor) / log(rope->original)) : 1;
}

double bl_rope_frequency(const bl_rope_t *rope, uint64_t i, uint64_t head_dim, uint64_t seq) {
  const double frequency = 1.0 / pow(rope->theta, 2.0 * (double)i / (double)bl_rope_dims(rope, head_dim));
  if (rope->kind == BL_ROPE_LONG) {
    return frequency / (double)rope->divisors[(double)seq > rope->original][i];
  }
  const double slow = rope->kind == BL_ROPE_DEFAULT ? frequency : frequency / rope->factor;
  if (rope->kind != BL_ROPE_LLAMA3) {
    return slow;
  }
  const double rotations = rope->original * frequency / TWO_PI; // within the original sequence length
  if (rotations < rope->low_frequency) {
    return slow;
  }
  if (rotations > rope->high_frequency) {
    return frequency;
  }
  const double share = (rotations - rope->low_frequency) / (rope->high_frequency - rope->low_frequency);
  return (1.0 - share) * slow + share * frequency;
}

static bool is_positive(double number) {
  return isfinite(number) && number > 0;
}

static const char *long_fault(const bl_rope_t *rope, uint64_t head_dim) {
  const uint64_t pairs = bl_rope_dims(rope, head_dim) / 2;
  if (pairs > BL_ROPE_DIVISORS) {
    return "longrope rotates heads of at most 128 dimensions";
  }
  for (uint64_t i = 0; i < pairs; i++) {
    if (!is_positive((double)rope->divisors[0][i]) || !is_positive((double)rope->divisors[1][i])) {
      return "short_factor and long_factor must have a number above 0 for every pair of dimensions that turn";
    }
  }
  return isfinite(rope->original) && rope->original > 1 ? NULL : "original_max_position_embeddings must be above 1";
}

const char *bl_rope_fault(const bl_rope_t *rope, uint64_t head_dim) {
  if (!is_positive(rope->theta)) {
    return "rope_theta must be above 0";
  }
  if (rope->dims % 2 != 0) {
    return "partial_rotary_factor must leave an even number of dimensions";
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
  if (rope->kind == BL_ROPE_LONG) {
    return long_fault(rope, head_dim);
  }
  if (!is_positive(rope->low_frequency) || !is_positive(rope->high_frequency) ||
      rope->low_frequency >= rope->high_frequency) {
    return "low_freq_factor must be above 0 and below high_freq_factor";
  }
  return is_positive(rope->original) ? NULL : "original_max_position_embeddings must be above 0";
}
