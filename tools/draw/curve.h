// SPDX-License-Identifier: Apache-2.0
// The picture of losses over steps: a line per training run, and dots for held-out losses. SVG or PNG by the ending of
// the file name.
// Thread: any; everything is borrowed for the call.
#ifndef BALLAST_DRAW_CURVE_H
#define BALLAST_DRAW_CURVE_H

#include "base/error.h"

#include <stddef.h>

typedef struct bl_curve_point {
  double step, loss; // points whose loss is not finite are left out
} bl_curve_point_t;

typedef struct bl_curve {
  const char *title;
  const bl_curve_point_t *train, *held_out; // ascending in step
  size_t train_count, held_out_count;
} bl_curve_t;

// BL_INVALID: nothing to draw, or a file name that ends in neither .svg nor .png; BL_IO.
BL_MUST_USE bl_status_t bl_curve_draw(const bl_curve_t *curve, const char *path, bl_error_t *err);

#endif
