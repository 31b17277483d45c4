// SPDX-License-Identifier: Apache-2.0
// Loss over rows of logits, and the draw of a token from one row.
#include "compute/ops/draw.h"
#include "compute/ops/host/compute.h"

#include <math.h>
#include <string.h>

#define GRAIN 64 // elements

void bl__softcap_logits(bl_compute_t *compute, uint64_t rows, uint64_t vocab, uint64_t stride, float softcap,
                        float *logits) {
  for (uint64_t row = 0; row < (stride == vocab ? 1 : rows); row++) { // dense rows are handled as one
    float *line = logits + row * stride;
    BL__PARALLEL(compute, stride == vocab ? rows * vocab : vocab, GRAIN, part) {
      compute->kernels->softcap(part.last - part.first, softcap, line + part.first);
    }
  }
}

void bl__cross_entropy(bl_compute_t *compute, uint64_t rows, uint64_t vocab, uint64_t stride, bl_compute_dtype_t dtype,
                       const int32_t *labels, float scale, float softcap, float *logits, double *row_losses) {
  BL__PARALLEL(compute, rows, 1, part) {
    for (size_t row = part.first; row < part.last; row++) {
      float *line = logits + row * stride;
      if (labels[row] < 0) {
        memset(line, 0, vocab * bl__element_bytes(dtype));
        row_losses[row] = 0.0;
      } else {
        row_losses[row] = bl__typed(compute, dtype)->cross_entropy(vocab, (size_t)labels[row], scale, softcap, line);
      }
    }
  }
}

void bl__loss_sum(bl_compute_t *compute, uint64_t rows, const double *row_losses, double *loss,
                  int64_t *first_bad_row) {
  (void)compute;
  double sum = 0.0;
  int64_t bad = -1;
  for (uint64_t row = 0; row < rows; row++) {
    sum += row_losses[row];
    if (bad < 0 && !isfinite(row_losses[row])) {
      bad = (int64_t)row;
    }
  }
  *loss = sum;
  *first_bad_row = bad;
}

int32_t bl__draw(bl_compute_t *compute, uint64_t vocab, const float *logits, float temperature, double uniform) {
  (void)compute;
  return bl_draw_token(vocab, logits, temperature, uniform);
}
