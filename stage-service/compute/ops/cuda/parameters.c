// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/cuda/compute.h"

#include <math.h>

void bl__cuda_adamw_packed(bl_compute_t *compute, uint64_t count, const bl_adamw_t *options, const float *dw, float *w,
                           float *m, float *v, void *packed) {
  const bl__adamw_t derived = {.beta1 = options->beta1,
                               .beta2 = options->beta2,
                               .rest1 = 1.0f - options->beta1,
                               .rest2 = 1.0f - options->beta2,
                               .keep = 1.0f - options->rate * options->weight_decay,
                               .step = options->rate / options->correction1,
                               .inverse_root2 = 1.0f / sqrtf(options->correction2),
                               .epsilon = options->epsilon,
                               .scale = options->gradient_scale};
  bl__cuda_launched(compute, bl__launch_adamw(compute->stream, count, &derived, dw, w, m, v, packed), "adamw");
}

void bl__cuda_adamw(bl_compute_t *compute, uint64_t count, const bl_adamw_t *options, const float *dw, float *w,
                    float *m, float *v) {
  bl__cuda_adamw_packed(compute, count, options, dw, w, m, v, NULL);
}

void bl__cuda_sum_squares(bl_compute_t *compute, uint64_t count, const float *x, double *sum) {
  bl__cuda_launched(compute, bl__launch_sum_squares(compute->stream, count, x, sum, (double *)(void *)compute->scratch),
                    "sum squares");
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
