// SPDX-License-Identifier: Apache-2.0
// The nearest known name to one that is not known: keys of a job file, flags, verbs of a command.
// Thread: pure functions, any thread.
#ifndef BALLAST_CONFIG_NEAREST_H
#define BALLAST_CONFIG_NEAREST_H

#include <stdbool.h>
#include <stddef.h>

// Longer names are compared by this many first bytes: bounds the work that hostile input can ask for.
#define BL_NEAREST_NAME_BYTES 64

// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b` (optimal string
// alignment).
size_t bl_edit_distance(const char *a, const char *b);
// Whether `candidate` is near enough to `name` to be what a person meant (a third of its letters may differ).
bool bl_nearest_is_near(const char *name, const char *candidate);

typedef struct bl_nearest {
  const char *name; // what was asked for; borrowed
  const char *best; // borrowed from the candidate offered; NULL while none was
  size_t distance;
} bl_nearest_t;

// Offer every candidate in turn; `best` is then the nearest, the first of equals.
//   bl_nearest_t nearest = {.name = verb};
//   for (...) bl_nearest_offer(&nearest, verbs[i].name);
void bl_nearest_offer(bl_nearest_t *nearest, const char *candidate);

#define BL_NEAREST_ADVICE_BYTES (BL_NEAREST_NAME_BYTES + 64)
// "did you mean 'NAME'?" when the best is near, else "the nearest known one is 'NAME'"; returns `text`.
const char *bl_nearest_advise(const bl_nearest_t *nearest, char text[BL_NEAREST_ADVICE_BYTES]);

#endif
