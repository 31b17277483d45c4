// SPDX-License-Identifier: Apache-2.0
#include "schedule/ir/cycle.h"

#include <stdio.h>
#include <string.h>

// A cycle of up to FULL_MAX edges is named in full; of a longer one, HEAD edges at the beginning and TAIL at the end.
enum { FULL_MAX = 8, HEAD = 4, TAIL = 3 };

const char *bl__cycle_text(const bl__cycle_t *cycle, char text[BL__CYCLE_TEXT]) {
  char waiter[BL__CYCLE_PART], awaited[BL__CYCLE_PART] = "";
  size_t used = 0;
  for (uint32_t i = 0; i <= cycle->edges && used < BL__CYCLE_TEXT; i++) { // the last round returns to the first edge
    bool cut = cycle->edges > FULL_MAX && i == HEAD;
    if (cut) {
      used +=
          (size_t)snprintf(text + used, BL__CYCLE_TEXT - used, " ... (%u waits more) ... ", cycle->edges - HEAD - TAIL);
      i = cycle->edges - TAIL;
    }
    cycle->format(cycle->context, i % cycle->edges, false, waiter);
    if (used < BL__CYCLE_TEXT && strcmp(waiter, awaited) != 0) { // else it is the same operation
      used += (size_t)snprintf(text + used, BL__CYCLE_TEXT - used, "%s%s", i == 0 || cut ? "" : ", behind ", waiter);
    }
    if (used < BL__CYCLE_TEXT && i < cycle->edges) {
      cycle->format(cycle->context, i, true, awaited);
      used += (size_t)snprintf(text + used, BL__CYCLE_TEXT - used, "%s waits for %s", i == 0 ? "" : ", which", awaited);
    }
  }
  return text;
}
