// SPDX-License-Identifier: Apache-2.0
// When the slots in use of stages changed, from their operations, each of which says how many are in use after it: a slot
// is taken as an operation begins, and given back as one ends.
// Thread: belongs to its caller.
#ifndef BALLAST_BALLASTCTL_SLOT_LEVELS_H
#define BALLAST_BALLASTCTL_SLOT_LEVELS_H

#include "ballastctl/inspect/events.h"

#include "base/status.h"

typedef struct bl_ctl_slot_level bl_ctl_slot_level_t;

typedef struct bl_ctl_slot_levels { // all zero: nothing has been told
  bl_ctl_slot_level_t *of;          // [count], by stage
  size_t count;
} bl_ctl_slot_levels_t;

// *since_ns: from when on event->slots_in_use are in use; it never goes back. Operations of one stage come in order.
// BL_EXHAUSTED: no memory.
BL_MUST_USE bl_status_t bl_ctl_slot_levels_next(bl_ctl_slot_levels_t *levels, const bl_ctl_trace_event_t *event,
                                                uint64_t *since_ns);
void bl_ctl_slot_levels_cleanup(bl_ctl_slot_levels_t *levels);

#endif
