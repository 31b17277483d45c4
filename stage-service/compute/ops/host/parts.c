// SPDX-License-Identifier: Apache-2.0
// Operations that layers in parts need in addition to those of whole layers (model/layer_parts.h).
#include "compute/ops/host/compute.h"

#include <math.h>
#include <string.h>

void bl__sum_parts(bl_compute_t *compute, uint64_t rows, uint64_t width, bl_compute_dtype_t dtype, uint32_t count,
                   const void *const *parts, const float *bias, const void *residual, void *y) {
  BL__PARALLEL(compute, rows, 1, range) {
    for (size_t row = range.first; row < range.last; row++) {
      bl__typed(compute, dtype)->sum_parts(row * width, width, count, parts, bias, residual, y);
    }
  }
}

// Row `index` of a table that begins with row `first` and has `count` rows; NULL: another part has it.
static const float *row_of(const float *table, uint64_t index, uint64_t first, uint64_t count, uint64_t width) {
  return table && index >= first && index - first < count ? table + (index - first) * width : NULL;
}

void bl__embedding_part_forward(bl_compute_t *compute, const bl_embedding_part_t *part, const int32_t *tokens,
                                const float *wte, const float *wpe, void *x) {
  BL__PARALLEL(compute, part->batch * part->seq, 1, rows) {
    for (size_t row = rows.first; row < rows.last; row++) {
      void *to = bl__element_to(part->dtype, x, row * part->width);
      const float *token = row_of(wte, (uint64_t)tokens[row], part->first_token, part->tokens, part->width);
      const float *position =
          row_of(wpe, part->start + row % part->seq, part->first_position, part->positions, part->width);
      if (token || position) {
        bl__typed(compute, part->dtype)
            ->embed(part->width, token ? part->scale : 1.0f, token ? token : position, token ? position : NULL, to);
      } else {
        memset(to, 0, part->width * bl__element_bytes(part->dtype));
      }
    }
  }
}

void bl__embedding_part_backward(bl_compute_t *compute, const bl_embedding_part_t *part, const int32_t *tokens,
                                 const void *dx, float *dwte, float *dwpe) {
  // Threads split columns: every column sees the rows in token order.
  BL__PARALLEL(compute, part->width, 16, columns) {
    const bl_typed_kernels_t *kernels = bl__typed(compute, part->dtype);
    const size_t count = columns.last - columns.first;
    for (size_t row = 0; row < part->batch * part->seq; row++) {
      const void *gradient = bl__element(part->dtype, dx, row * part->width + columns.first);
      const float *tables[] = {
          row_of(dwte, (uint64_t)tokens[row], part->first_token, part->tokens, part->width),
          row_of(dwpe, part->start + row % part->seq, part->first_position, part->positions, part->width)};
      for (size_t i = 0; i < 2; i++) {
        if (tables[i]) {
          kernels->accumulate_gradient(count, i == 0 ? part->scale : 1.0f, gradient,
                                       (float *)(uintptr_t)tables[i] + columns.first);
        }
      }
    }
  }
}

// Column of a row's label among those from `first` on; `vocab`: another part has it.
static size_t column_of(int32_t label, uint64_t first, uint64_t vocab) {
  const uint64_t token = (uint64_t)label;
  return token >= first && token - first < vocab ? token - first : vocab;
}

void bl__softmax_statistics(bl_compute_t *compute, uint64_t rows, uint64_t vocab, uint64_t stride, uint64_t first,
                            const int32_t *labels, const float *logits, float *statistics) {
  BL__PARALLEL(compute, rows, 1, range) {
    for (size_t row = range.first; row < range.last; row++) {
      const float *line = logits + row * stride;
      float *to = statistics + row * BL_SOFTMAX_STATISTICS;
      const size_t label = column_of(labels[row], first, vocab);
      compute->kernels->softmax_statistics(vocab, line, &to[0], &to[1]);
      to[2] = label < vocab ? line[label] : 0.0f;
    }
  }
}

void bl__cross_entropy_part(bl_compute_t *compute, uint64_t rows, uint64_t vocab, uint64_t stride, uint64_t first,
                            bl_compute_dtype_t dtype, const int32_t *labels, float scale, float softcap, uint32_t parts,
                            const float *statistics, float *logits, double *row_losses) {
  BL__PARALLEL(compute, rows, 1, range) {
    for (size_t row = range.first; row < range.last; row++) {
      if (labels[row] < 0) {
        memset(logits + row * stride, 0, vocab * bl__element_bytes(dtype));
        if (row_losses) {
          row_losses[row] = 0.0;
        }
        continue;
      }
      float largest = -INFINITY, label_logit = 0.0f;
      double total = 0.0;
      for (uint32_t part = 0; part < parts; part++) {
        const float *of = statistics + (part * rows + row) * BL_SOFTMAX_STATISTICS;
        largest = of[0] > largest ? of[0] : largest;
        label_logit += of[2]; // one part has it, the others add 0
      }
      for (uint32_t part = 0; part < parts; part++) {
        const float *of = statistics + (part * rows + row) * BL_SOFTMAX_STATISTICS;
        total += (double)of[1] * exp((double)of[0] - (double)largest);
      }
      bl__typed(compute, dtype)
          ->softmax_gradient(vocab, column_of(labels[row], first, vocab), scale, softcap, largest,
                             (float)((double)scale / total), logits + row * stride);
      if (row_losses) {
        row_losses[row] = log(total) + ((double)largest - (double)label_logit);
      }
    }
  }
}
