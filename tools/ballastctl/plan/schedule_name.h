// SPDX-License-Identifier: Apache-2.0
// What --schedule names: a schedule that is built in, or a CSV file.
#ifndef BALLAST_BALLASTCTL_SCHEDULE_NAME_H
#define BALLAST_BALLASTCTL_SCHEDULE_NAME_H

#include "base/error.h"
#include "schedule/generate.h"

#include <stdbool.h>

// Whether what --schedule names is a file: it ends in ".csv".
bool bl_ctl_schedule_is_file(const char *schedule);
// The built-in one of that name; BL_INVALID names the nearest.
BL_MUST_USE bl_status_t bl_ctl_schedule_find(const char *name, const bl_schedule_info_t **info, bl_error_t *err);
// Reads a CSV file, as input_file.h.
BL_MUST_USE bl_status_t bl_ctl_schedule_read(const char *flag, const char *path, bl_schedule_t **schedule,
                                             bl_error_t *err);

#endif
