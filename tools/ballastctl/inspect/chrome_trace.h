// SPDX-License-Identifier: Apache-2.0
// One step as a trace in the JSON format that Chrome (chrome://tracing) and Perfetto read: one process per stage, with
// its operations, its waits by cause, and the slots in use, and one process per host store, with the transfers that its
// link moves and how many wait for it.
//
//   bl_ctl_chrome_trace_create(&trace);
//   bl_ctl_chrome_trace_add(trace, &event);  ... for every event, in any order
//   bl_ctl_chrome_trace_write(trace, "step.json", err);
//
// Times are microseconds from the first event. Thread: one at a time.
#ifndef BALLAST_BALLASTCTL_CHROME_TRACE_H
#define BALLAST_BALLASTCTL_CHROME_TRACE_H

#include "ballastctl/inspect/events.h"

#include "base/error.h"

typedef struct bl_ctl_chrome_trace bl_ctl_chrome_trace_t;

BL_MUST_USE bl_status_t bl_ctl_chrome_trace_create(bl_ctl_chrome_trace_t **trace);             // BL_EXHAUSTED
void bl_ctl_chrome_trace_destroy(bl_ctl_chrome_trace_t *trace);                                // NULL is fine
void bl_ctl_chrome_trace_add(bl_ctl_chrome_trace_t *trace, const bl_ctl_trace_event_t *event); // copies the event
// Replaces the file atomically. BL_PRECONDITION: no events. BL_EXHAUSTED: memory ran out, here or while adding. BL_IO,
// ...
BL_MUST_USE bl_status_t bl_ctl_chrome_trace_write(bl_ctl_chrome_trace_t *trace, const char *path, bl_error_t *err);

#endif
