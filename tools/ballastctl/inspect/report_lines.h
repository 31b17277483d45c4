// SPDX-License-Identifier: Apache-2.0
// Reports of runs (run/report.h) as verbs read them: line by line, also while one is still being written.
// Thread: belongs to its caller.
#ifndef BALLAST_BALLASTCTL_REPORT_LINES_H
#define BALLAST_BALLASTCTL_REPORT_LINES_H

#include "base/error.h"

#include <jansson.h>

// `kind` is the event's: "step", "validation"; both are borrowed for the call.
typedef bl_status_t (*bl_ctl_report_event_fn)(void *context, const char *kind, const json_t *event, bl_error_t *err);

// Every whole line of the file in order; empty ones and a last one that is half written are left out. BL_INVALID names file
// and line of what is no report, bl_ctl_input_file_read the file that cannot be read; an error of `event` ends it, with the
// line.
BL_MUST_USE bl_status_t bl_ctl_report_lines_read(const char *path, bl_ctl_report_event_fn event, void *context,
                                                 bl_error_t *err);

#endif
