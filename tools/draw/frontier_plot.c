// SPDX-License-Identifier: Apache-2.0
#include "draw/frontier_plot.h"

#include "draw/canvas.h"

#include <math.h>
#include <stdio.h>

#define WIDTH  900.0
#define HEIGHT 560.0
#define LEFT   80.0
#define RIGHT  30.0
#define TOP    60.0
#define BOTTOM 60.0
#define TICKS  6
#define MARK   3.5

#define INK      BL_COLOR(0x222222)
#define GRID     BL_COLOR(0xdddddd)
#define PLAIN    BL_COLOR(0x3465a4)
#define BALANCED BL_COLOR(0xcc4422)

typedef struct plot {
  bl_canvas_t *canvas;
  double memory, first, last; // the axes: memory from 0, times from first to last
} plot_t;

static double x_of(const plot_t *p, double memory) {
  return LEFT + memory / p->memory * (WIDTH - LEFT - RIGHT);
}

static double y_of(const plot_t *p, double time) {
  return HEIGHT - BOTTOM - (time - p->first) / (p->last - p->first) * (HEIGHT - TOP - BOTTOM);
}

static void draw_axes(plot_t *p, const char *title) {
  char text[40];
  bl_canvas_text(p->canvas, LEFT, 24, title, 15, true, BL_ALIGN_LEFT, INK);
  for (int k = 0; k <= TICKS; k++) {
    double memory = p->memory * k / TICKS, time = p->first + (p->last - p->first) * k / TICKS;
    bl_canvas_line(p->canvas, LEFT, y_of(p, time), WIDTH - RIGHT, y_of(p, time), 1, false, GRID);
    snprintf(text, sizeof text, "%.4g", time);
    bl_canvas_text(p->canvas, LEFT - 8, y_of(p, time) + 4, text, 11, false, BL_ALIGN_RIGHT, INK);
    snprintf(text, sizeof text, "%.3g", memory);
    bl_canvas_text(p->canvas, x_of(p, memory), HEIGHT - BOTTOM + 18, text, 11, false, BL_ALIGN_CENTER, INK);
  }
  bl_canvas_text(p->canvas, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 18, "most that a device holds, device-micro-batches",
                 12, false, BL_ALIGN_CENTER, INK);
  bl_canvas_text(p->canvas, LEFT, TOP - 12, "end of the step, units of cost", 12, false, BL_ALIGN_LEFT, INK);
  bl_canvas_fill_rect(p->canvas, WIDTH - 330, 16, 2 * MARK, 2 * MARK, PLAIN);
  bl_canvas_text(p->canvas, WIDTH - 318, 24, "unbalanced", 12, false, BL_ALIGN_LEFT, INK);
  bl_canvas_fill_rect(p->canvas, WIDTH - 220, 16, 2 * MARK, 2 * MARK, BALANCED);
  bl_canvas_text(p->canvas, WIDTH - 208, 24, "balanced; line: frontier", 12, false, BL_ALIGN_LEFT, INK);
}

// The best time of the points that count for at most this much memory.
static double best_within(const bl_frontier_t *frontier, double memory, bool all) {
  double best = INFINITY;
  for (size_t i = 0; i < frontier->count; i++) {
    const bl_frontier_point_t *point = &frontier->points[i];
    if (point->memory <= memory + 1e-9 && (all || point->cap == 0)) {
      best = fmin(best, point->t_end);
    }
  }
  return best;
}

static void draw_steps(plot_t *p, const bl_frontier_t *frontier, bool all, bl_color_t color) {
  double at = 0, time = INFINITY;
  for (;;) {
    double next = p->memory;
    for (size_t i = 0; i < frontier->count; i++) {
      double memory = frontier->points[i].memory;
      next = memory > at + 1e-9 && memory < next ? memory : next;
    }
    double then = best_within(frontier, next, all);
    if (!isinf(time)) {
      bl_canvas_line(p->canvas, x_of(p, at), y_of(p, time), x_of(p, next), y_of(p, time), 1.5, false, color);
      bl_canvas_line(p->canvas, x_of(p, next), y_of(p, time), x_of(p, next), y_of(p, then), 1.5, false, color);
    }
    if (next >= p->memory) {
      return;
    }
    at = next;
    time = then;
  }
}

static void draw_points(plot_t *p, const bl_frontier_t *frontier) {
  for (size_t i = 0; i < frontier->count; i++) {
    const bl_frontier_point_t *point = &frontier->points[i];
    double x = x_of(p, point->memory), y = y_of(p, point->t_end);
    if (point->cap == 0) {
      bl_canvas_fill_rect(p->canvas, x - MARK, y - MARK, 2 * MARK, 2 * MARK, PLAIN);
    } else {
      bl_canvas_line(p->canvas, x - MARK, y - MARK, x + MARK, y + MARK, 1, false, BALANCED);
      bl_canvas_line(p->canvas, x - MARK, y + MARK, x + MARK, y - MARK, 1, false, BALANCED);
    }
    if (point->best || point->best_plain) {
      bl_canvas_text(p->canvas, x + 5, y - 5, point->schedule, 9, false, BL_ALIGN_LEFT,
                     point->cap == 0 ? PLAIN : BALANCED);
    }
  }
}

bl_status_t bl_frontier_plot(const bl_frontier_t *frontier, const char *title, const char *path, bl_error_t *err) {
  plot_t p = {.first = INFINITY};
  if (frontier->count == 0) {
    return bl_error_set(err, BL_INVALID, "%s: there is nothing to draw", path);
  }
  for (size_t i = 0; i < frontier->count; i++) {
    p.memory = fmax(p.memory, frontier->points[i].memory);
    p.first = fmin(p.first, frontier->points[i].t_end);
    p.last = fmax(p.last, frontier->points[i].t_end);
  }
  p.last = p.last > p.first ? p.last : p.first * 1.01 + 1;
  p.memory *= 1.05;
  bl_status_t status = bl_canvas_open(path, WIDTH, HEIGHT, &p.canvas, err);
  if (status != BL_OK) {
    return status;
  }
  bl_canvas_fill_rect(p.canvas, 0, 0, WIDTH, HEIGHT, BL_COLOR(0xffffff));
  draw_axes(&p, title);
  draw_steps(&p, frontier, false, PLAIN);
  draw_steps(&p, frontier, true, BALANCED);
  draw_points(&p, frontier);
  return bl_canvas_close(p.canvas, err);
}
