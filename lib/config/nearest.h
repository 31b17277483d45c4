// SPDX-License-Identifier: Apache-2.0
// Finds the known name nearest to an unknown one: keys of a job file, flags, subcommands.
// Thread: pure functions, any thread.
#ifndef BALLAST_CONFIG_NEAREST_H
#define BALLAST_CONFIG_NEAREST_H

#include <stdbool.h>
#include <stddef.h>

// Only this many first bytes of a name are compared. This bounds the work that hostile input can cause.
#define BL_NEAREST_NAME_BYTES 64

// Returns the number of insertions, deletions, replacements and swaps of neighbours that turn `a` into `b` (optimal
// string alignment).
size_t bl_edit_distance(const char *a, const char *b);
// Returns whether `candidate` is so near to `name` that a person may have meant it: at most a third of its letters, at
// least one, may differ, or `name` is its beginning.
bool bl_nearest_is_near(const char *name, const char *candidate);

typedef struct bl_nearest {
  const char *name; // the unknown name; borrowed
  const char *best; // borrowed from the candidate offered; NULL: no candidate so far
  size_t distance;
} bl_nearest_t;

// Call it for every candidate. `best` is then the nearest, the first of equals.
//   bl_nearest_t nearest = {.name = command};
//   for (...) bl_nearest_offer(&nearest, commands[i].name);
void bl_nearest_offer(bl_nearest_t *nearest, const char *candidate);

#define BL_NEAREST_ADVICE_BYTES (BL_NEAREST_NAME_BYTES + 64)
// Writes "did you mean 'NAME'?" if the best candidate is near, else "the nearest known one is 'NAME'". Returns `text`.
const char *bl_nearest_advise(const bl_nearest_t *nearest, char text[BL_NEAREST_ADVICE_BYTES]);

#endif
