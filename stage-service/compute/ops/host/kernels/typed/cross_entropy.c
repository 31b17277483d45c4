// SPDX-License-Identifier: Apache-2.0
// Softmax cross-entropy of one row of float logits, and its gradient, which as elements starts where the row does.
#include "compute/ops/host/kernels/functions.h"
#include "compute/ops/host/kernels/typed/element.h"
#include "compute/ops/host/kernels/vector.h"

#include <math.h>

#define PIECE 256

// Exponentials times the factor become elements from the start of the row on.
static void write_gradient(size_t vocab, float factor, float *logits) {
  bl__element_t *gradient = (bl__element_t *)(void *)logits;
  for (size_t start = 0; start < vocab; start += PIECE) { // elements are no longer than floats: none is hit unread
    const size_t count = vocab - start < PIECE ? vocab - start : PIECE;
    bl__element_t piece[PIECE];
    for (size_t i = 0; i < count; i++) {
      piece[i] = bl__element_of(logits[start + i] * factor);
    }
    memcpy(gradient + start, piece, count * sizeof *piece);
  }
}

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
  write_gradient(vocab, factor, logits);
  ((bl__element_t *)(void *)logits)[label] = bl__element_of(label_gradient);
  return log(total) + ((double)largest - label_logit);
}

void BL_KERNEL(softmax_gradient)(size_t vocab, size_t label, float scale, float largest, float factor, float *logits) {
  for (size_t i = 0; i < vocab; i++) {
    logits[i] = bl__exp(logits[i] - largest);
  }
  const float label_gradient = label < vocab ? logits[label] * factor - scale : 0.0f;
  write_gradient(vocab, factor, logits);
  if (label < vocab) {
    ((bl__element_t *)(void *)logits)[label] = bl__element_of(label_gradient);
  }
}
