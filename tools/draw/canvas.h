// SPDX-License-Identifier: Apache-2.0
// A page to draw on, and the few marks that pictures share. Written as SVG or PNG by the ending of its file name. Units
// are pixels of the SVG; a PNG has twice as many, for sharp text.
// Thread: one canvas belongs to one thread.
#ifndef BALLAST_DRAW_CANVAS_H
#define BALLAST_DRAW_CANVAS_H

#include "base/error.h"
#include "base/library.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct bl_canvas bl_canvas_t;

typedef struct bl_color {
  double red, green, blue;
} bl_color_t;

#define BL_COLOR(hex) ((bl_color_t){(((hex) >> 16) & 255) / 255., (((hex) >> 8) & 255) / 255., ((hex)&255) / 255.})

typedef enum bl_align { BL_ALIGN_LEFT, BL_ALIGN_CENTER, BL_ALIGN_RIGHT } bl_align_t;

// BL_INVALID: `path` ends in neither .svg nor .png, or the page is too large. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_canvas_open(const char *path, double width, double height, bl_canvas_t **canvas,
                                       bl_error_t *err);
// Writes the file atomically and frees the canvas. BL_EXHAUSTED (disk full), BL_NOT_FOUND (no folder), BL_DENIED, BL_IO
// name the path.
BL_MUST_USE bl_status_t bl_canvas_close(bl_canvas_t *canvas, bl_error_t *err);

void bl_canvas_fill_rect(bl_canvas_t *canvas, double x, double y, double width, double height, bl_color_t color);
void bl_canvas_stroke_rect(bl_canvas_t *canvas, double x, double y, double width, double height, double line,
                           bl_color_t color);
// Draws diagonal lines clipped to the rectangle.
void bl_canvas_hatch_rect(bl_canvas_t *canvas, double x, double y, double width, double height, bl_color_t color);
void bl_canvas_line(bl_canvas_t *canvas, double x0, double y0, double x1, double y1, double line, bool dashed,
                    bl_color_t color);
// Fills the area under a step curve: heights[i] from xs[i] to xs[i + 1] (the last to x_end), upwards from y_base.
void bl_canvas_steps(bl_canvas_t *canvas, const double *xs, const double *heights, uint32_t count, double x_end,
                     double y_base, bl_color_t fill, bl_color_t edge);
// Returns the distance of round numbers (1, 2 or 5 times a power of ten) that divide `span` into about `wanted` parts,
// at most.
double bl_canvas_round_step(double span, double wanted);
double bl_canvas_text_width(bl_canvas_t *canvas, const char *text, double size, bool bold);
// Writes text with its baseline at y.
void bl_canvas_text(bl_canvas_t *canvas, double x, double y, const char *text, double size, bool bold, bl_align_t align,
                    bl_color_t color);

extern const bl_library_t bl_canvas_library; // cairo

#endif
