// SPDX-License-Identifier: Apache-2.0
// Softmax cross-entropy of one row of float logits, and its gradient, whose elements start where the row starts.
#include "compute/ops/host/kernels/functions.h"
#include "compute/ops/host/kernels/typed/element.h"
#include "compute/ops/host/kernels/vector.h"

#include <math.h>

#define PIECE 256

// Writes the exponentials times the factor as elements from the start of the row on.
static void write_gradient(size_t vocab, float factor, float *logits) {
  bl__element_t *gradient = (bl__element_t *)(void *)logits;
  // Elements are no longer than floats: no unread float is overwritten.
  for (size_t start = 0; start < vocab; start += PIECE) {
    const size_t count = vocab - start < PIECE ? vocab - start : PIECE;
    bl__element_t piece[PIECE];
    for (size_t i = 0; i < count; i++) {
      piece[i] = bl__element_of(logits[start + i] * factor);
    }
    memcpy(gradient + start, piece, count * sizeof *piece);
  }
}

// Like write_gradient, for softcapped logits. It recomputes the exponentials, because the slope of the softcap needs
// the logits themselves.
static void write_softcapped(size_t vocab, size_t label, float scale, float softcap, float largest, float factor,
                             float *logits) {
  bl__element_t *gradient = (bl__element_t *)(void *)logits;
  const float inverse = 1.0f / softcap;
  for (size_t start = 0; start < vocab; start += PIECE) {
    const size_t count = vocab - start < PIECE ? vocab - start : PIECE;
    float piece[PIECE];
    for (size_t i = 0; i < count; i++) {
      piece[i] = bl__exp(logits[start + i] - largest) * factor;
    }
    if (label >= start && label - start < count) {
      piece[label - start] -= scale;
    }
    bl__element_t elements[PIECE];
    for (size_t i = 0; i < count; i++) {
      const float t = logits[start + i] * inverse;
      elements[i] = bl__element_of(piece[i] * (1.0f - t * t));
    }
    memcpy(gradient + start, elements, count * sizeof *elements);
  }
}

// The sum of exp(logit - largest), without keeping the exponentials.
static double sum_softcapped(size_t vocab, float largest, const float *logits) {
  double total = 0.0;
  for (size_t start = 0; start < vocab; start += 1024) {
    const size_t end = vocab - start < 1024 ? vocab : start + 1024;
    float sum = 0.0f;
    for (size_t i = start; i < end; i++) {
      sum += bl__exp(logits[i] - largest);
    }
    total += (double)sum;
  }
  return total;
}

double BL_KERNEL(cross_entropy)(size_t vocab, size_t label, float scale, float softcap, float *logits) {
  const float largest = bl__largest(logits, vocab, -INFINITY);
  const double label_logit = logits[label];
  if (softcap != 0.0f) {
    const double sum = sum_softcapped(vocab, largest, logits);
    write_softcapped(vocab, label, scale, softcap, largest, (float)((double)scale / sum), logits);
    return log(sum) + ((double)largest - label_logit);
  }
  // Sums of 1024 in float, the sum of those in double: fp32 rounding does not grow with the vocabulary.
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

void BL_KERNEL(softmax_gradient)(size_t vocab, size_t label, float scale, float softcap, float largest, float factor,
                                 float *logits) {
  if (softcap != 0.0f) {
    write_softcapped(vocab, label, scale, softcap, largest, factor, logits);
    return;
  }
  for (size_t i = 0; i < vocab; i++) {
    logits[i] = bl__exp(logits[i] - largest);
  }
  const float label_gradient = label < vocab ? logits[label] * factor - scale : 0.0f;
  write_gradient(vocab, factor, logits);
  if (label < vocab) {
    ((bl__element_t *)(void *)logits)[label] = bl__element_of(label_gradient);
  }
}
