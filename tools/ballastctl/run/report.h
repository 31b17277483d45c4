// SPDX-License-Identifier: Apache-2.0
// The report of a run: JSON lines, each written with one write(2) at its commit (DESIGN.md section 7).
//
//   {"event":"step","step":1,"loss":5.5451774444795623,...,"stages":[...],"stores":[]}
//   {"event":"validation","step":100,"loss":2.25,"tokens":25600}       only if data.validation asks for it
//
// Thread: belongs to its caller.
#ifndef BALLAST_BALLASTCTL_REPORT_H
#define BALLAST_BALLASTCTL_REPORT_H

#include "ballastctl/inspect/events.h"

#include "base/error.h"

typedef struct bl_ctl_report bl_ctl_report_t;

// Opens the file; "-" is standard output. Unless `append`, the report of an earlier run is renamed to FILE.earlier-N.
// BL_INVALID: the file exists and is not a report; nothing is changed then. BL_PRECONDITION: another process writes it;
// BL_NOT_FOUND, BL_DENIED, BL_IO. All name the path. Pipes, devices and the file of standard output are written as they
// are.
BL_MUST_USE bl_status_t bl_ctl_report_create(const char *path, bool append, bl_ctl_report_t **report, bl_error_t *err);
// Opens the file of a run that continues after `step`. Removes lines of later steps, which will run again, and an
// incomplete last line. Keeps the rest, and does not write those steps again. UINT64_MAX keeps all complete lines.
// BL_INVALID: the file is not a report (names the line); nothing is changed then.
BL_MUST_USE bl_status_t bl_ctl_report_resume(const char *path, uint64_t step, bl_ctl_report_t **report,
                                             bl_error_t *err);
// What the user should know of the file: that an earlier report was set aside, or that steps are missing between the
// end of this one and `step`. Borrowed; NULL: nothing.
const char *bl_ctl_report_notice(const bl_ctl_report_t *report);
void bl_ctl_report_destroy(bl_ctl_report_t *report); // NULL is fine

// Writes a step (or validation), unless it is at or below the last one written, so that every committed step appears
// once.
BL_MUST_USE bl_status_t bl_ctl_report_step(bl_ctl_report_t *report, const bl_ctl_step_t *step, bl_error_t *err);
BL_MUST_USE bl_status_t bl_ctl_report_validation(bl_ctl_report_t *report, const bl_ctl_validation_t *validation,
                                                 bl_error_t *err);

// Writes a line of JSON (passed without its end) about the run as a whole.
BL_MUST_USE bl_status_t bl_ctl_report_note(bl_ctl_report_t *report, const char *json, bl_error_t *err);

#endif
