// SPDX-License-Identifier: Apache-2.0
// Names of points that do not cover each other. Each is written next to its point if there is space, else further away
// with a thin line to it, else not at all.
//
//   bl_labels_t *labels;
//   if (bl_labels_create(canvas, area, &labels) == BL_OK) {
//     bl_labels_block(labels, (bl_area_t){x, y, 7, 7});   // the marks of all points first
//     bl_labels_put(labels, x, y, "1f1b", 9, color);      // then their names, the important ones first
//     bl_labels_destroy(labels);
//   }
//
// Thread: that of the canvas.
#ifndef BALLAST_DRAW_LABELS_H
#define BALLAST_DRAW_LABELS_H

#include "draw/canvas.h"

typedef struct bl_area {
  double x, y, width, height; // from the upper left corner
} bl_area_t;

typedef struct bl_labels bl_labels_t;

// Nothing is written outside `area`. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_labels_create(bl_canvas_t *canvas, bl_area_t area, bl_labels_t **labels);
void bl_labels_destroy(bl_labels_t *labels); // NULL is fine
// Keeps names away from an area. If memory runs out, the area is ignored.
void bl_labels_block(bl_labels_t *labels, bl_area_t area);
// Keeps names away from an area while there is space elsewhere.
void bl_labels_avoid(bl_labels_t *labels, bl_area_t area);
// Returns false if there was no space.
bool bl_labels_put(bl_labels_t *labels, double x, double y, const char *text, double size, bl_color_t color);

#endif
