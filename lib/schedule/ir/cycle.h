// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: the words for a circle of waits, of operations or of messages.
//
//   "0B0 (row 1, column 2) waits for 1B0 (row 2, column 4), behind 1F1 (row 2, column 2), which waits for 0F1 (row 1,
//   column 3), behind 0B0 again"
#ifndef BALLAST_SCHEDULE_CYCLE_H
#define BALLAST_SCHEDULE_CYCLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BL__CYCLE_PART 112
#define BL__CYCLE_TEXT 880 // leaves room in an error's text for the name of a file

// Of link `link`: who waits or, with `needed`, for what. What is needed by one stands behind the waiter of the next.
typedef struct bl__cycle {
  void (*say)(const void *context, uint32_t link, bool needed, char text[BL__CYCLE_PART]);
  const void *context;
  uint32_t links;
} bl__cycle_t;

// Names every link of a short circle; of a longer one the first and last, and says how many stand between them.
const char *bl__cycle_text(const bl__cycle_t *cycle, char text[BL__CYCLE_TEXT]);

#endif
