// SPDX-License-Identifier: Apache-2.0
#include "draw/step_picture.h"

#include "base/bytes.h"
#include "draw/canvas.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH_DEFAULT 1400.0
#define WIDTH_MOST    4200.0 // used only if boxes then hold their numbers
#define NUMBER_WIDTH  16.0
#define SLICE_WIDTH   24.0 // with the slice number
#define MANY_STAGES   24   // above this, rows are lower
#define MARGIN_LEFT   96.0
#define MARGIN_RIGHT  104.0
#define MARGIN_TOP    86.0
#define AXIS_HEIGHT   52.0
#define HAIRLINE      0.6  // boxes narrower than this get no outline
#define SAME_PLACE    0.25 // changes of slots that are closer than this are drawn as one

#define INK       BL_COLOR(0x22272e)
#define INK_SOFT  BL_COLOR(0x6b7480)
#define GRID      BL_COLOR(0xe3e7ec)
#define WAIT_FILL BL_COLOR(0xf6f7f9)
#define WAIT_LINE BL_COLOR(0xc9d0d8)
#define CURVE     BL_COLOR(0xd8cfea)
#define CURVE_TOP BL_COLOR(0x7a5fb0)
#define LENT      BL_COLOR(0xf3d3a2)
#define LENT_TOP  BL_COLOR(0xb9791f)
#define LIMIT     BL_COLOR(0xc0392b)
#define QUEUE     BL_COLOR(0xd9e2b8)
#define QUEUE_TOP BL_COLOR(0x7d8f3a)
#define PAPER     BL_COLOR(0xffffff)

typedef struct style {
  char type;
  unsigned color;
  const char *meaning;
} style_t;

static const style_t styles[] = {
    {'F', 0x6fa8dc, "F  forward"},
    {'B', 0xe9885a, "B  backward"},
    {'I', 0xf0a35e, "I  backward, input"},
    {'W', 0x79bf8b, "W  backward, weights"},
    {'R', 0xb9a5e0, "R  recompute"},
    {'E', 0xb5496b, "E  evict"},
    {'L', 0x3f8f9b, "L  load"},
    {'e', 0x6b2f8a, "E  evict to the host"},
    {'l', 0x2f6f3a, "L  load from the host"},
};

// Heights within a row.
typedef struct row {
  double bar;
  double lane;  // for evicts and loads
  double curve; // for slots in use
  double gap;
} row_t;

static const row_t usual_row = {34, 7, 30, 16}, low_row = {20, 5, 18, 7};

typedef struct page {
  const bl_step_picture_t *picture;
  bl_canvas_t *canvas;
  double width, height, first, last, pixels_per_unit;
  bool lanes;    // there is an evict or load
  bool chunks;   // an operation belongs to a later chunk
  bool pipes;    // an operation belongs to the second direction
  bool waits;    // an operation waited for tensor ranks
  bool lent;     // there are lent slots
  bool numbered; // a box shows its micro-batch
  row_t row;
  double row_height, most_slots;
} page_t;

static double x_of(const page_t *page, double time) {
  return MARGIN_LEFT + (time - page->first) * page->pixels_per_unit;
}

static double y_of(const page_t *page, uint32_t stage) {
  return MARGIN_TOP + stage * page->row_height;
}

static bool is_transfer(char type) {
  return type == 'E' || type == 'L' || type == 'e' || type == 'l';
}

static const style_t *style_of(char type) {
  static const style_t other = {'?', 0xb0b7bf, "?  other"};
  for (size_t i = 0; i < sizeof styles / sizeof styles[0]; i++) {
    if (styles[i].type == type) {
      return &styles[i];
    }
  }
  return &other;
}

// Later chunks of a stage are darker, so that a V, a loop or the second direction can be followed by eye.
static bl_color_t shade(unsigned hex, uint32_t steps) {
  bl_color_t color = BL_COLOR(hex);
  double factor = pow(0.80, steps > 3 ? 3 : steps);
  return (bl_color_t){color.red * factor, color.green * factor, color.blue * factor};
}

static void draw_event(page_t *page, const bl_step_picture_event_t *event) {
  double x = x_of(page, event->start), width = x_of(page, event->end) - x, y = y_of(page, event->stage);
  const uint32_t darker = event->chunk + event->pipe;
  bl_color_t color = shade(style_of(event->type)->color, darker);
  if (is_transfer(event->type)) {
    bl_canvas_fill_rect(page->canvas, x, y + page->row.bar + 2, fmax(width, 1.5), page->row.lane - 2, color);
    return;
  }
  bl_canvas_fill_rect(page->canvas, x, y, width, page->row.bar, color);
  if (width > 5 * HAIRLINE) {
    bl_canvas_stroke_rect(page->canvas, x, y, width, page->row.bar, HAIRLINE, BL_COLOR(0xffffff));
  }
  if (event->waited > 0) {
    const double from = x_of(page, event->end - event->waited);
    bl_canvas_fill_rect(page->canvas, from, y, x + width - from, page->row.bar, WAIT_FILL);
    bl_canvas_hatch_rect(page->canvas, from, y, x + width - from, page->row.bar, color);
  }
  char text[24];
  const bool sliced = page->picture->slices > 1;
  snprintf(text, sizeof text, sliced ? "%u.%u" : "%u", event->micro_batch, event->slice);
  double size = width > 18 ? 12 : 9;
  if (bl_canvas_text_width(page->canvas, text, size, false) + 3 < width) {
    bl_canvas_text(page->canvas, x + width / 2, y + page->row.bar / 2 + size * 0.36, text, size, false, BL_ALIGN_CENTER,
                   darker > 1 ? BL_COLOR(0xffffff) : INK);
    page->numbered = true;
  }
}

static uint32_t stage_of(const bl_step_picture_t *t, uint32_t row) {
  const uint32_t tensor_ranks = t->tensor_ranks > 0 ? t->tensor_ranks : 1;
  const uint32_t stages = t->replica_stages > 0 ? t->replica_stages : t->stages / tensor_ranks;
  return row / tensor_ranks % (stages > 0 ? stages : 1);
}

// Draws the stage of a row and, if there are several, its tensor rank and replica below.
static void draw_coords(page_t *page, uint32_t row, double middle) {
  const bl_step_picture_t *t = page->picture;
  const uint32_t tensor_ranks = t->tensor_ranks > 0 ? t->tensor_ranks : 1;
  const uint32_t stages = t->replica_stages > 0 ? t->replica_stages : t->stages / tensor_ranks;
  const bool replicas = t->stages > stages * tensor_ranks;
  char label[24], below[48] = "";
  snprintf(label, sizeof label, "stage %u", stage_of(t, row));
  bl_canvas_text(page->canvas, MARGIN_LEFT - 12, middle + 4.5, label, 13, true, BL_ALIGN_RIGHT, INK);
  if (tensor_ranks > 1) {
    snprintf(below, sizeof below, replicas ? "tensor %u" : "tensor rank %u", row % tensor_ranks);
  }
  if (replicas) {
    const size_t used = strlen(below);
    snprintf(below + used, sizeof below - used, "%sreplica %u", used > 0 ? ", " : "", row / (stages * tensor_ranks));
  }
  bl_canvas_text(page->canvas, MARGIN_LEFT - 12, middle + 18, below, tensor_ranks > 1 && replicas ? 8.5 : 10.5, false,
                 BL_ALIGN_RIGHT, INK_SOFT);
}

static void draw_rows(page_t *page) {
  const bl_step_picture_t *t = page->picture;
  double right = x_of(page, page->last);
  for (uint32_t s = 0; s < t->stages; s++) { // a row is all wait until operations cover it
    double y = y_of(page, s);
    bl_canvas_fill_rect(page->canvas, MARGIN_LEFT, y, right - MARGIN_LEFT, page->row.bar, WAIT_FILL);
    bl_canvas_hatch_rect(page->canvas, MARGIN_LEFT, y, right - MARGIN_LEFT, page->row.bar, WAIT_LINE);
    draw_coords(page, s, y + page->row.bar / 2);
  }
  for (size_t i = 0; i < t->event_count; i++) {
    draw_event(page, &t->events[i]);
  }
}

// Draws the share of the step in which the stage computes, right of its row.
static void draw_busy(page_t *page, double *busy) {
  const bl_step_picture_t *t = page->picture;
  memset(busy, 0, t->stages * sizeof *busy);
  for (size_t i = 0; i < t->event_count; i++) {
    if (!is_transfer(t->events[i].type)) {
      busy[t->events[i].stage] += t->events[i].end - t->events[i].start - t->events[i].waited;
    }
  }
  for (uint32_t s = 0; s < t->stages; s++) {
    char label[24];
    snprintf(label, sizeof label, "%.0f %% busy", 100 * busy[s] / (page->last - page->first));
    bl_canvas_text(page->canvas, page->width - MARGIN_RIGHT + 10, y_of(page, s) + page->row.bar / 2 + 4, label, 11.5,
                   false, BL_ALIGN_LEFT, INK_SOFT);
  }
}

static void draw_curve(page_t *page, uint32_t stage, double *xs, double *heights, double *totals) {
  const bl_step_picture_t *t = page->picture;
  uint32_t count = 0;
  double peak = 0, lent = 0, base = y_of(page, stage) + page->row_height - page->row.gap;
  double scale = (page->row.curve - 6) / fmax(page->most_slots, 1);
  for (size_t i = 0; i < t->level_count; i++) {
    if (t->levels[i].stage == stage) {
      double x = x_of(page, fmin(fmax(t->levels[i].time, page->first), page->last));
      count -= count > 0 && x - xs[count - 1] < SAME_PLACE; // of several changes at one moment the last is drawn
      xs[count] = x;
      totals[count] = (t->levels[i].slots + t->levels[i].lent) * scale;
      heights[count++] = t->levels[i].slots * scale;
      peak = fmax(peak, t->levels[i].slots);
      lent = fmax(lent, t->levels[i].lent);
    }
  }
  if (lent > 0) {
    bl_canvas_steps(page->canvas, xs, totals, count, x_of(page, page->last), base, LENT, LENT_TOP);
  }
  bl_canvas_steps(page->canvas, xs, heights, count, x_of(page, page->last), base, CURVE, CURVE_TOP);
  char label[64];
  if (t->slots_available != NULL) {
    double y = base - t->slots_available[stage] * scale;
    bl_canvas_line(page->canvas, MARGIN_LEFT, y, x_of(page, page->last), y, 1, true, LIMIT);
  }
  if (lent > 0) {
    snprintf(label, sizeof label, "peak %g, lent %g", peak, lent);
  } else if (t->slots_available != NULL) {
    snprintf(label, sizeof label, "peak %g of %g", peak, t->slots_available[stage]);
  } else {
    snprintf(label, sizeof label, "peak %g", peak);
  }
  bl_canvas_text(page->canvas, MARGIN_LEFT - 12, base - 3, "slots", 11, false, BL_ALIGN_RIGHT, INK_SOFT);
  bl_canvas_text(page->canvas, page->width - MARGIN_RIGHT + 10, base - 3, label, 11.5, false, BL_ALIGN_LEFT, CURVE_TOP);
}

// ---- links to hosts

static double y_of_link(const page_t *page, uint32_t row) {
  return y_of(page, page->picture->stages + row);
}

static void draw_transfer(page_t *page, const bl_step_picture_transfer_t *transfer) {
  const bl_step_picture_event_t *event = &transfer->of;
  const double x = x_of(page, event->start), width = x_of(page, event->end) - x, y = y_of_link(page, transfer->row);
  char text[40];
  bl_canvas_fill_rect(page->canvas, x, y, width, page->row.bar,
                      shade(style_of(event->type)->color, event->chunk + event->pipe));
  if (width > 5 * HAIRLINE) {
    bl_canvas_stroke_rect(page->canvas, x, y, width, page->row.bar, HAIRLINE, PAPER);
  }
  snprintf(text, sizeof text, page->picture->slices > 1 ? "%u:%u.%u" : "%u:%u", stage_of(page->picture, event->stage),
           event->micro_batch, event->slice);
  const double size = bl_canvas_text_width(page->canvas, text, 12, false) + 3 < width ? 12 : 9;
  if (bl_canvas_text_width(page->canvas, text, size, false) + 3 < width) {
    bl_canvas_text(page->canvas, x + width / 2, y + page->row.bar / 2 + size * 0.36, text, size, false, BL_ALIGN_CENTER,
                   PAPER);
  }
}

typedef struct queue_change {
  double time;
  int by;
} queue_change_t;

// Leaving comes before joining at the same time.
static int compare_queue_changes(const void *one, const void *other) {
  const queue_change_t *a = one, *b = other;
  return a->time != b->time ? (a->time < b->time ? -1 : 1) : a->by - b->by;
}

// Draws how many transfers wait for a link. `changes` and `xs` have space for two of each transfer.
static void draw_queue(page_t *page, uint32_t row, queue_change_t *changes, double *xs, double *heights) {
  const bl_step_picture_t *t = page->picture;
  const double base = y_of_link(page, row) + page->row_height - page->row.gap;
  size_t count = 0;
  int waiting = 0, most = 0;
  for (size_t i = 0; i < t->transfer_count; i++) {
    const bl_step_picture_transfer_t *transfer = &t->transfers[i];
    if (transfer->row == row && transfer->of.start > transfer->asked) {
      changes[count++] = (queue_change_t){fmax(transfer->asked, page->first), 1};
      changes[count++] = (queue_change_t){transfer->of.start, -1};
    }
  }
  qsort(changes, count, sizeof changes[0], compare_queue_changes);
  uint32_t drawn = 0;
  for (size_t i = 0; i < count; i++) {
    waiting += changes[i].by;
    most = waiting > most ? waiting : most;
    const double x = x_of(page, changes[i].time);
    drawn -= drawn > 0 && x - xs[drawn - 1] < SAME_PLACE;
    xs[drawn] = x;
    heights[drawn++] = waiting;
  }
  for (uint32_t i = 0; i < drawn; i++) {
    heights[i] *= (page->row.curve - 6) / fmax(most, 1);
  }
  if (drawn > 0) {
    bl_canvas_steps(page->canvas, xs, heights, drawn, x_of(page, page->last), base, QUEUE, QUEUE_TOP);
  }
  char label[32];
  snprintf(label, sizeof label, "most %d", most);
  bl_canvas_text(page->canvas, MARGIN_LEFT - 12, base - 3, "waiting", 11, false, BL_ALIGN_RIGHT, INK_SOFT);
  bl_canvas_text(page->canvas, page->width - MARGIN_RIGHT + 10, base - 3, label, 11.5, false, BL_ALIGN_LEFT, QUEUE_TOP);
}

// Draws the name of a link left of its row, and right of it for how long it was busy and what it moved.
static void label_link(page_t *page, uint32_t row) {
  const bl_step_picture_t *t = page->picture;
  const double middle = y_of_link(page, row) + page->row.bar / 2, right = page->width - MARGIN_RIGHT + 10;
  double busy = 0, bytes = 0;
  uint32_t out = 0, back = 0;
  bool several = false; // of this host
  char label[64], moved[BL_BYTES_TEXT];
  for (size_t i = 0; i < t->transfer_count; i++) {
    const bl_step_picture_transfer_t *transfer = &t->transfers[i];
    const bool here = transfer->row == row, leaves = transfer->of.type == 'e';
    busy += here ? transfer->of.end - transfer->of.start : 0;
    bytes += here ? transfer->bytes : 0;
    out += here && leaves;
    back += here && !leaves;
  }
  for (size_t i = 0; i < t->link_count; i++) {
    several = several || (t->links[i].host == t->links[row].host && i != row);
  }
  snprintf(label, sizeof label, "host %u", t->links[row].host);
  bl_canvas_text(page->canvas, MARGIN_LEFT - 12, middle + 4.5, label, 13, true, BL_ALIGN_RIGHT, INK);
  if (several) {
    snprintf(label, sizeof label, "link %u", t->links[row].link);
    bl_canvas_text(page->canvas, MARGIN_LEFT - 12, middle + 18, label, 10.5, false, BL_ALIGN_RIGHT, INK_SOFT);
  }
  snprintf(label, sizeof label, "%.0f %% busy", 100 * busy / (page->last - page->first));
  bl_canvas_text(page->canvas, right, middle - 4, label, 11.5, false, BL_ALIGN_LEFT, INK_SOFT);
  snprintf(label, sizeof label, "%u out, %u back", out, back);
  bl_canvas_text(page->canvas, right, middle + 9, label, 10.5, false, BL_ALIGN_LEFT, INK_SOFT);
  if (bytes > 0) {
    bl_canvas_text(page->canvas, right, middle + 22, bl_bytes_format((uint64_t)bytes, moved), 11.5, false,
                   BL_ALIGN_LEFT, INK_SOFT);
  }
}

static void draw_links(page_t *page, queue_change_t *changes, double *xs, double *heights) {
  const bl_step_picture_t *t = page->picture;
  for (uint32_t row = 0; row < t->link_count; row++) {
    bl_canvas_fill_rect(page->canvas, MARGIN_LEFT, y_of_link(page, row), x_of(page, page->last) - MARGIN_LEFT,
                        page->row.bar, WAIT_FILL);
    label_link(page, row);
    if (t->levels != NULL) {
      draw_queue(page, row, changes, xs, heights);
    }
  }
  for (size_t i = 0; i < t->transfer_count; i++) {
    draw_transfer(page, &t->transfers[i]);
  }
}

static double y_of_axis(const page_t *page) {
  return y_of_link(page, (uint32_t)page->picture->link_count) - page->row.gap + 6;
}

static void draw_axis(page_t *page, bool grid) {
  double bottom = y_of_axis(page), right = x_of(page, page->last);
  double span = page->last - page->first, step = bl_canvas_round_step(span, 12);
  for (double at = 0; at <= span * (1 + 1e-9); at += step) {
    double x = x_of(page, page->first + at);
    if (grid) {
      bl_canvas_line(page->canvas, x, MARGIN_TOP - 6, x, bottom, 1, false, GRID);
      continue;
    }
    char label[32];
    snprintf(label, sizeof label, "%g", fabs(at) < step * 1e-9 ? 0 : at);
    bl_canvas_line(page->canvas, x, bottom, x, bottom + 5, 1, false, INK_SOFT);
    bl_canvas_text(page->canvas, x, bottom + 19, label, 11.5, false, BL_ALIGN_CENTER, INK_SOFT);
  }
  if (!grid) {
    char label[64];
    bl_canvas_line(page->canvas, MARGIN_LEFT, bottom, right, bottom, 1, false, INK_SOFT);
    snprintf(label, sizeof label, "time [%s]", page->picture->unit);
    bl_canvas_text(page->canvas, (MARGIN_LEFT + right) / 2, bottom + 38, label, 12, false, BL_ALIGN_CENTER, INK);
  }
}

static double draw_key(page_t *page, double x, const char *text, bl_color_t color, bool hatched) {
  const double y = 54, box = 13;
  if (hatched) {
    bl_canvas_fill_rect(page->canvas, x, y, box, box, WAIT_FILL);
    bl_canvas_hatch_rect(page->canvas, x, y, box, box, color);
  } else {
    bl_canvas_fill_rect(page->canvas, x, y, box, box, color);
  }
  bl_canvas_text(page->canvas, x + box + 6, y + 11, text, 12, false, BL_ALIGN_LEFT, INK);
  return x + box + 6 + bl_canvas_text_width(page->canvas, text, 12, false) + 18;
}

static void draw_head(page_t *page) {
  const bl_step_picture_t *t = page->picture;
  bl_canvas_text(page->canvas, MARGIN_LEFT, 28, t->title, 18, true, BL_ALIGN_LEFT, INK);
  if (t->subtitle != NULL) {
    double after = MARGIN_LEFT + bl_canvas_text_width(page->canvas, t->title, 18, true) + 16;
    bl_canvas_text(page->canvas, after, 28, t->subtitle, 13, false, BL_ALIGN_LEFT, INK_SOFT);
  }
  if (!page->numbered) {
    bl_canvas_text(page->canvas, MARGIN_LEFT, 45, "boxes are too narrow for the numbers of micro-batches", 11, false,
                   BL_ALIGN_LEFT, INK_SOFT);
  }
  double x = MARGIN_LEFT;
  for (size_t k = 0; k < sizeof styles / sizeof styles[0]; k++) {
    bool seen = false;
    for (size_t i = 0; i < t->event_count && !seen; i++) {
      seen = t->events[i].type == styles[k].type;
    }
    if (seen) {
      x = draw_key(page, x, styles[k].meaning, BL_COLOR(styles[k].color), false);
    }
  }
  if (page->chunks) {
    x = draw_key(page, x, "darker: a later chunk", shade(styles[0].color, 1), false);
  }
  if (page->pipes) {
    x = draw_key(page, x, "darker: from the last stage to the first", shade(styles[0].color, 1), false);
  }
  x = draw_key(page, x, "wait", WAIT_LINE, true);
  if (page->waits) {
    x = draw_key(page, x, "in colour: for tensor ranks, within an operation", shade(styles[0].color, 0), true);
  }
  if (t->levels != NULL) {
    x = draw_key(page, x, "slots in use", CURVE, false);
  }
  if (page->lent) {
    x = draw_key(page, x, "lent to other stages", LENT, false);
  }
  if (t->link_count > 0) {
    const bool ranks = t->replica_stages > 0 && t->stages > t->replica_stages;
    x = draw_key(page, x,
                 ranks ? "waiting for the link; on it rank:micro-batch"
                       : "waiting for the link; on it stage:micro-batch",
                 QUEUE, false);
  }
  if (t->levels != NULL && t->slots_available != NULL) {
    bl_canvas_line(page->canvas, x, 60.5, x + 16, 60.5, 1, true, LIMIT);
    bl_canvas_text(page->canvas, x + 22, 65, "most slots", 12, false, BL_ALIGN_LEFT, INK);
  }
}

// Chooses a width at which boxes of the shortest kind of operation hold their numbers, unless that is too wide.
static double choose_width(const bl_step_picture_t *t, double span) {
  double least = INFINITY;
  for (size_t k = 0; k < sizeof styles / sizeof styles[0]; k++) {
    double sum = 0, count = 0;
    for (size_t i = 0; i < t->event_count && !is_transfer(styles[k].type); i++) {
      bool counts = t->events[i].type == styles[k].type;
      sum += counts ? t->events[i].end - t->events[i].start : 0;
      count += counts;
    }
    least = sum > 0 ? fmin(least, sum / count) : least;
  }
  const double number = t->slices > 1 ? SLICE_WIDTH : NUMBER_WIDTH;
  double wanted = MARGIN_LEFT + MARGIN_RIGHT + number * span / least;
  return wanted > WIDTH_DEFAULT && wanted < WIDTH_MOST ? wanted : WIDTH_DEFAULT;
}

static bl_status_t measure(const bl_step_picture_t *t, page_t *page, bl_error_t *err) {
  if (t->event_count == 0 || t->stages == 0) {
    return bl_error_set(err, BL_INVALID, "timeline \"%s\": has no events", t->title);
  }
  page->first = INFINITY;
  page->last = -INFINITY;
  for (size_t i = 0; i < t->event_count; i++) {
    const bl_step_picture_event_t *event = &t->events[i];
    if (event->stage >= t->stages || !(event->end >= event->start)) {
      return bl_error_set(err, BL_INVALID, "timeline \"%s\": event %zu is on stage %u from %g to %g", t->title, i,
                          event->stage, event->start, event->end);
    }
    page->first = fmin(page->first, event->start);
    page->last = fmax(page->last, event->end);
    page->lanes = page->lanes || is_transfer(event->type);
    page->chunks = page->chunks || event->chunk > 0;
    page->pipes = page->pipes || event->pipe > 0;
    page->waits = page->waits || event->waited > 0;
  }
  for (size_t i = 0; i < t->transfer_count; i++) {
    const bl_step_picture_transfer_t *transfer = &t->transfers[i];
    if (transfer->row >= t->link_count || !(transfer->of.end >= transfer->of.start)) {
      return bl_error_set(err, BL_INVALID, "timeline \"%s\": transfer %zu is on link %u from %g to %g", t->title, i,
                          transfer->row, transfer->of.start, transfer->of.end);
    }
    page->first = fmin(page->first, transfer->of.start);
    page->last = fmax(page->last, transfer->of.end);
  }
  for (size_t i = 0; i < t->level_count; i++) {
    page->most_slots = fmax(page->most_slots, t->levels[i].slots + t->levels[i].lent);
    page->lent = page->lent || t->levels[i].lent > 0;
  }
  for (uint32_t s = 0; s < t->stages && t->slots_available != NULL; s++) {
    page->most_slots = fmax(page->most_slots, t->slots_available[s]);
  }
  page->last = page->last > page->first ? page->last : page->first + 1;
  page->row = t->stages > MANY_STAGES ? low_row : usual_row;
  page->width = t->width > 0 ? t->width : choose_width(t, page->last - page->first);
  page->pixels_per_unit = (page->width - MARGIN_LEFT - MARGIN_RIGHT) / (page->last - page->first);
  page->row_height =
      page->row.bar + (page->lanes ? page->row.lane : 0) + (t->levels != NULL ? page->row.curve : 0) + page->row.gap;
  page->height = MARGIN_TOP + ((double)t->stages + (double)t->link_count) * page->row_height + AXIS_HEIGHT;
  return BL_OK;
}

bl_status_t bl_step_picture_draw(const bl_step_picture_t *picture, const char *path, bl_error_t *err) {
  page_t page = {.picture = picture};
  bl_status_t status = measure(picture, &page, err);
  if (status != BL_OK) {
    return status;
  }
  size_t capacity = picture->level_count > picture->stages ? picture->level_count : picture->stages;
  capacity = 2 * picture->transfer_count > capacity ? 2 * picture->transfer_count : capacity;
  double *xs = malloc((capacity + 1) * 3 * sizeof *xs); // for a curve: positions, heights, and heights with lent slots
  queue_change_t *changes = malloc((2 * picture->transfer_count + 1) * sizeof *changes);
  if (xs == NULL || changes == NULL) {
    free(xs);
    free(changes);
    return bl_error_set(err, BL_EXHAUSTED, "%s: out of memory", path);
  }
  status = bl_canvas_open(path, page.width, page.height, &page.canvas, err);
  if (status == BL_OK) {
    draw_axis(&page, true);
    draw_rows(&page);
    for (uint32_t s = 0; s < picture->stages && picture->levels != NULL; s++) {
      draw_curve(&page, s, xs, xs + capacity + 1, xs + 2 * (capacity + 1));
    }
    draw_busy(&page, xs);
    draw_links(&page, changes, xs, xs + capacity + 1);
    draw_axis(&page, false);
    draw_head(&page);
    status = bl_canvas_close(page.canvas, err);
  }
  free(changes);
  free(xs);
  return status;
}
