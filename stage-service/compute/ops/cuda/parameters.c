// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/cuda/compute.h"

#include <math.h>

static bl__adamw_t adamw_of(const bl_adamw_tensor_t *tensor) {
  const bl_adamw_t *options = &tensor->options;
  return (bl__adamw_t){.dw = tensor->dw,
                       .w = tensor->w,
                       .m = tensor->m,
                       .v = tensor->v,
                       .packed = tensor->packed,
                       .count = tensor->count,
                       .beta1 = options->beta1,
                       .beta2 = options->beta2,
                       .rest1 = 1.0f - options->beta1,
                       .rest2 = 1.0f - options->beta2,
                       .keep = 1.0f - options->rate * options->weight_decay,
                       .step = options->rate / options->correction1,
                       .inverse_root2 = 1.0f / sqrtf(options->correction2),
                       .epsilon = options->epsilon,
                       .scale = options->gradient_scale};
}

void bl__cuda_adamw(bl_compute_t *compute, uint32_t count, const bl_adamw_tensor_t *tensors) {
  for (uint32_t first = 0; first < count; first += BL__TENSORS_MAX) {
    bl__adamw_t some[BL__TENSORS_MAX];
    const uint32_t these = count - first < BL__TENSORS_MAX ? count - first : BL__TENSORS_MAX;
    for (uint32_t i = 0; i < these; i++) {
      some[i] = adamw_of(&tensors[first + i]);
    }
    bl__cuda_launched(compute, bl__launch_adamw(compute->stream, these, some), "adamw");
  }
}

void bl__cuda_sum_squares(bl_compute_t *compute, uint32_t count, const bl_squares_t *tensors) {
  for (uint32_t first = 0; first < count; first += BL__TENSORS_MAX) {
    bl__squares_t some[BL__TENSORS_MAX];
    const uint32_t these = count - first < BL__TENSORS_MAX ? count - first : BL__TENSORS_MAX;
    for (uint32_t i = 0; i < these; i++) {
      const bl_squares_t *tensor = &tensors[first + i];
      some[i] = (bl__squares_t){.x = tensor->x, .sum = tensor->sum, .count = tensor->count};
    }
    bl__cuda_launched(compute, bl__launch_sum_squares(compute->stream, these, some, (double *)(void *)compute->scratch),
                      "sum squares");
  }
}

void bl__cuda_add_columns(bl_compute_t *compute, uint32_t count, const bl_column_sum_t *sums) {
  for (uint32_t first = 0; first < count; first += BL__SUMS_MAX) {
    bl__column_sum_t some[BL__SUMS_MAX];
    const uint32_t these = count - first < BL__SUMS_MAX ? count - first : BL__SUMS_MAX;
    for (uint32_t i = 0; i < these; i++) {
      const bl_column_sum_t *sum = &sums[first + i];
      some[i] = (bl__column_sum_t){bl__is_bf16(sum->dtype), sum->x, sum->rows, sum->columns, sum->sums};
    }
    bl__cuda_launched(compute, bl__launch_add_columns(compute->stream, these, some, (float *)(void *)compute->scratch),
                      "add columns");
  }
}

void bl__cuda_accumulate(bl_compute_t *compute, uint64_t count, const float *x, float *y) {
  bl__cuda_launched(compute, bl__launch_accumulate(compute->stream, count, x, y), "accumulate");
}

void bl__cuda_add(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *a, const void *b,
                  void *y) {
  bl__cuda_launched(compute, bl__launch_add(compute->stream, bl__is_bf16(dtype), count, a, b, y), "add");
}

void bl__cuda_fill(bl_compute_t *compute, uint64_t count, float value, float *y) {
  bl__cuda_launched(compute, bl__launch_fill(compute->stream, count, value, y), "fill");
}

void bl__cuda_checksum(bl_compute_t *compute, uint64_t bytes, const void *block, uint64_t *hash) {
  bl__cuda_launched(compute,
                    bl__launch_checksum(compute->stream, bytes, block, hash, (uint64_t *)(void *)compute->scratch),
                    "checksum");
}
