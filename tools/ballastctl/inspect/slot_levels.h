// SPDX-License-Identifier: Apache-2.0
// When the number of slots in use of each stage changes. Derived from operations, each of which reports the slots in
// use after it: a slot is taken when an operation begins, and returned when one ends.
// Thread: belongs to its caller.
#ifndef BALLAST_BALLASTCTL_SLOT_LEVELS_H
#define BALLAST_BALLASTCTL_SLOT_LEVELS_H

#include "ballastctl/inspect/events.h"

#include "base/status.h"

typedef struct bl_ctl_slot_level bl_ctl_slot_level_t;

typedef struct bl_ctl_slot_levels { // zeroed: no operation was added
  bl_ctl_slot_level_t *of;          // [count], by stage
  size_t count;
} bl_ctl_slot_levels_t;

// Sets *since_ns to the time from which event->slots_in_use slots are in use; it never decreases. Operations of one
// stage must come in order. BL_EXHAUSTED: no memory.
BL_MUST_USE bl_status_t bl_ctl_slot_levels_next(bl_ctl_slot_levels_t *levels, const bl_ctl_trace_event_t *event,
                                                uint64_t *since_ns);
void bl_ctl_slot_levels_cleanup(bl_ctl_slot_levels_t *levels);

#endif
