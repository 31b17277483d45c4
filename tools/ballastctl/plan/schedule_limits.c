// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/plan/schedule_limits.h"

#include "base/words.h"
#include "schedule/ir/peaks.h"

#include <stdio.h>
#include <stdlib.h>

#define MOST 1e9 // device-micro-batches

bl_status_t bl_ctl_limits_read(bl_ctl_limits_t *limits, const char *text, bl_error_t *err) {
  bl_ctl_limits_t read = {0};
  if (text == NULL) {
    *limits = read;
    return BL_OK;
  }
  size_t room = 1;
  for (const char *at = text; *at != '\0'; at++) {
    room += *at == ',';
  }
  read.of_stage = calloc(room, sizeof *read.of_stage);
  if (read.of_stage == NULL || room > BL_STAGES_MAX) {
    free(read.of_stage);
    return bl_error_set(err, BL_INVALID, "--memory: %zu limits are more than there can be stages", room);
  }
  for (const char *at = text; read.count < room; at++, read.count++) {
    char *end;
    const double value = strtod(at, &end);
    if (end == at || (*end != '\0' && *end != ',') || !(value > 0 && value <= MOST)) {
      char which[32] = "";
      if (room > 1) {
        snprintf(which, sizeof which, "that of stage %u ", read.count);
      }
      free(read.of_stage);
      return bl_error_set(err, BL_INVALID, "--memory %.200s: %smust be a number above 0, up to %g", text, which, MOST);
    }
    read.of_stage[read.count] = value;
    at = end;
  }
  if (room == 1) {
    read.every = read.of_stage[0];
    bl_ctl_limits_t every = {.every = read.every};
    free(read.of_stage);
    read = every;
  }
  *limits = read;
  return BL_OK;
}

void bl_ctl_limits_cleanup(bl_ctl_limits_t *limits) {
  free(limits->of_stage);
  *limits = (bl_ctl_limits_t){0};
}

bl_status_t bl_ctl_limits_check_count(const bl_ctl_limits_t *limits, uint32_t stages, bl_error_t *err) {
  return limits->of_stage == NULL || limits->count == stages
             ? BL_OK
             : bl_error_set(err, BL_INVALID,
                            "--memory: has %u limits; give one for all or one for each of the %u stage%s",
                            limits->count, stages, bl_plural(stages));
}

// The error names the stage that exceeds its limit by the largest amount; the first of these.
bl_status_t bl_ctl_limits_check(const bl_ctl_limits_t *limits, const bl_schedule_t *schedule, bl_error_t *err) {
  const uint32_t stages = schedule->stages;
  if (limits->every == 0 && limits->of_stage == NULL) {
    return BL_OK;
  }
  uint32_t *peaks = calloc(stages, sizeof *peaks), worst = 0;
  double beyond = 0, needed = 0, limit = 0;
  if (peaks == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "out of memory for the peaks of %u stages", stages);
  }
  bl_schedule_peak_blocks(schedule, peaks);
  for (uint32_t s = 0; s < stages; s++) {
    const double kept = peaks[s] * bl_schedule_block_weight(schedule),
                 allowed = limits->of_stage != NULL ? limits->of_stage[s] : limits->every;
    if (kept > allowed * (1 + 1e-9) && kept - allowed > beyond) {
      beyond = kept - allowed;
      worst = s;
      needed = kept;
      limit = allowed;
    }
  }
  free(peaks);
  if (beyond == 0) {
    return BL_OK;
  }
  return limits->of_stage != NULL
             ? bl_error_set(
                   err, BL_INVALID,
                   "--memory: %s keeps %.6g device-micro-batches at once on stage %u, whose limit is %.6g; the "
                   "smallest that works there is %.6g",
                   schedule->name, needed, worst, limit, needed)
             : bl_error_set(err, BL_INVALID,
                            "--memory %g: %s keeps %.6g device-micro-batches at once here; the smallest limit that "
                            "works is %.6g",
                            limit, schedule->name, needed, needed);
}

bl_status_t bl_ctl_limits_check_slots(double slots, const bl_schedule_t *schedule, bl_error_t *err) {
  uint32_t *peaks = calloc(schedule->stages, sizeof *peaks), most = 0;
  if (slots == 0) {
    free(peaks);
    return BL_OK;
  }
  if (peaks == NULL || bl_schedule_peak_slots(schedule, peaks) != BL_OK) {
    free(peaks);
    return bl_error_set(err, BL_EXHAUSTED, "out of memory for the peaks of %u stages", schedule->stages);
  }
  for (uint32_t s = 0; s < schedule->stages; s++) {
    most = peaks[s] > most ? peaks[s] : most;
  }
  free(peaks);
  const double needed = most * bl_schedule_block_weight(schedule);
  return needed <= slots * (1 + 1e-9)
             ? BL_OK
             : bl_error_set(
                   err, BL_INVALID,
                   "--slots %g: %s keeps %.6g device-micro-batches from R on; the smallest limit that works is "
                   "%.6g",
                   slots, schedule->name, needed, needed);
}
