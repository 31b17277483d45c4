// SPDX-License-Identifier: Apache-2.0
// The matmul ceiling at the time of measurement: the best rate of plain and prepacked products, with either weight
// order, at 256 x 768 x 256 and 1024 x 3072 x 768 (EXECUTION.md, measuring speed).
#ifndef BALLAST_BENCH_CEILING_H
#define BALLAST_BENCH_CEILING_H

#include "base/error.h"
#include "compute/ops/ops.h"

typedef struct bl_ceiling bl_ceiling_t;

// Plans the products on `compute`; call it before the workspace of `compute` is set.
bl_status_t bl_ceiling_create(const bl_ops_t *ops, bl_compute_t *compute, bl_ceiling_t **ceiling,
                              bl_error_t *err) BL_MUST_USE;
void bl_ceiling_destroy(bl_ceiling_t *ceiling);
// Runs every product for about `milliseconds`. Returns the best rate in floating-point operations per second.
double bl_ceiling_measure(bl_ceiling_t *ceiling, unsigned milliseconds);

#endif
