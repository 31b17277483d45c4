// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/inspect/slot_levels.h"

#include <stdlib.h>
#include <string.h>

struct bl_ctl_slot_level {
  uint32_t slots;
  uint64_t since_ns;
};

static bl_status_t reserve(bl_ctl_slot_levels_t *levels, size_t count) {
  if (count <= levels->count) {
    return BL_OK;
  }
  bl_ctl_slot_level_t *of = realloc(levels->of, count * sizeof *of);
  if (of == NULL) {
    return BL_EXHAUSTED;
  }
  memset(of + levels->count, 0, (count - levels->count) * sizeof *of);
  *levels = (bl_ctl_slot_levels_t){.of = of, .count = count};
  return BL_OK;
}

bl_status_t bl_ctl_slot_levels_next(bl_ctl_slot_levels_t *levels, const bl_ctl_trace_event_t *event,
                                    uint64_t *since_ns) {
  bl_status_t status = reserve(levels, (size_t)event->stage + 1);
  if (status != BL_OK) {
    return status;
  }
  bl_ctl_slot_level_t *level = &levels->of[event->stage];
  uint64_t changed_ns = event->slots_in_use > level->slots ? event->start_ns : event->end_ns;
  level->slots = event->slots_in_use;
  level->since_ns = changed_ns > level->since_ns ? changed_ns : level->since_ns;
  *since_ns = level->since_ns;
  return BL_OK;
}

void bl_ctl_slot_levels_cleanup(bl_ctl_slot_levels_t *levels) {
  free(levels->of);
  *levels = (bl_ctl_slot_levels_t){0};
}
