// SPDX-License-Identifier: Apache-2.0
// The gradient of a weight, C[m, n] (+)= A^T B. The rows of A and B are those of activations, so both are read as they
// lie, and a product is a sum of outer products.
//
// As in Goto, van de Geijn 2008: DEPTH rows of a block of A are packed for the L2 cache, as panels of BL__ROWS columns,
// and DEPTH rows of a strip of B for the L1 cache. Every panel is multiplied with the strip in registers. Rows of the
// next strip are fetched meanwhile: they are far apart, so that the CPU does not foresee them. The order of each sum
// depends on k alone.
#include "base/minmax.h"
#include "compute/ops/host/kernels/functions.h"
#include "compute/ops/host/kernels/tile.h"
#include "compute/ops/host/kernels/typed/element.h"

#define DEPTH  BL_GRADIENT_DEPTH
#define HEIGHT ((size_t)BL_GRADIENT_PANELS * BL__ROWS)
#define WIDTH  ((size_t)BL__COLUMNS * BL__LANES)
#define GROUP  16 // panels that are packed together, from whole cache lines of A
#define LINE   (64 / sizeof(bl__element_t))

_Static_assert(BL_GRADIENT_SCRATCH >= DEPTH * (HEIGHT + WIDTH) + BL__ROWS * WIDTH, "scratch holds a block and a strip");

// packed [columns / BL__ROWS, depth, BL__ROWS]; the last panel is padded with zeros.
__attribute__((always_inline)) static inline void pack_panels(size_t depth, size_t columns, size_t stride,
                                                              const bl__element_t *restrict x, float *restrict packed) {
  const size_t whole = columns / BL__ROWS, rest = columns % BL__ROWS;
  for (size_t row = 0; row < depth; row++, x += stride, packed += BL__ROWS) {
#pragma GCC unroll 16
    for (size_t p = 0; p < whole; p++) {
      for (size_t i = 0; i < BL__ROWS; i++) {
        packed[p * depth * BL__ROWS + i] = bl__float_of(x[p * BL__ROWS + i]);
      }
    }
    for (size_t i = 0; rest > 0 && i < BL__ROWS; i++) {
      packed[whole * depth * BL__ROWS + i] = i < rest ? bl__float_of(x[whole * BL__ROWS + i]) : 0.0f;
    }
  }
}

static void pack_block(size_t depth, size_t columns, size_t stride, const bl__element_t *restrict x,
                       float *restrict packed) {
  const size_t group = (size_t)GROUP * BL__ROWS;
  size_t first = 0;
  for (; first + group <= columns; first += group) {
    pack_panels(depth, group, stride, x + first, packed + first * depth);
  }
  pack_panels(depth, columns - first, stride, x + first, packed + first * depth);
}

// packed [depth, WIDTH], padded with zeros.
static void pack_strip(size_t depth, size_t columns, size_t stride, const bl__element_t *restrict x,
                       float *restrict packed) {
  for (size_t row = 0; row < depth; row++, x += stride, packed += WIDTH) {
    if (columns == WIDTH) {
      for (size_t i = 0; i < WIDTH; i++) {
        packed[i] = bl__float_of(x[i]);
      }
      continue;
    }
    for (size_t i = 0; i < WIDTH; i++) {
      packed[i] = i < columns ? bl__float_of(x[i]) : 0.0f;
    }
  }
}

// C of one panel and one strip.
__attribute__((always_inline)) static inline void multiply(size_t depth, const float *panel, const float *strip,
                                                           bool accumulate, float *c, size_t c_row) {
  const bl__tile_t tile = {.k = depth,
                           .a = panel,
                           .a_row = 1,
                           .a_column = BL__ROWS,
                           .b = strip,
                           .b_row = WIDTH,
                           .c = c,
                           .c_row = c_row,
                           .accumulate = accumulate};
  for (size_t i = 0; i < BL__ROWS; i++) {
    for (size_t j = 0; j < WIDTH; j += 16) {
      __builtin_prefetch(c + i * c_row + j, 1, 3);
    }
  }
  bl__tile_block(&tile, 0, 0, BL__ROWS, BL__COLUMNS);
}

// At the edges of C: through `whole`, a block that has all rows and columns.
__attribute__((noinline)) static void multiply_edge(size_t depth, size_t rows, size_t columns, const float *panel,
                                                    const float *strip, bool accumulate, float *c, size_t c_row,
                                                    float *whole) {
  multiply(depth, panel, strip, false, whole, WIDTH);
  for (size_t i = 0; i < rows; i++) {
    for (size_t j = 0; j < columns; j++) {
      c[i * c_row + j] = whole[i * WIDTH + j] + (accumulate ? c[i * c_row + j] : 0.0f);
    }
  }
}

// The block of A that begins at `row` and `column`, times all strips of B.
static void multiply_block(const bl__weight_gradient_t *g, size_t row, size_t column, float *scratch) {
  const size_t depth = bl_min_u64(g->k - row, DEPTH), height = bl_min_u64(g->m - column, HEIGHT);
  const size_t fetched = (depth * BL__ROWS + height - 1) / height; // rows of the next strip, before each panel
  const bool accumulate = g->accumulate || row > 0;
  const bl__element_t *a = g->a, *b = (const bl__element_t *)g->b + row * g->b_row;
  float *block = scratch, *strip = block + DEPTH * HEIGHT, *whole = strip + DEPTH * WIDTH;
  pack_block(depth, height, g->a_row, a + row * g->a_row + column, block);
  for (size_t j = 0; j < g->n; j += WIDTH) {
    const size_t columns = bl_min_u64(g->n - j, WIDTH);
    const bl__element_t *next = j + WIDTH < g->n ? b + j + WIDTH : b + depth * g->b_row;
    size_t ahead = j + WIDTH < g->n ? depth : bl_min_u64(g->k - row - depth, depth);
    pack_strip(depth, columns, g->b_row, b + j, strip);
    for (size_t i = 0; i < height; i += BL__ROWS) {
      for (size_t n = 0; n < fetched && ahead > 0; n++, ahead--, next += g->b_row) {
        for (size_t line = 0; line < WIDTH; line += LINE) {
          __builtin_prefetch(next + line, 0, 2);
        }
      }
      float *c = g->c + (column + i) * g->c_row + j;
      if (i + BL__ROWS <= height && columns == WIDTH) {
        multiply(depth, block + i * depth, strip, accumulate, c, g->c_row);
      } else {
        multiply_edge(depth, bl_min_u64(height - i, BL__ROWS), columns, block + i * depth, strip, accumulate, c,
                      g->c_row, whole);
      }
    }
  }
}

void BL_KERNEL(weight_gradient)(const bl__weight_gradient_t *gradient, float *scratch) {
  for (size_t row = 0; row < gradient->k; row += DEPTH) {
    for (size_t column = 0; column < gradient->m; column += HEIGHT) {
      multiply_block(gradient, row, column, scratch);
    }
  }
}
