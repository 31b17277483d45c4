// SPDX-License-Identifier: Apache-2.0
#include "draw/frontier_plot.h"

#include "draw/canvas.h"
#include "draw/labels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH  1100.0
#define HEIGHT 720.0
#define LEFT   84.0
#define RIGHT  40.0
#define TOP    98.0
#define BOTTOM 62.0
#define TICKS  10   // approximate number
#define APART  16.0 // minimum pixels between ticks of the logarithmic axis
#define MARK   3.5
#define SAME   1.5  // pixels within which points are at the same place
#define NAME   10.0 // text size of names
#define MARGIN 0.06 // margin of both axes beyond the points
#define SPREAD 2.0  // ratio of longest to shortest time from which on the axis is logarithmic

#define INK      BL_COLOR(0x22272e)
#define INK_SOFT BL_COLOR(0x6b7480)
#define GRID     BL_COLOR(0xe3e7ec)
#define PLAIN    BL_COLOR(0x3465a4)
#define BALANCED BL_COLOR(0xcc4422)
#define JOINED   BL_COLOR(0xf0bfae)

typedef struct plot {
  bl_canvas_t *canvas;
  double memory, first, last; // axes: memory from 0, times from first to last
  bool logarithmic;
} plot_t;

static double x_of(const plot_t *p, double memory) {
  return LEFT + memory / p->memory * (WIDTH - LEFT - RIGHT);
}

static double y_of(const plot_t *p, double time) {
  double share =
      p->logarithmic ? log(time / p->first) / log(p->last / p->first) : (time - p->first) / (p->last - p->first);
  return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
}

static void draw_axes(plot_t *p) {
  char text[40];
  double step = bl_canvas_round_step(p->last - p->first, TICKS), before = HEIGHT;
  for (double time = ceil(p->first / step) * step; time <= p->last * (1 + 1e-12); time += step) {
    double y = y_of(p, time);
    if (before - y < APART) {
      continue;
    }
    before = y;
    bl_canvas_line(p->canvas, LEFT, y, WIDTH - RIGHT, y, 1, false, GRID);
    snprintf(text, sizeof text, "%.6g", time);
    bl_canvas_text(p->canvas, LEFT - 8, y + 4, text, 11, false, BL_ALIGN_RIGHT, INK);
  }
  step = bl_canvas_round_step(p->memory, TICKS);
  for (double memory = 0; memory <= p->memory; memory += step) {
    double x = x_of(p, memory);
    bl_canvas_line(p->canvas, x, TOP, x, HEIGHT - BOTTOM, 1, false, GRID);
    snprintf(text, sizeof text, "%.6g", memory);
    bl_canvas_text(p->canvas, x, HEIGHT - BOTTOM + 18, text, 11, false, BL_ALIGN_CENTER, INK);
  }
  bl_canvas_line(p->canvas, LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, 1, false, INK_SOFT);
  bl_canvas_text(p->canvas, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 18, "most that a device holds, device-micro-batches",
                 12, false, BL_ALIGN_CENTER, INK);
}

static double draw_key(plot_t *p, double x, const char *text) {
  const double y = 52;
  bl_canvas_text(p->canvas, x, y, text, 12, false, BL_ALIGN_LEFT, INK);
  return x + bl_canvas_text_width(p->canvas, text, 12, false) + 22;
}

static void draw_square(plot_t *p, double x, double y, bl_color_t color) {
  bl_canvas_fill_rect(p->canvas, x - MARK, y - MARK, 2 * MARK, 2 * MARK, color);
}

static void draw_cross(plot_t *p, double x, double y, bl_color_t color) {
  bl_canvas_line(p->canvas, x - MARK, y - MARK, x + MARK, y + MARK, 1.2, false, color);
  bl_canvas_line(p->canvas, x - MARK, y + MARK, x + MARK, y - MARK, 1.2, false, color);
}

static void draw_head(plot_t *p, const char *title) {
  const double y = 48;
  bl_canvas_text(p->canvas, LEFT, 26, title, 15, true, BL_ALIGN_LEFT, INK);
  double x = LEFT + MARK;
  draw_square(p, x, y, PLAIN);
  x = draw_key(p, x + 10, "a schedule as it is");
  bl_canvas_line(p->canvas, x - 4, y, x + 24, y, 1, false, JOINED);
  draw_cross(p, x + 10, y, BALANCED);
  x = draw_key(p, x + 30, "the same, balanced under caps");
  bl_canvas_line(p->canvas, x, y, x + 22, y, 1.5, true, PLAIN);
  x = draw_key(p, x + 28, "best of the unbalanced");
  bl_canvas_line(p->canvas, x, y, x + 22, y, 1.5, false, BALANCED);
  (void)draw_key(p, x + 28, "best of all");
  bl_canvas_text(p->canvas, WIDTH - RIGHT, TOP - 14,
                 "name/group, limit, at cap; pooled: made for balancing; *: no job asks for it", 12, false,
                 BL_ALIGN_RIGHT, INK);
  bl_canvas_text(p->canvas, LEFT, TOP - 14,
                 p->logarithmic ? "end of the step, units of cost (logarithmic)" : "end of the step, units of cost", 12,
                 false, BL_ALIGN_LEFT, INK);
}

// Returns the best time of the points with at most this much memory; without `all`, of the unbalanced ones.
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

// Draws one line of a step curve, which names then avoid.
static void draw_step(plot_t *p, double x0, double y0, double x1, double y1, bool dashed, bl_color_t color,
                      bl_labels_t *labels) {
  const double left = fmin(x0, x1), top = fmin(y0, y1);
  bl_canvas_line(p->canvas, x0, y0, x1, y1, 1.5, dashed, color);
  bl_labels_avoid(labels, (bl_area_t){left - 1, top - 1, fabs(x1 - x0) + 2, fabs(y1 - y0) + 2});
}

static void draw_steps(plot_t *p, const bl_frontier_t *frontier, bool all, bl_color_t color, bl_labels_t *labels) {
  double at = 0, time = INFINITY;
  for (;;) {
    double next = p->memory;
    for (size_t i = 0; i < frontier->count; i++) {
      double memory = frontier->points[i].memory;
      next = memory > at + 1e-9 && memory < next ? memory : next;
    }
    double then = best_within(frontier, next, all);
    if (!isinf(time)) {
      draw_step(p, x_of(p, at), y_of(p, time), x_of(p, next), y_of(p, time), !all, color, labels);
      draw_step(p, x_of(p, next), y_of(p, time), x_of(p, next), y_of(p, then), !all, color, labels);
    }
    if (next >= p->memory) {
      return;
    }
    at = next;
    time = then;
  }
}

// Points of a balanced schedule follow its unbalanced point, in order of falling cap.
static void join_points(plot_t *p, const bl_frontier_t *frontier) {
  for (size_t i = 1; i < frontier->count; i++) {
    const bl_frontier_point_t *from = &frontier->points[i - 1], *to = &frontier->points[i];
    if (to->cap > 0) {
      bl_canvas_line(p->canvas, x_of(p, from->memory), y_of(p, from->t_end), x_of(p, to->memory), y_of(p, to->t_end), 1,
                     false, JOINED);
    }
  }
}

static void draw_points(plot_t *p, const bl_frontier_t *frontier, bl_labels_t *labels) {
  for (int plain = 0; plain < 2; plain++) { // points with names are drawn on top
    for (size_t i = 0; i < frontier->count; i++) {
      const bl_frontier_point_t *point = &frontier->points[i];
      if ((point->cap == 0) != (plain == 1)) {
        continue;
      }
      double x = x_of(p, point->memory), y = y_of(p, point->t_end);
      if (plain == 1) {
        draw_square(p, x, y, PLAIN);
      } else {
        draw_cross(p, x, y, BALANCED);
      }
      bl_labels_block(labels, (bl_area_t){x - MARK, y - MARK, 2 * MARK, 2 * MARK});
    }
  }
}

// ---- names

static bool named(const bl_frontier_point_t *point) {
  return point->cap == 0 || point->best;
}

static bool same_place(const plot_t *p, const bl_frontier_point_t *a, const bl_frontier_point_t *b) {
  return fabs(x_of(p, a->memory) - x_of(p, b->memory)) < SAME && fabs(y_of(p, a->t_end) - y_of(p, b->t_end)) < SAME;
}

static void add_name(char *text, size_t bytes, const bl_frontier_point_t *point) {
  size_t used = strlen(text);
  used += (size_t)snprintf(text + used, bytes - used, "%s%s%s", used > 0 ? ", " : "", point->schedule,
                           point->runs ? "" : "*");
  if (used < bytes && point->group > 0) {
    used += (size_t)snprintf(text + used, bytes - used, "/%u", point->group);
  }
  if (used < bytes && point->asked > 0) {
    used += (size_t)snprintf(text + used, bytes - used, " %g", point->asked);
  }
  if (used < bytes && point->pooled) {
    used += (size_t)snprintf(text + used, bytes - used, " pooled");
  }
  if (used < bytes && point->cap > 0) {
    (void)snprintf(text + used, bytes - used, " at %g", point->cap);
  }
}

// The first of several points at one place gets a name, made of the names of all.
static void name_point(plot_t *p, const bl_frontier_t *frontier, size_t i, bl_labels_t *labels) {
  const bl_frontier_point_t *points = frontier->points, *point = &points[i];
  char text[160] = "";
  for (size_t k = 0; k < i; k++) {
    if (named(&points[k]) && same_place(p, &points[k], point)) {
      return;
    }
  }
  for (size_t k = i; k < frontier->count && strlen(text) < sizeof text / 2; k++) {
    if (named(&points[k]) && same_place(p, &points[k], point)) {
      add_name(text, sizeof text, &points[k]);
    }
  }
  (void)bl_labels_put(labels, x_of(p, point->memory), y_of(p, point->t_end), text, NAME,
                      point->cap == 0 ? PLAIN : BALANCED);
}

static void draw_names(plot_t *p, const bl_frontier_t *frontier, bl_labels_t *labels) {
  for (int best = 1; best >= 0; best--) { // points on a frontier are named first
    for (size_t i = 0; i < frontier->count; i++) {
      const bl_frontier_point_t *point = &frontier->points[i];
      if (named(point) && (point->best || point->best_plain) == (best == 1)) {
        name_point(p, frontier, i, labels);
      }
    }
  }
}

// ---- all together

static void choose_axes(plot_t *p, const bl_frontier_t *frontier) {
  p->first = INFINITY;
  for (size_t i = 0; i < frontier->count; i++) {
    p->memory = fmax(p->memory, frontier->points[i].memory);
    p->first = fmin(p->first, frontier->points[i].t_end);
    p->last = fmax(p->last, frontier->points[i].t_end);
  }
  p->logarithmic = p->first > 0 && p->last > SPREAD * p->first;
  double margin = p->last > p->first ? MARGIN * (p->last - p->first) : 0.5 * p->first + 1;
  p->last = p->logarithmic ? p->last * pow(p->last / p->first, MARGIN) : p->last + margin;
  p->first = p->logarithmic ? p->first / pow(p->last / p->first, MARGIN) : p->first - margin;
  p->memory = p->memory > 0 ? p->memory * (1 + MARGIN) : 1;
}

bl_status_t bl_frontier_plot(const bl_frontier_t *frontier, const char *title, const char *path, bl_error_t *err) {
  plot_t p = {0};
  bl_labels_t *labels;
  if (frontier->count == 0) {
    return bl_error_set(err, BL_INVALID, "%s: there is nothing to draw", path);
  }
  choose_axes(&p, frontier);
  bl_status_t status = bl_canvas_open(path, WIDTH, HEIGHT, &p.canvas, err);
  if (status != BL_OK) {
    return status;
  }
  const bl_area_t area = {LEFT, TOP - 8, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM + 8};
  bl_canvas_fill_rect(p.canvas, 0, 0, WIDTH, HEIGHT, BL_COLOR(0xffffff));
  draw_axes(&p);
  draw_head(&p, title);
  join_points(&p, frontier);
  if (bl_labels_create(p.canvas, area, &labels) == BL_OK) {
    draw_steps(&p, frontier, true, BALANCED, labels);
    draw_steps(&p, frontier, false, PLAIN, labels);
    draw_points(&p, frontier, labels);
    draw_names(&p, frontier, labels);
    bl_labels_destroy(labels);
  } else {
    status = bl_error_set(err, BL_EXHAUSTED, "%s: no memory for its names", path);
  }
  bl_status_t closed = bl_canvas_close(p.canvas, err);
  return status == BL_OK ? closed : status;
}
