// SPDX-License-Identifier: Apache-2.0
// Limits of memory as `--memory` and `--slots` of `ballastctl schedule` give them, in device-micro-batches.
#ifndef BALLAST_BALLASTCTL_SCHEDULE_LIMITS_H
#define BALLAST_BALLASTCTL_SCHEDULE_LIMITS_H

#include "base/error.h"
#include "schedule/ir/schedule.h"

typedef struct bl_ctl_limits {
  double every;     // of all stages; 0: none, or they differ
  double *of_stage; // [count]; NULL: they do not
  uint32_t count;
} bl_ctl_limits_t;

// Reads "K", or "K,K,..." with one for each stage; NULL is no limit. BL_INVALID names the stage whose limit is wrong.
BL_MUST_USE bl_status_t bl_ctl_limits_read(bl_ctl_limits_t *limits, const char *text, bl_error_t *err);
void bl_ctl_limits_cleanup(bl_ctl_limits_t *limits); // a zeroed one is fine
// BL_INVALID: other than one limit, or one for each of so many stages.
BL_MUST_USE bl_status_t bl_ctl_limits_check_count(const bl_ctl_limits_t *limits, uint32_t stages, bl_error_t *err);

// Orders that know no limit, and those that a file gives, keep what they keep: what exceeds the limits is refused, not
// overlooked, with the stage and the smallest limit that works.
BL_MUST_USE bl_status_t bl_ctl_limits_check(const bl_ctl_limits_t *limits, const bl_schedule_t *schedule,
                                            bl_error_t *err);
// The same of blocks from R on, for --slots.
BL_MUST_USE bl_status_t bl_ctl_limits_check_slots(double slots, const bl_schedule_t *schedule, bl_error_t *err);

#endif
