// SPDX-License-Identifier: Apache-2.0
// What a job would take: the plan that a policy means for it, timed with a profile's or a device's costs.
#ifndef BALLAST_BALLASTCTL_PREDICTION_H
#define BALLAST_BALLASTCTL_PREDICTION_H

#include "ballastctl/plan/warning.h"

#include "job/balance.h"
#include "plan/evaluate/demand.h"
#include "plan/evaluate/trial.h"

typedef struct bl_ctl_prediction {
  const bl_training_t *training; // borrowed
  bl_balance_plan_t plan;
  bl_trial_t trial;
  bl_footprint_t *demand;       // [stages] of our executor
  char warning[BL_CTL_WARNING]; // one line with the profile's name where times are an approximation; else ""
} bl_ctl_prediction_t;

typedef struct bl_ctl_prediction_source {
  const bl_profile_t *profile;   // NULL: the device's model
  const bl_hardware_t *hardware; // NULL with a profile
  bool replay;                   // of the profile's recorded step
  const bl_policy_t *policy;
  const bl_job_t *job;  // of the training
  uint32_t cores;       // that its stages share; 0: as many as the profile says
  bl_cluster_t cluster; // without a profile: nodes that the stages are spread over; 0: one machine
  bl_node_order_t order;
  const bl_operation_memory_t *operations; // that `demand` counts; NULL: left out
} bl_ctl_prediction_source_t;

// BL_INVALID: a profile that says nothing of this job (plan/profile/profile_use.h); `profile_name` is for messages. As
// bl_balance_plan_init: the policy does not fit. On failure there is nothing to clean up. The training, made of the job
// once, outlives the prediction.
BL_MUST_USE bl_status_t bl_ctl_prediction_init(bl_ctl_prediction_t *prediction, const bl_training_t *training,
                                               const bl_ctl_prediction_source_t *source, const char *profile_name,
                                               bl_error_t *err);
void bl_ctl_prediction_cleanup(bl_ctl_prediction_t *prediction); // a zeroed one is fine

// What a profile is asked about this job, whose training may not be made: options have its dtype alone.
bl_profile_use_t bl_ctl_profile_use(const bl_job_t *job, const bl_model_t *model);
// The device of that name; BL_INVALID names the nearest.
BL_MUST_USE bl_status_t bl_ctl_hardware_find(const char *name, const bl_hardware_t **hardware, bl_error_t *err);

#endif
