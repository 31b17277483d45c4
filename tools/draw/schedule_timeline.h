// SPDX-License-Identifier: Apache-2.0
// The timeline of a simulated schedule: its operations and the slots they hold.
// Thread: any; everything is borrowed for the call.
#ifndef BALLAST_DRAW_SCHEDULE_TIMELINE_H
#define BALLAST_DRAW_SCHEDULE_TIMELINE_H

#include "simulate/simulate.h"

// `unit` of the times, for the axis: "s", "units of cost". `path` ends in .svg or .png. Statuses of bl_timeline_draw.
BL_MUST_USE bl_status_t bl_schedule_timeline_draw(const bl_schedule_t *schedule, const bl_simulation_t *simulation,
                                                  const char *unit, const char *path, bl_error_t *err);

#endif
