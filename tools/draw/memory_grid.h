// SPDX-License-Identifier: Apache-2.0
// Bars for the memory of every rank of a run, on one scale: a column per stage, a row per tensor rank and replica. Or
// for several runs, with a row for each.
//
// Thread: any. Nothing is kept.
#ifndef BALLAST_DRAW_MEMORY_GRID_H
#define BALLAST_DRAW_MEMORY_GRID_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct bl_memory_grid {
  const char *title;
  const char *subtitle;          // NULL: none
  uint32_t stages, tensor, data; // at least 1 each
  const char *const *uses;       // [use_count] what memory is used for: "weights"
  size_t use_count;
  const char *const *rows; // [data] names of rows that are runs; then tensor is 1. NULL: rows are replicas
  // [data * stages * tensor][use_count], in the order of ranks (model/grid.h); negative: the rank is not known
  const double *bytes;
} bl_memory_grid_t;

// `path` must end in .svg or .png. BL_INVALID; BL_EXHAUSTED: more rows or columns than a picture holds; BL_NOT_FOUND,
// BL_IO: the file.
BL_MUST_USE bl_status_t bl_memory_grid_draw(const bl_memory_grid_t *grid, const char *path, bl_error_t *err);

#endif
