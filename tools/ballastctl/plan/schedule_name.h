// SPDX-License-Identifier: Apache-2.0
// The argument of --schedule: a built-in schedule, or a CSV file.
#ifndef BALLAST_BALLASTCTL_SCHEDULE_NAME_H
#define BALLAST_BALLASTCTL_SCHEDULE_NAME_H

#include "base/error.h"
#include "schedule/generate.h"

#include <stdbool.h>

// Returns whether --schedule names a file: it ends in ".csv".
bool bl_ctl_schedule_is_file(const char *schedule);
// Finds the built-in schedule. BL_INVALID names the nearest.
BL_MUST_USE bl_status_t bl_ctl_schedule_find(const char *name, const bl_schedule_info_t **info, bl_error_t *err);
// Reads a CSV file. Statuses as in input_file.h.
BL_MUST_USE bl_status_t bl_ctl_schedule_read(const char *flag, const char *path, bl_schedule_t **schedule,
                                             bl_error_t *err);

#endif
