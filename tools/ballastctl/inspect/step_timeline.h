// SPDX-License-Identifier: Apache-2.0
// The picture of the last step: operations as a driver reports them, drawn by tools/draw.
// Thread: belongs to its caller.
#ifndef BALLAST_BALLASTCTL_STEP_TIMELINE_H
#define BALLAST_BALLASTCTL_STEP_TIMELINE_H

#include "ballastctl/inspect/events.h"

#include "base/error.h"

#include <stdbool.h>

typedef struct bl_ctl_step_timeline bl_ctl_step_timeline_t;

BL_MUST_USE bl_status_t bl_ctl_step_timeline_create(bl_ctl_step_timeline_t **timeline);
void bl_ctl_step_timeline_destroy(bl_ctl_step_timeline_t *timeline); // NULL is fine
// Operations of one stage must come in start order. Leaves out events that are not schedule cells (waits).
void bl_ctl_step_timeline_add(bl_ctl_step_timeline_t *timeline, const bl_ctl_trace_event_t *event);
// Returns the time from the first operation to the end of the last, in milliseconds.
double bl_ctl_step_timeline_ms(const bl_ctl_step_timeline_t *timeline);
// Returns whether this name has the ending of a picture: .svg or .png.
bool bl_ctl_step_timeline_is_picture(const char *path);
// Writes `path` (.svg or .png). BL_INVALID: nothing was added, or another ending. BL_EXHAUSTED, BL_IO.
BL_MUST_USE bl_status_t bl_ctl_step_timeline_draw(bl_ctl_step_timeline_t *timeline, const char *title,
                                                  const char *subtitle, const char *path, bl_error_t *err);

#endif
