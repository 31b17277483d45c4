// SPDX-License-Identifier: Apache-2.0
// Reports of runs (run/report.h), read line by line, also while one is still being written.
// Thread: belongs to its caller.
#ifndef BALLAST_BALLASTCTL_REPORT_LINES_H
#define BALLAST_BALLASTCTL_REPORT_LINES_H

#include "base/error.h"

#include <jansson.h>

// `kind` is the event's: "step", "validation"; `kind` and `event` are borrowed for the call.
typedef bl_status_t (*bl_ctl_report_event_fn)(void *context, const char *kind, const json_t *event, bl_error_t *err);

// Reads every complete line of the file in order. Empty lines and an incomplete last one are left out. BL_INVALID names
// file and line of what is not a report. bl_ctl_input_file_read names a file that cannot be read. An error of `event`
// ends the reading and gets the line added.
BL_MUST_USE bl_status_t bl_ctl_report_lines_read(const char *path, bl_ctl_report_event_fn event, void *context,
                                                 bl_error_t *err);

#endif
