// SPDX-License-Identifier: Apache-2.0
#include "schedule/ir/cycle.h"

#include <stdio.h>
#include <string.h>

// Up to ALL links are all named; of more, HEAD at the beginning and TAIL at the end.
enum { ALL = 8, HEAD = 4, TAIL = 3 };

const char *bl__cycle_text(const bl__cycle_t *cycle, char text[BL__CYCLE_TEXT]) {
  char waits[BL__CYCLE_PART], needed[BL__CYCLE_PART] = "";
  size_t used = 0;
  for (uint32_t i = 0; i <= cycle->links && used < BL__CYCLE_TEXT; i++) { // the last round returns to the first link
    bool cut = cycle->links > ALL && i == HEAD;
    if (cut) {
      used +=
          (size_t)snprintf(text + used, BL__CYCLE_TEXT - used, " ... (%u waits more) ... ", cycle->links - HEAD - TAIL);
      i = cycle->links - TAIL;
    }
    cycle->say(cycle->context, i % cycle->links, false, waits);
    if (used < BL__CYCLE_TEXT && strcmp(waits, needed) != 0) { // else it is the same operation
      used += (size_t)snprintf(text + used, BL__CYCLE_TEXT - used, "%s%s", i == 0 || cut ? "" : ", behind ", waits);
    }
    if (used < BL__CYCLE_TEXT && i < cycle->links) {
      cycle->say(cycle->context, i, true, needed);
      used += (size_t)snprintf(text + used, BL__CYCLE_TEXT - used, "%s waits for %s", i == 0 ? "" : ", which", needed);
    }
  }
  return text;
}
