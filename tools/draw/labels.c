// SPDX-License-Identifier: Apache-2.0
#include "draw/labels.h"

#include <math.h>
#include <stdlib.h>

#define NEAREST 7.0  // pixels between a point and its name
#define STEP    11.0 // further away each time
#define RINGS   7
#define SIDES   12   // directions that are tried
#define LEADER  12.0 // from this distance on a line leads to the point
#define TURN    6.283185307179586
#define THIN    0.6

struct bl_labels {
  bl_canvas_t *canvas;
  bl_area_t area, *taken;
  size_t count, capacity;
};

bl_status_t bl_labels_create(bl_canvas_t *canvas, bl_area_t area, bl_labels_t **labels) {
  bl_labels_t *made = malloc(sizeof *made);
  if (made == NULL) {
    return BL_EXHAUSTED;
  }
  *made = (bl_labels_t){.canvas = canvas, .area = area};
  *labels = made;
  return BL_OK;
}

void bl_labels_destroy(bl_labels_t *labels) {
  if (labels != NULL) {
    free(labels->taken);
    free(labels);
  }
}

void bl_labels_block(bl_labels_t *labels, bl_area_t area) {
  if (labels->count == labels->capacity) {
    size_t capacity = labels->capacity == 0 ? 128 : 2 * labels->capacity;
    bl_area_t *taken = realloc(labels->taken, capacity * sizeof *taken);
    if (taken == NULL) {
      return;
    }
    labels->taken = taken;
    labels->capacity = capacity;
  }
  labels->taken[labels->count++] = area;
}

static bool overlap(bl_area_t a, bl_area_t b) {
  return a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
}

static bool is_free(const bl_labels_t *labels, bl_area_t place) {
  const bl_area_t *all = &labels->area;
  bool inside = place.x >= all->x && place.y >= all->y && place.x + place.width <= all->x + all->width &&
                place.y + place.height <= all->y + all->height;
  for (size_t i = 0; i < labels->count && inside; i++) {
    inside = !overlap(place, labels->taken[i]);
  }
  return inside;
}

// Where a name of this size stands when it lies at `distance` in a direction: towards the point with its nearest side.
static bl_area_t place_at(double x, double y, double width, double height, double distance, double angle) {
  double along = cos(angle), up = sin(angle);
  double left = x + distance * along - (along < -0.3 ? width : along > 0.3 ? 0 : width / 2);
  double top = y - distance * up - (up > 0.3 ? height : up < -0.3 ? 0 : height / 2);
  return (bl_area_t){left, top, width, height};
}

bool bl_labels_put(bl_labels_t *labels, double x, double y, const char *text, double size, bl_color_t color) {
  const double width = bl_canvas_text_width(labels->canvas, text, size, false) + 2, height = size + 1;
  for (int ring = 0; ring < RINGS; ring++) {
    for (int side = 0; side < SIDES; side++) {
      // The upper right first, then to both sides of it.
      int away = side % 2 == 0 ? side / 2 : -(side + 1) / 2;
      double distance = NEAREST + STEP * ring, angle = TURN * (0.125 + (double)away / SIDES);
      bl_area_t place = place_at(x, y, width, height, distance, angle);
      if (!is_free(labels, place)) {
        continue;
      }
      if (distance > LEADER) {
        double end_x = fmin(fmax(x, place.x), place.x + width), end_y = fmin(fmax(y, place.y), place.y + height);
        bl_canvas_line(labels->canvas, x, y, end_x, end_y, THIN, false, color);
      }
      bl_canvas_text(labels->canvas, place.x + 1, place.y + size * 0.86, text, size, false, BL_ALIGN_LEFT, color);
      bl_labels_block(labels, place);
      return true;
    }
  }
  return false;
}
