// SPDX-License-Identifier: Apache-2.0
// The timeline of a simulated schedule: its operations, the slots they hold, those lent to other stages, and the links
// to memory of hosts.
//
//   bl_schedule_timeline_t picture = {
//       .schedule = schedule, .simulation = &simulation, .unit = "s", .policy = "cap", .cap = 3};
//   status = bl_schedule_timeline_draw(&picture, "step.svg", &err);
//
// Thread: any; everything is borrowed for the call.
#ifndef BALLAST_DRAW_SCHEDULE_TIMELINE_H
#define BALLAST_DRAW_SCHEDULE_TIMELINE_H

#include "simulate/simulate.h"

typedef struct bl_schedule_timeline {
  const bl_schedule_t *schedule;
  const bl_simulation_t *simulation;
  const char *unit;            // of the times, for the axis: "s", "units of cost"
  const char *policy;          // that it is balanced by; NULL: not balanced
  const char *mode;            // of its transfers; NULL: it has no transfers
  uint32_t cap;                // slot limit of a device, own and lent; 0: no limit
  const uint64_t *block_bytes; // [virtual stages] what moves of a block; NULL: not known
} bl_schedule_timeline_t;

// `path` must end in .svg or .png. Statuses of bl_step_picture_draw.
BL_MUST_USE bl_status_t bl_schedule_timeline_draw(const bl_schedule_timeline_t *picture, const char *path,
                                                  bl_error_t *err);

#endif
