// SPDX-License-Identifier: Apache-2.0
// The small matrix product that attention is built from: C[m, n] (+)= A[m, k] B[k, n] on operands that lie in cache.
//
// A block of a few rows and vectors of C stays in registers. Each step of k loads a row of B and broadcasts a column of
// A. A has two strides, so that A^T costs nothing.
#ifndef BALLAST_COMPUTE_OPS_HOST_KERNELS_TILE_H
#define BALLAST_COMPUTE_OPS_HOST_KERNELS_TILE_H

#include "compute/ops/host/kernels/vector.h"

#include <stdbool.h>
#include <stddef.h>

// Blocks of C that fit the registers: rows x columns, columns in vectors. Narrow remainders take more rows, so that
// enough sums are in flight to hide the latency of FMA.
#if defined(__AVX512F__)
#define BL__ROWS           4
#define BL__COLUMNS        4
#define BL__NARROW_ROWS    8
#define BL__NARROW_COLUMNS 2
#elif defined(__AVX__)
#define BL__ROWS           6
#define BL__COLUMNS        2
#define BL__NARROW_ROWS    6
#define BL__NARROW_COLUMNS 2
#else
#define BL__ROWS           4
#define BL__COLUMNS        2
#define BL__NARROW_ROWS    4
#define BL__NARROW_COLUMNS 2
#endif
#define BL__THIN_ROWS 8 // with one column

typedef struct bl__tile {
  size_t k;
  const float *a;
  size_t a_row, a_column; // strides of A
  const float *b;
  size_t b_row;
  float *c;
  size_t c_row;
  bool accumulate;
} bl__tile_t;

// `rows` and `columns` (in vectors) are constants in each call, so that the loops unroll into registers. C is read last:
// nothing waits for it.
__attribute__((always_inline)) static inline void bl__tile_block(const bl__tile_t *tile, size_t row, size_t column,
                                                                 const size_t rows, const size_t columns) {
  bl__vector_t sums[BL__THIN_ROWS][BL__COLUMNS];
  const float *a = tile->a + row * tile->a_row;
  const float *b = tile->b + column;
  float *c = tile->c + row * tile->c_row + column;
  const size_t a_row = tile->a_row, a_column = tile->a_column, b_row = tile->b_row;
#pragma GCC unroll 8
  for (size_t i = 0; i < rows; i++) {
#pragma GCC unroll 8
    for (size_t j = 0; j < columns; j++) {
      sums[i][j] = (bl__vector_t){0};
    }
  }
  for (size_t p = 0; p < tile->k; p++, a += a_column, b += b_row) {
    bl__vector_t line[BL__COLUMNS];
#pragma GCC unroll 8
    for (size_t j = 0; j < columns; j++) {
      line[j] = *(const bl__vector_t *)(b + j * BL__LANES);
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < rows; i++) {
#pragma GCC unroll 8
      for (size_t j = 0; j < columns; j++) {
        sums[i][j] += a[i * a_row] * line[j];
      }
    }
  }
#pragma GCC unroll 8
  for (size_t i = 0; i < rows; i++) {
#pragma GCC unroll 8
    for (size_t j = 0; j < columns; j++) {
      bl__vector_t *to = (bl__vector_t *)(c + i * tile->c_row + j * BL__LANES);
      if (tile->accumulate) {
        sums[i][j] += *to;
      }
      *to = sums[i][j];
    }
  }
}

// Computes columns [first, last), `columns` vectors at a time, one row of blocks after the other, so that A stays in
// cache.
__attribute__((always_inline)) static inline void bl__tile_strip(const bl__tile_t *tile, size_t m, size_t first,
                                                                 size_t last, const size_t rows, const size_t columns) {
  const size_t step = columns * BL__LANES;
  size_t row = 0;
  for (; row + rows <= m; row += rows) {
    for (size_t column = first; column < last; column += step) {
      bl__tile_block(tile, row, column, rows, columns);
    }
  }
  for (; row + 2 <= m; row += 2) {
    for (size_t column = first; column < last; column += step) {
      bl__tile_block(tile, row, column, 2, columns);
    }
  }
  for (size_t column = first; row < m && column < last; column += step) {
    bl__tile_block(tile, row, column, 1, columns);
  }
}

// n is a multiple of BL_HEAD_ALIGN (itself a multiple of every vector length).
static inline void bl__tile_product(size_t m, size_t n, const bl__tile_t *tile) {
  const size_t columns = (size_t)BL__COLUMNS * BL__LANES, narrow_columns = (size_t)BL__NARROW_COLUMNS * BL__LANES;
  const size_t wide = n / columns * columns, narrow = n / narrow_columns * narrow_columns;
  bl__tile_strip(tile, m, 0, wide, BL__ROWS, BL__COLUMNS);
  bl__tile_strip(tile, m, wide, narrow, BL__NARROW_ROWS, BL__NARROW_COLUMNS);
  bl__tile_strip(tile, m, narrow, n, BL__THIN_ROWS, 1);
}

#endif
