// SPDX-License-Identifier: Apache-2.0
// Draws a token from one row of logits in the CPU's memory, for every back end. Pure. Thread: any.
#ifndef BALLAST_COMPUTE_OPS_DRAW_H
#define BALLAST_COMPUTE_OPS_DRAW_H

#include <math.h>
#include <stdint.h>

// As bl_ops_t's draw; logits [vocab].
static inline int32_t bl_draw_token(uint64_t vocab, const float *logits, float temperature, double uniform) {
  uint64_t largest = 0;
  for (uint64_t i = 0; i < vocab; i++) {
    if (!isfinite(logits[i])) {
      return -1;
    }
    if (logits[i] > logits[largest]) {
      largest = i;
    }
  }
  if (temperature <= 0.0f) {
    return (int32_t)largest;
  }
  // Two passes instead of a buffer: the sum, then the token at which the running sum passes its share.
  const double inverse = 1.0 / (double)temperature;
  double total = 0.0;
  for (uint64_t i = 0; i < vocab; i++) {
    total += exp(((double)logits[i] - (double)logits[largest]) * inverse);
  }
  double running = 0.0;
  for (uint64_t i = 0; i < vocab; i++) {
    running += exp(((double)logits[i] - (double)logits[largest]) * inverse);
    if (running > uniform * total) {
      return (int32_t)i;
    }
  }
  return (int32_t)largest; // rounding left the last sum below uniform
}

#endif
