// SPDX-License-Identifier: Apache-2.0
#include "job/shortage.h"

#include "base/bytes.h"
#include "job/balance.h"
#include "job/order.h"
#include "schedule/generate.h"
#include "schedule/ir/peaks.h"
#include "schedule/ir/stage_plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define ADVICE_BYTES      256
#define MOST_SLICES_TRIED 16

// Formats what all stages need, in the unit that the job uses.
static void say_smallest(const bl_training_t *training, bool in_slots, char text[BL_BYTES_TEXT]) {
  uint64_t most = 0;
  for (uint32_t i = 0; i < training->stage_count; i++) {
    const bl_training_stage_t *stage = &training->stages[i];
    uint64_t needed = in_slots ? stage->slots_needed : stage->slots_needed * stage->slot_bytes + stage->kv_cache_bytes;
    most = needed > most ? needed : most;
  }
  (void)snprintf(text, BL_BYTES_TEXT, in_slots ? "%" PRIu64 : "%" PRIu64 " bytes", most);
}

// Returns the first policy under which this order fits, or NULL.
static const char *find_policy(const bl_training_t *training, const bl_job_t *job) {
  static const struct {
    int policy;
    const char *name;
  } policies[] = {
      {BL_POLICY_BPIPE, "bpipe"}, {BL_POLICY_CAP, "cap"}, {BL_POLICY_OFFLOAD, "offload"}, {BL_POLICY_DROP, "drop"}};
  for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
    bl_job_t other = *job;
    other.balance.policy = policies[i].policy;
    bl_policy_t policy = bl_policy_of_job(&other);
    bl_balance_plan_t plan;
    if (bl_balance_plan_init(&plan, training, &policy, NULL) == BL_OK) {
      bl_balance_plan_cleanup(&plan);
      return policies[i].name;
    }
  }
  return NULL;
}

static bool searches(const bl_training_t *training) {
  const bl_schedule_info_t *info = bl_schedule_info_find(training->schedule->name);
  return info != NULL && (info->limited || info->splits_backward);
}

// Returns whether an order can be searched that fits the stage with the fewest slots.
static bool fits_searched(const bl_training_t *training, const bl_job_t *job) {
  bl_job_t other = *job;
  bl_schedule_t *schedule;
  const bl_schedule_info_t *info = bl_schedule_info_find(training->schedule->name);
  if (job->memory.slots.set || training->budget == 0 || info == NULL || !info->limited) {
    return false; // v-half and similar schedules take no limit
  }
  other.memory.slots.set = true;
  other.memory.slots.value = training->budget;
  if (bl_job_order_make(&other, bl_job_order_pooled(job, job->balance.policy), &schedule, NULL) != BL_OK) {
    return false;
  }
  uint32_t *peaks = calloc(schedule->stages, sizeof *peaks), most = 0;
  const bool counted = peaks != NULL && bl_schedule_peak_slots(schedule, peaks) == BL_OK;
  for (uint32_t s = 0; counted && s < schedule->stages; s++) {
    most = peaks[s] > most ? peaks[s] : most;
  }
  free(peaks);
  bl_schedule_destroy(schedule);
  return counted && most <= training->budget;
}

static bool fits_recomputed(const bl_training_t *training, const bl_job_t *job) {
  bl_job_t other = *job;
  bl_training_t tried;
  if (training->layout.recompute == BL_RECOMPUTE_FULL || searches(training)) {
    return false; // a search would take too long for a piece of advice
  }
  other.pipeline.recompute = BL_JOB_RECOMPUTE_FULL;
  if (bl_training_init(&tried, &other, NULL) != BL_OK) {
    return false;
  }
  bl_training_cleanup(&tried);
  return true;
}

// Returns the smallest number of slices with which the order fits, 0: none does.
static int64_t fits_sliced(const bl_training_t *training, const bl_job_t *job) {
  if (job->memory.slots.set || searches(training) || job->pipeline.device == BL_JOB_DEVICE_CUDA) {
    return 0; // with slots given, slices would change what a slot is
  }
  for (int64_t slices = 2 * job->pipeline.slices.value; slices <= MOST_SLICES_TRIED; slices *= 2) {
    bl_job_t other = *job;
    bl_training_t tried;
    other.pipeline.slices.value = slices;
    if (bl_training_init(&tried, &other, NULL) == BL_OK) {
      bl_training_cleanup(&tried);
      return slices;
    }
  }
  return 0;
}

static void advise(const bl_training_t *training, const bl_job_t *job, char text[ADVICE_BYTES]) {
  char slots[64] = "", policy[64] = "", sliced[64] = "";
  const int64_t slices = fits_sliced(training, job);
  const char *found = training->layout.recompute != BL_RECOMPUTE_FULL ? find_policy(training, job) : NULL,
             *recompute = fits_recomputed(training, job) ? "pipeline.recompute: full" : "";
  if (fits_searched(training, job)) {
    (void)snprintf(slots, sizeof slots, "memory.slots: %" PRIu32, training->budget);
  }
  if (found != NULL) {
    (void)snprintf(policy, sizeof policy, "balance.policy: %s", found);
  }
  if (slices > 0) {
    (void)snprintf(sliced, sizeof sliced, "pipeline.slices: %" PRId64, slices);
  }
  const char *ways[] = {slots, policy, sliced, recompute};
  const char *join = "; it fits with ";
  size_t used = 0;
  text[0] = '\0';
  for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
    if (ways[i][0] != '\0') {
      used += (size_t)snprintf(text + used, ADVICE_BYTES - used, "%s%s", join, ways[i]);
      join = " or ";
    }
  }
}

bl_status_t bl__shortage_fail(const bl_training_t *training, const bl_job_t *job, uint32_t index, bl_error_t *err) {
  const bl_training_stage_t *stage = &training->stages[index];
  const bool in_slots = job->memory.slots.set;
  const char *key = in_slots ? "memory.slots" : "memory.activation_bytes";
  char slot[BL_BYTES_TEXT], smallest[BL_BYTES_TEXT], advice[ADVICE_BYTES];
  bl_bytes_format(stage->slot_bytes, slot);
  say_smallest(training, in_slots, smallest);
  advise(training, job, advice);
  if (stage->slots == 0) {
    return bl_job_fail(job, err, key,
                       "stage %" PRIu32 ": not one slot of %s fits; the smallest that works with schedule %s is %s%s",
                       index, slot, training->schedule->name, smallest, advice);
  }
  bl_stage_plan_t plan;
  bl_error_t fault;
  bl_status_t status =
      bl_stage_plan_init(training->schedule, index, (bl_plan_limits_t){.slots = stage->slots}, &plan, &fault);
  if (status == BL_OK) { // cannot happen: it needs more than it has
    bl_stage_plan_cleanup(&plan);
    return bl_error_set(err, BL_INTERNAL, "stage %" PRIu32 " runs with %" PRIu32 " slots, but %" PRIu32 " were counted",
                        index, stage->slots, stage->slots_needed);
  }
  return bl_job_fail(job, err, key, "%s; a slot has %s; the smallest that works is %s%s", fault.text, slot, smallest,
                     advice);
}
