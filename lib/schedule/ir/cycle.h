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

// `say` formats what waits in link `link` or, with `needed`, what that link waits for. What a link waits for stands in
// its list after the waiter of the next link.
typedef struct bl__cycle {
  void (*say)(const void *context, uint32_t link, bool needed, char text[BL__CYCLE_PART]);
  const void *context;
  uint32_t links;
} bl__cycle_t;

// Names every link of a short cycle; of a longer one the first and last links, and how many stand between them.
const char *bl__cycle_text(const bl__cycle_t *cycle, char text[BL__CYCLE_TEXT]);

#endif
