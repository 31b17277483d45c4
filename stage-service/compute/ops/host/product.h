// SPDX-License-Identifier: Apache-2.0
// Planned matrix products: C = A B, + bias, + residual, or C += A B. The only user of oneDNN: product.c is the one file
// that includes dnnl.h, for its 2.x and 3.x interfaces.
//
// Thread: plan and execute on the attached compute thread, because oneDNN fixes the number of OpenMP threads at
// planning.
#ifndef BALLAST_COMPUTE_OPS_HOST_PRODUCT_H
#define BALLAST_COMPUTE_OPS_HOST_PRODUCT_H

#include "base/error.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bl__engine bl__engine_t;   // oneDNN's engine and stream
typedef struct bl__product bl__product_t; // one planned product

// A [m, k], B [k, n], C [m, n]. Strides count elements; the row or the column stride is 1. C's columns are dense.
typedef struct bl__product_shape {
  int64_t m, n, k;
  int64_t a_row, a_column;
  int64_t b_row, b_column;
  int64_t c_row;
  bool pack_b;     // B is passed packed by bl__product_pack
  bool bias;       // [n]
  bool residual;   // [m, n], row stride c_row
  bool accumulate; // C +=
  bool bf16;       // A, B, C and residual are bf16; bias is float always
  bool float_c;    // ... but C and residual are float
} bl__product_shape_t;

bl_status_t bl__engine_create(bl__engine_t **engine, bl_error_t *err) BL_MUST_USE;
void bl__engine_destroy(bl__engine_t *engine);
// "oneDNN 2.6.3 avx512_core_bf16"
void bl__engine_describe(char *text, size_t bytes);
// True if this CPU has instructions for products of bf16 and oneDNN uses them.
bool bl__engine_has_bf16(void);

bl_status_t bl__product_create(bl__engine_t *engine, const bl__product_shape_t *shape, bl__product_t **product,
                               bl_error_t *err) BL_MUST_USE;
void bl__product_destroy(bl__product_t *product); // NULL is fine

size_t bl__product_workspace_bytes(const bl__product_t *product);
// Bytes of packed B; 0 unless pack_b. The block is 64-byte aligned.
size_t bl__product_packed_bytes(const bl__product_t *product);
// Packs B, passed as floats with the strides of the shape. A bf16 product rounds it.
bl_status_t bl__product_pack(bl__product_t *product, const float *b, void *packed, void *workspace) BL_MUST_USE;
// `b` is packed B with pack_b. bias and residual are NULL unless the shape has them. BL_INTERNAL: oneDNN failed.
bl_status_t bl__product_execute(bl__product_t *product, const void *a, const void *b, const float *bias,
                                const void *residual, void *c, void *workspace) BL_MUST_USE;

#endif
