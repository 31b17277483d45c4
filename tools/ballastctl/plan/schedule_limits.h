// SPDX-License-Identifier: Apache-2.0
// Memory limits from `--memory` and `--slots` of `ballastctl schedule`, in device-micro-batches.
#ifndef BALLAST_BALLASTCTL_SCHEDULE_LIMITS_H
#define BALLAST_BALLASTCTL_SCHEDULE_LIMITS_H

#include "base/error.h"
#include "schedule/ir/schedule.h"

typedef struct bl_ctl_limits {
  double every;     // limit of every stage; 0: none, or limits differ
  double *of_stage; // [count] limits that differ; NULL: they do not
  uint32_t count;
} bl_ctl_limits_t;

// Reads "K", or "K,K,..." with one limit for each stage; NULL: no limit. BL_INVALID names the stage whose limit is
// wrong.
BL_MUST_USE bl_status_t bl_ctl_limits_read(bl_ctl_limits_t *limits, const char *text, bl_error_t *err);
void bl_ctl_limits_cleanup(bl_ctl_limits_t *limits); // a zeroed one is fine
// BL_INVALID: there is more than one limit, and not one for each of `stages`.
BL_MUST_USE bl_status_t bl_ctl_limits_check_count(const bl_ctl_limits_t *limits, uint32_t stages, bl_error_t *err);

// Checks orders whose search knows no limit, and those from a file. BL_INVALID names the stage that exceeds its limit
// and the smallest limit that works.
BL_MUST_USE bl_status_t bl_ctl_limits_check(const bl_ctl_limits_t *limits, const bl_schedule_t *schedule,
                                            bl_error_t *err);
// The same for blocks from R on, for --slots.
BL_MUST_USE bl_status_t bl_ctl_limits_check_slots(double slots, const bl_schedule_t *schedule, bl_error_t *err);

#endif
