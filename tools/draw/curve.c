// SPDX-License-Identifier: Apache-2.0
#include "draw/curve.h"

#include "draw/canvas.h"

#include <math.h>
#include <stdio.h>

#define WIDTH  840.0
#define HEIGHT 420.0
#define LEFT   64.0
#define RIGHT  24.0
#define TOP    56.0
#define BOTTOM 44.0
#define TICKS  5

#define INK   BL_COLOR(0x1d2430)
#define SOFT  BL_COLOR(0x667085)
#define GRID  BL_COLOR(0xe2e6ec)
#define TRAIN BL_COLOR(0x3b6fd4)
#define HELD  BL_COLOR(0xd9822b)

typedef struct range {
  double low, high;
} range_t;

typedef struct plot {
  bl_canvas_t *canvas;
  range_t steps, losses;
} plot_t;

static void widen(const bl_curve_point_t *points, size_t count, range_t *steps, range_t *losses) {
  for (size_t i = 0; i < count; i++) {
    if (isfinite(points[i].loss)) {
      steps->low = fmin(steps->low, points[i].step);
      steps->high = fmax(steps->high, points[i].step);
      losses->low = fmin(losses->low, points[i].loss);
      losses->high = fmax(losses->high, points[i].loss);
    }
  }
}

static double x_of(const plot_t *plot, double step) {
  return LEFT + (WIDTH - LEFT - RIGHT) * (step - plot->steps.low) / (plot->steps.high - plot->steps.low);
}

static double y_of(const plot_t *plot, double loss) {
  return TOP + (HEIGHT - TOP - BOTTOM) * (plot->losses.high - loss) / (plot->losses.high - plot->losses.low);
}

static void draw_axes(const plot_t *plot) {
  char text[32];
  for (int i = 0; i <= TICKS; i++) {
    double loss = plot->losses.low + (plot->losses.high - plot->losses.low) * i / TICKS;
    double step = plot->steps.low + (plot->steps.high - plot->steps.low) * i / TICKS;
    bl_canvas_line(plot->canvas, LEFT, y_of(plot, loss), WIDTH - RIGHT, y_of(plot, loss), 1, false, GRID);
    snprintf(text, sizeof text, "%.3g", loss);
    bl_canvas_text(plot->canvas, LEFT - 8, y_of(plot, loss) + 4, text, 11, false, BL_ALIGN_RIGHT, SOFT);
    snprintf(text, sizeof text, "%.0f", step);
    bl_canvas_text(plot->canvas, x_of(plot, step), HEIGHT - BOTTOM + 18, text, 11, false, BL_ALIGN_CENTER, SOFT);
  }
  bl_canvas_text(plot->canvas, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "step", 11, false, BL_ALIGN_CENTER, SOFT);
}

static void draw_line(const plot_t *plot, const bl_curve_point_t *points, size_t count) {
  const bl_curve_point_t *before = NULL;
  for (size_t i = 0; i < count; i++) {
    if (!isfinite(points[i].loss)) {
      before = NULL; // a gap is drawn as one
      continue;
    }
    if (before != NULL) {
      bl_canvas_line(plot->canvas, x_of(plot, before->step), y_of(plot, before->loss), x_of(plot, points[i].step),
                     y_of(plot, points[i].loss), 1.5, false, TRAIN);
    } else {
      bl_canvas_fill_rect(plot->canvas, x_of(plot, points[i].step) - 1, y_of(plot, points[i].loss) - 1, 2, 2, TRAIN);
    }
    before = &points[i];
  }
}

static void draw_legend(const plot_t *plot, const bl_curve_t *curve) {
  bl_canvas_text(plot->canvas, LEFT, 24, curve->title, 15, true, BL_ALIGN_LEFT, INK);
  bl_canvas_fill_rect(plot->canvas, LEFT, 34, 14, 4, TRAIN);
  bl_canvas_text(plot->canvas, LEFT + 20, 40, "training loss, nats per token", 11, false, BL_ALIGN_LEFT, SOFT);
  if (curve->held_out_count > 0) {
    bl_canvas_fill_rect(plot->canvas, LEFT + 210, 32, 7, 7, HELD);
    bl_canvas_text(plot->canvas, LEFT + 224, 40, "held-out loss", 11, false, BL_ALIGN_LEFT, SOFT);
  }
}

bl_status_t bl_curve_draw(const bl_curve_t *curve, const char *path, bl_error_t *err) {
  plot_t plot = {.steps = {INFINITY, -INFINITY}, .losses = {INFINITY, -INFINITY}};
  widen(curve->train, curve->train_count, &plot.steps, &plot.losses);
  widen(curve->held_out, curve->held_out_count, &plot.steps, &plot.losses);
  if (!(plot.steps.low <= plot.steps.high)) {
    return bl_error_set(err, BL_INVALID, "there is no loss to draw");
  }
  if (plot.steps.high - plot.steps.low < 1) { // there is a single step
    plot.steps = (range_t){plot.steps.low - 1, plot.steps.high + 1};
  }
  double margin = fmax((plot.losses.high - plot.losses.low) * 0.05, 1e-6);
  plot.losses = (range_t){plot.losses.low - margin, plot.losses.high + margin};
  bl_status_t status = bl_canvas_open(path, WIDTH, HEIGHT, &plot.canvas, err);
  if (status != BL_OK) {
    return status;
  }
  bl_canvas_fill_rect(plot.canvas, 0, 0, WIDTH, HEIGHT, BL_COLOR(0xffffff));
  draw_axes(&plot);
  draw_line(&plot, curve->train, curve->train_count);
  for (size_t i = 0; i < curve->held_out_count; i++) {
    if (isfinite(curve->held_out[i].loss)) {
      bl_canvas_fill_rect(plot.canvas, x_of(&plot, curve->held_out[i].step) - 3.5,
                          y_of(&plot, curve->held_out[i].loss) - 3.5, 7, 7, HELD);
    }
  }
  draw_legend(&plot, curve);
  return bl_canvas_close(plot.canvas, err);
}
