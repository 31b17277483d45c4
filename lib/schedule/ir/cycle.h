// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: the text that describes a cycle of waits, of operations or of messages.
//
//   "0B0 (row 1, column 2) waits for 1B0 (row 2, column 4), behind 1F1 (row 2, column 2), which waits for 0F1 (row 1,
//   column 3), behind 0B0 again"
#ifndef BALLAST_SCHEDULE_CYCLE_H
#define BALLAST_SCHEDULE_CYCLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BL__CYCLE_PART 112
#define BL__CYCLE_TEXT 880 // leaves space in an error's text for the name of a file

// An edge of the cycle leads from a waiter to what it waits for. `format` formats the waiter of an edge or, with
// `awaited`, what it waits for. That stands in its list after the waiter of the next edge.
typedef struct bl__cycle {
  void (*format)(const void *context, uint32_t edge, bool awaited, char text[BL__CYCLE_PART]);
  const void *context;
  uint32_t edges;
} bl__cycle_t;

// Names every edge of a short cycle; of a longer one the first and last edges, and how many stand between them.
const char *bl__cycle_text(const bl__cycle_t *cycle, char text[BL__CYCLE_TEXT]);

#endif
