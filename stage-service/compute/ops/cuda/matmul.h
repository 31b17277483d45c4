// SPDX-License-Identifier: Apache-2.0
// Planned matrix products by cuBLASLt: D = alpha A B + C + bias, for one product or a batch.
//
// Matrices are column-major, as in the library: element (i, j) lies at i + j ld. A is [m, k], or [k, m] if it is
// transposed; B is [k, n] or [n, k]; C and D are [m, n]; a bias has m elements, one for each row. A row-major tensor
// [T, width] is a column-major matrix [width, T].
//
// The algorithm is chosen once, when a product is planned: the library's first choice among those that compute a sum in
// one sequence. So a product gives the same bits whenever it runs.
//
// Thread: the compute thread. Private to ops/cuda.
#ifndef BALLAST_COMPUTE_OPS_CUDA_MATMUL_H
#define BALLAST_COMPUTE_OPS_CUDA_MATMUL_H

#include "base/error.h"
#include "compute/ops/cuda/runtime.h"
#include "compute/ops/ops.h"

typedef struct bl__matmul_engine bl__matmul_engine_t;
typedef struct bl__matmul bl__matmul_t;

typedef struct bl__matmul_shape {
  uint64_t m, n, k;
  bool transpose_a, transpose_b;
  uint64_t a_ld, b_ld, d_ld; // C has the ld of D
  uint64_t batch;            // at least 1; then strides are elements between matrices
  uint64_t a_stride, b_stride, d_stride;
  bool bf16;                // A and B; also C and D unless float_d
  bool float_d;             // C and D are floats
  bool add;                 // adds C
  bool bias;                // adds a bias: elements of D's type
  uint32_t alignment_bytes; // of A, B, C, D and the bias; execute() checks it. A power of two up to 16
} bl__matmul_shape_t;

bl_status_t bl__matmul_engine_create(bl__gpu_t *gpu, bl__matmul_engine_t **engine, bl_error_t *err) BL_MUST_USE;
void bl__matmul_engine_destroy(bl__matmul_engine_t *engine); // NULL is fine
void bl__matmul_describe(char *text, size_t bytes);          // "cuBLASLt 13.0.2"

// Returns the library's choice for each shape that was planned, each shape once.
const bl_ops_choice_t *bl__matmul_choices(const bl__matmul_engine_t *engine, size_t *count);

// Plans a product. BL_UNIMPLEMENTED: the library has no algorithm for this shape.
bl_status_t bl__matmul_create(bl__matmul_engine_t *engine, const bl__matmul_shape_t *shape, bl__matmul_t **matmul,
                              bl_error_t *err) BL_MUST_USE;
void bl__matmul_destroy(bl__matmul_t *matmul); // NULL is fine
size_t bl__matmul_workspace_bytes(const bl__matmul_t *matmul);
// Queues the product. c is read if the shape adds it, and may be d; bias is read if the shape has one. `workspace` has
// the requested bytes and is 256-byte aligned. Returns NULL, or a description of the failure.
const char *bl__matmul_execute(bl__matmul_t *matmul, float alpha, const void *a, const void *b, const void *c,
                               const void *bias, void *d, void *workspace);

#endif
