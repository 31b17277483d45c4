// SPDX-License-Identifier: Apache-2.0
#include "draw/canvas.h"

#include "sys/file.h"

#include <cairo-svg.h>
#include <cairo.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PNG_SCALE 2.0
#define SIDE_MAX  16000.0 // an image surface of cairo has at most 32767 pixels

// Cairo's output is kept in memory until the picture is complete, so that a full disk does not destroy an existing
// picture.
struct bl_canvas {
  cairo_surface_t *surface;
  cairo_t *cairo;
  bool png;
  FILE *file; // in memory: `bytes`, which are complete once it is closed
  char *bytes;
  size_t size_bytes;
  char path[4096];
};

static bool ends_in(const char *text, const char *tail) {
  size_t length = strlen(text), tail_length = strlen(tail);
  return length > tail_length && strcmp(text + length - tail_length, tail) == 0;
}

static cairo_status_t keep(void *context, const unsigned char *bytes, unsigned int size_bytes) {
  const bl_canvas_t *canvas = context;
  return fwrite(bytes, 1, size_bytes, canvas->file) == size_bytes ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_NO_MEMORY;
}

static bl_status_t not_drawn(const char *path, cairo_status_t status, bl_error_t *err) {
  return bl_error_set(err, status == CAIRO_STATUS_NO_MEMORY ? BL_EXHAUSTED : BL_INTERNAL, "%s: cannot be drawn: %s",
                      path, cairo_status_to_string(status));
}

bl_status_t bl_canvas_open(const char *path, double width, double height, bl_canvas_t **canvas, bl_error_t *err) {
  bool png = ends_in(path, ".png");
  if (!png && !ends_in(path, ".svg")) {
    return bl_error_set(err, BL_INVALID, "%s: a picture ends in .svg or .png", path);
  }
  if (strlen(path) >= sizeof((bl_canvas_t *)0)->path || width > SIDE_MAX || height > SIDE_MAX) {
    return bl_error_set(err, BL_INVALID, "%s: a picture of %.0f x %.0f pixels is too large", path, width, height);
  }
  bl_canvas_t *made = calloc(1, sizeof *made);
  if (made != NULL) {
    made->file = open_memstream(&made->bytes, &made->size_bytes);
  }
  if (made == NULL || made->file == NULL) {
    free(made);
    return bl_error_set(err, BL_EXHAUSTED, "%s: out of memory", path);
  }
  snprintf(made->path, sizeof made->path, "%s", path);
  made->png = png;
  made->surface =
      png ? cairo_image_surface_create(CAIRO_FORMAT_RGB24, (int)ceil(width * PNG_SCALE), (int)ceil(height * PNG_SCALE))
          : cairo_svg_surface_create_for_stream(keep, made, width, height);
  made->cairo = cairo_create(made->surface);
  if (cairo_status(made->cairo) != CAIRO_STATUS_SUCCESS) {
    bl_status_t status = not_drawn(path, cairo_status(made->cairo), err);
    cairo_destroy(made->cairo);
    cairo_surface_destroy(made->surface);
    fclose(made->file);
    free(made->bytes);
    free(made);
    return status;
  }
  if (png) {
    cairo_scale(made->cairo, PNG_SCALE, PNG_SCALE);
  }
  *canvas = made;
  bl_canvas_fill_rect(made, 0, 0, width, height, BL_COLOR(0xffffff));
  return BL_OK;
}

bl_status_t bl_canvas_close(bl_canvas_t *canvas, bl_error_t *err) {
  cairo_status_t status = cairo_status(canvas->cairo);
  if (status == CAIRO_STATUS_SUCCESS && canvas->png) {
    status = cairo_surface_write_to_png_stream(canvas->surface, keep, canvas);
  }
  cairo_destroy(canvas->cairo);
  cairo_surface_finish(canvas->surface);
  if (status == CAIRO_STATUS_SUCCESS) {
    status = cairo_surface_status(canvas->surface);
  }
  cairo_surface_destroy(canvas->surface);
  if (fclose(canvas->file) != 0 && status == CAIRO_STATUS_SUCCESS) {
    status = CAIRO_STATUS_NO_MEMORY;
  }
  bl_status_t result = status == CAIRO_STATUS_SUCCESS
                           ? bl_file_replace(canvas->path, canvas->bytes, canvas->size_bytes, err)
                           : not_drawn(canvas->path, status, err);
  free(canvas->bytes);
  free(canvas);
  return result;
}

static void ink(bl_canvas_t *canvas, bl_color_t color) {
  cairo_set_source_rgb(canvas->cairo, color.red, color.green, color.blue);
}

void bl_canvas_fill_rect(bl_canvas_t *canvas, double x, double y, double width, double height, bl_color_t color) {
  ink(canvas, color);
  cairo_rectangle(canvas->cairo, x, y, width, height);
  cairo_fill(canvas->cairo);
}

void bl_canvas_stroke_rect(bl_canvas_t *canvas, double x, double y, double width, double height, double line,
                           bl_color_t color) {
  ink(canvas, color);
  cairo_set_line_width(canvas->cairo, line);
  cairo_rectangle(canvas->cairo, x, y, width, height);
  cairo_stroke(canvas->cairo);
}

void bl_canvas_hatch_rect(bl_canvas_t *canvas, double x, double y, double width, double height, bl_color_t color) {
  const double step = 5;
  cairo_save(canvas->cairo);
  cairo_rectangle(canvas->cairo, x, y, width, height);
  cairo_clip(canvas->cairo);
  ink(canvas, color);
  cairo_set_line_width(canvas->cairo, 0.8);
  // The lines are on a grid of the page, so that those of adjacent waits match.
  for (double at = floor((x + y) / step) * step; at < x + width + y + height; at += step) {
    cairo_move_to(canvas->cairo, at - y, y);
    cairo_line_to(canvas->cairo, at - y - height, y + height);
  }
  cairo_stroke(canvas->cairo);
  cairo_restore(canvas->cairo);
}

void bl_canvas_line(bl_canvas_t *canvas, double x0, double y0, double x1, double y1, double line, bool dashed,
                    bl_color_t color) {
  static const double dashes[] = {4, 3};
  ink(canvas, color);
  cairo_set_line_width(canvas->cairo, line);
  cairo_set_dash(canvas->cairo, dashes, dashed ? 2 : 0, 0);
  cairo_move_to(canvas->cairo, x0, y0);
  cairo_line_to(canvas->cairo, x1, y1);
  cairo_stroke(canvas->cairo);
  cairo_set_dash(canvas->cairo, NULL, 0, 0);
}

void bl_canvas_steps(bl_canvas_t *canvas, const double *xs, const double *heights, uint32_t count, double x_end,
                     double y_base, bl_color_t fill, bl_color_t edge) {
  if (count == 0) {
    return;
  }
  for (int stroke = 0; stroke < 2; stroke++) {
    cairo_move_to(canvas->cairo, xs[0], y_base);
    for (uint32_t i = 0; i < count; i++) {
      cairo_line_to(canvas->cairo, xs[i], y_base - heights[i]);
      cairo_line_to(canvas->cairo, i + 1 < count ? xs[i + 1] : x_end, y_base - heights[i]);
    }
    cairo_line_to(canvas->cairo, x_end, y_base);
    ink(canvas, stroke ? edge : fill);
    if (stroke) {
      cairo_set_line_width(canvas->cairo, 1);
      cairo_stroke(canvas->cairo);
    } else {
      cairo_fill(canvas->cairo);
    }
  }
}

double bl_canvas_round_step(double span, double wanted) {
  double power = pow(10, floor(log10(span / wanted))), rest = span / wanted / power;
  return power * (rest > 5 ? 10 : rest > 2 ? 5 : rest > 1 ? 2 : 1);
}

static void font(bl_canvas_t *canvas, double size, bool bold) {
  cairo_select_font_face(canvas->cairo, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                         bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
  cairo_set_font_size(canvas->cairo, size);
}

double bl_canvas_text_width(bl_canvas_t *canvas, const char *text, double size, bool bold) {
  cairo_text_extents_t extents;
  font(canvas, size, bold);
  cairo_text_extents(canvas->cairo, text, &extents);
  return extents.x_advance;
}

void bl_canvas_text(bl_canvas_t *canvas, double x, double y, const char *text, double size, bool bold, bl_align_t align,
                    bl_color_t color) {
  double width = bl_canvas_text_width(canvas, text, size, bold);
  ink(canvas, color);
  cairo_move_to(canvas->cairo, align == BL_ALIGN_LEFT ? x : align == BL_ALIGN_RIGHT ? x - width : x - width / 2, y);
  cairo_show_text(canvas->cairo, text);
}

const bl_library_t bl_canvas_library = {"cairo", cairo_version_string};
