// SPDX-License-Identifier: Apache-2.0
#include "config/nearest.h"

#include <stdio.h>
#include <string.h>

#define ABBREVIATION_BYTES 3 // shorter words are the beginning of too many names

static size_t smallest(size_t a, size_t b, size_t c) {
  size_t least = a < b ? a : b;
  return least < c ? least : c;
}

size_t bl_edit_distance(const char *a, const char *b) {
  size_t a_bytes = strnlen(a, BL_NEAREST_NAME_BYTES), b_bytes = strnlen(b, BL_NEAREST_NAME_BYTES);
  size_t rows[3][BL_NEAREST_NAME_BYTES + 1]; // the last two rows of the table, and the row being computed
  size_t *before = rows[0], *above = rows[1], *row = rows[2];
  for (size_t j = 0; j <= b_bytes; j++) {
    above[j] = j;
  }
  for (size_t i = 1; i <= a_bytes; i++) {
    row[0] = i;
    for (size_t j = 1; j <= b_bytes; j++) {
      size_t replace = above[j - 1] + (a[i - 1] != b[j - 1]);
      row[j] = smallest(above[j] + 1, row[j - 1] + 1, replace);
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < row[j]) {
        row[j] = before[j - 2] + 1;
      }
    }
    size_t *spare = before;
    before = above;
    above = row;
    row = spare;
  }
  return above[b_bytes];
}

// Returns the edit distance; 1 if `name` is an abbreviation of the candidate.
static size_t distance_of(const char *name, const char *candidate) {
  size_t length = strnlen(name, BL_NEAREST_NAME_BYTES), distance = bl_edit_distance(name, candidate);
  bool abbreviates = length >= ABBREVIATION_BYTES && strncmp(name, candidate, length) == 0;
  return abbreviates && distance > 1 ? 1 : distance;
}

bool bl_nearest_is_near(const char *name, const char *candidate) {
  size_t length = strnlen(name, BL_NEAREST_NAME_BYTES);
  size_t allowed = length / 3 > 1 ? length / 3 : 1;
  return distance_of(name, candidate) <= allowed;
}

void bl_nearest_offer(bl_nearest_t *nearest, const char *candidate) {
  size_t distance = distance_of(nearest->name, candidate);
  if (nearest->best == NULL || distance < nearest->distance) {
    nearest->best = candidate;
    nearest->distance = distance;
  }
}

const char *bl_nearest_advise(const bl_nearest_t *nearest, char text[BL_NEAREST_ADVICE_BYTES]) {
  const char *best = nearest->best != NULL ? nearest->best : "";
  bool near = bl_nearest_is_near(nearest->name, best);
  snprintf(text, BL_NEAREST_ADVICE_BYTES, near ? "did you mean '%.*s'?" : "the nearest known one is '%.*s'",
           BL_NEAREST_NAME_BYTES, best);
  return text;
}
