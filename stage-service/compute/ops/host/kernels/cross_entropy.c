// SPDX-License-Identifier: Apache-2.0
// Softmax cross-entropy of one row of logits, and its gradient in place.
#include "compute/ops/host/kernels/functions.h"
#include "compute/ops/host/kernels/vector.h"

#include <math.h>

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
  for (size_t i = 0; i < vocab; i++) {
    logits[i] *= factor;
  }
  logits[label] -= scale;
  return log(total) + ((double)largest - label_logit);
}
