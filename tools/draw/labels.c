// SPDX-License-Identifier: Apache-2.0
#include "draw/labels.h"

#include <math.h>
#include <stdlib.h>

#define NEAREST 7.0  // pixels between a point and its name
#define STEP    11.0 // added to the distance for each further ring
#define RINGS   7
#define SIDES   12   // number of directions to try
#define LEADER  12.0 // from this distance on, a line leads to the point
#define TWO_PI  6.283185307179586
#define THIN    0.6

typedef struct areas {
  bl_area_t *items;
  size_t count, capacity;
} areas_t;

struct bl_labels {
  bl_canvas_t *canvas;
  bl_area_t area;
  areas_t taken, avoided;
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
    free(labels->taken.items);
    free(labels->avoided.items);
    free(labels);
  }
}

static void add_area(areas_t *areas, bl_area_t area) {
  if (areas->count == areas->capacity) {
    size_t capacity = areas->capacity == 0 ? 128 : 2 * areas->capacity;
    bl_area_t *items = realloc(areas->items, capacity * sizeof *items);
    if (items == NULL) {
      return;
    }
    areas->items = items;
    areas->capacity = capacity;
  }
  areas->items[areas->count++] = area;
}

void bl_labels_block(bl_labels_t *labels, bl_area_t area) {
  add_area(&labels->taken, area);
}

void bl_labels_avoid(bl_labels_t *labels, bl_area_t area) {
  add_area(&labels->avoided, area);
}

static bool overlap(bl_area_t a, bl_area_t b) {
  return a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
}

static bool overlaps_any(const areas_t *areas, bl_area_t place) {
  for (size_t i = 0; i < areas->count; i++) {
    if (overlap(place, areas->items[i])) {
      return true;
    }
  }
  return false;
}

static bool is_free(const bl_labels_t *labels, bl_area_t place, bool anywhere) {
  const bl_area_t *all = &labels->area;
  bool inside = place.x >= all->x && place.y >= all->y && place.x + place.width <= all->x + all->width &&
                place.y + place.height <= all->y + all->height;
  return inside && !overlaps_any(&labels->taken, place) && (anywhere || !overlaps_any(&labels->avoided, place));
}

// Returns the area of a name at `distance` in a direction, with its nearest side towards the point.
static bl_area_t place_at(double x, double y, double width, double height, double distance, double angle) {
  double along = cos(angle), up = sin(angle);
  double left = x + distance * along - (along < -0.3 ? width : along > 0.3 ? 0 : width / 2);
  double top = y - distance * up - (up > 0.3 ? height : up < -0.3 ? 0 : height / 2);
  return (bl_area_t){left, top, width, height};
}

static bool put(bl_labels_t *labels, double x, double y, const char *text, double size, bl_color_t color,
                bool anywhere) {
  const double width = bl_canvas_text_width(labels->canvas, text, size, false) + 2, height = size + 1;
  for (int ring = 0; ring < RINGS; ring++) {
    for (int side = 0; side < SIDES; side++) {
      // Tries the upper right first, and then directions alternately to both sides of it.
      int away = side % 2 == 0 ? side / 2 : -(side + 1) / 2;
      double distance = NEAREST + STEP * ring, angle = TWO_PI * (0.125 + (double)away / SIDES);
      bl_area_t place = place_at(x, y, width, height, distance, angle);
      if (!is_free(labels, place, anywhere)) {
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

bool bl_labels_put(bl_labels_t *labels, double x, double y, const char *text, double size, bl_color_t color) {
  return put(labels, x, y, text, size, color, false) || put(labels, x, y, text, size, color, true);
}
