// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/plan/schedule_advice.h"

#include "ballastctl/job_file.h"

#include <stdio.h>
#include <string.h>

#define FASTER 1.02 // advice is given from this ratio on

// Returns the job with 1f1b and without keys about the other schedule. It borrows from `job`; do not clean it up.
static bl_job_t as_1f1b(const bl_job_t *job) {
  bl_job_t other = *job;
  other.pipeline.schedule = BL_SCHEDULE_1F1B;
  other.pipeline.chunks.value = 1;
  other.pipeline.group.set = false;
  other.pipeline.layers_per_stage.count = 0;
  memset(&other.pipeline.costs, 0, sizeof other.pipeline.costs);
  other.memory.slots.set = false;
  other.memory.activation_bytes.set = false;
  other.balance.policy = BL_POLICY_NONE;
  other.balance.cap.set = false;
  return other;
}

// Writes those of the reset keys that the job sets: ", without KEY, KEY".
static void name_resets(const bl_job_t *job, char text[256]) {
  static const char *const keys[] = {"pipeline.chunks",          "pipeline.group",          "pipeline.layers_per_stage",
                                     "pipeline.costs.forward",   "pipeline.costs.input",    "pipeline.costs.weight",
                                     "pipeline.costs.recompute", "pipeline.costs.boundary", "memory.slots",
                                     "memory.activation_bytes",  "balance.policy",          "balance.cap"};
  size_t length = 0;
  text[0] = '\0';
  for (size_t i = 0; i < sizeof keys / sizeof keys[0] && length < 256; i++) {
    if (bl_job_given(job, keys[i])) {
      length += (size_t)snprintf(text + length, 256 - length, "%s%s", length == 0 ? ", without " : ", ", keys[i]);
    }
  }
}

static double fullest(const bl_ctl_prediction_t *p) {
  double most = 0;
  for (uint32_t s = 0; s < p->plan.schedule->stages; s++) {
    const double taken = bl_footprint_total(&p->demand[s]);
    most = taken > most ? taken : most;
  }
  return most;
}

void bl_ctl_schedule_advice_find(const bl_ctl_prediction_t *prediction, const bl_ctl_prediction_source_t *source,
                                 const char *profile_name, char text[BL_CTL_SCHEDULE_ADVICE]) {
  const bl_schedule_t *schedule = prediction->plan.schedule;
  text[0] = '\0';
  if (schedule->placement != BL_PLACEMENT_V || schedule->chunks < 2 || schedule->stages < 2 || source->replay) {
    return;
  }
  const bl_job_t job = as_1f1b(source->job);
  const bl_policy_t policy = bl_policy_of_job(&job);
  bl_ctl_prediction_source_t plain = *source;
  bl_training_t training = {0};
  bl_ctl_prediction_t other = {0};
  bl_error_t fault; // ignored: if 1f1b is not possible, there is no advice
  plain.job = &job;
  plain.policy = &policy;
  if (bl_ctl_job_resolve(&job, &training, &fault) == BL_OK &&
      bl_ctl_prediction_init(&other, &training, &plain, profile_name, &fault) == BL_OK &&
      other.trial.step * FASTER < prediction->trial.step && fullest(&other) <= fullest(prediction)) {
    char resets[256];
    name_resets(source->job, resets);
    (void)snprintf(
        text, BL_CTL_SCHEDULE_ADVICE,
        "pipeline.schedule: 1f1b would take %.4g s a step in place of %.4g s with %s, within the memory of its "
        "fullest stage: set pipeline.schedule=1f1b%s",
        other.trial.step, prediction->trial.step, schedule->name, resets);
  }
  bl_ctl_prediction_cleanup(&other);
  bl_training_cleanup(&training);
}
