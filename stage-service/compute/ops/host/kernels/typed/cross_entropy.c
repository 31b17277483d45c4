// SPDX-License-Identifier: Apache-2.0
// Softmax cross-entropy of one row of float logits, and its gradient, which as elements starts where the row does.
#include "compute/ops/host/kernels/functions.h"
#include "compute/ops/host/kernels/typed/element.h"
#include "compute/ops/host/kernels/vector.h"

#include <math.h>

#define PIECE 256

double BL_KERNEL(cross_entropy)(size_t vocab, size_t label, float scale, float *logits) {
  const float largest = bl__largest(logits, vocab, -INFINITY);
  const double label_logit = logits[label];
  // Sums of 1024 in float, of those in double: fp32 rounding does not grow with the vocabulary.
  double total = 0.0;
  for (size_t start = 0; start < vocab; start += 1024) {
    const size_t end = vocab - start < 1024 ? vocab : start + 1024;
    float sum = 0.0f;
    for (size_t i = start; i < end; i++) {
      float e = bl__exp(logits[i] - largest);
      logits[i] = e;
      sum += e;
    }
    total += (double)sum;
  }
  const float factor = (float)((double)scale / total);
  const float label_gradient = logits[label] * factor - scale;
  bl__element_t *gradient = (bl__element_t *)(void *)logits;
  for (size_t start = 0; start < vocab; start += PIECE) { // elements are no longer than floats: none is hit unread
    const size_t count = vocab - start < PIECE ? vocab - start : PIECE;
    bl__element_t piece[PIECE];
    for (size_t i = 0; i < count; i++) {
      piece[i] = bl__element_of(logits[start + i] * factor);
    }
    memcpy(gradient + start, piece, count * sizeof *piece);
  }
  gradient[label] = bl__element_of(label_gradient);
  return log(total) + ((double)largest - label_logit);
}
