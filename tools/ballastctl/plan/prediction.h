// SPDX-License-Identifier: Apache-2.0
// The prediction of a job: the balance plan of a policy, timed with the costs of a profile or a device.
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
  bl_footprint_t *demand;       // [stages], of our executor
  char warning[BL_CTL_WARNING]; // one line with the profile's name if times are approximations; else ""
} bl_ctl_prediction_t;

typedef struct bl_ctl_prediction_source {
  const bl_profile_t *profile;   // NULL: the device's model
  const bl_hardware_t *hardware; // NULL with a profile
  bool replay;                   // simulates with the durations of the profile's recorded step
  const bl_policy_t *policy;
  const bl_job_t *job;  // of the training
  uint32_t cores;       // shared by its stages; 0: as many as the profile says
  bl_cluster_t cluster; // without a profile: nodes over which the stages are spread; 0 nodes: one machine
  bl_node_order_t order;
  const bl_operation_memory_t *operations; // added to `demand`; NULL: left out
} bl_ctl_prediction_source_t;

// BL_INVALID: a profile that does not apply to this job (plan/profile/profile_use.h); `profile_name` is for messages.
// Statuses of bl_balance_plan_init: the policy does not fit. On failure there is nothing to clean up. The training must
// outlive the prediction.
BL_MUST_USE bl_status_t bl_ctl_prediction_init(bl_ctl_prediction_t *prediction, const bl_training_t *training,
                                               const bl_ctl_prediction_source_t *source, const char *profile_name,
                                               bl_error_t *err);
void bl_ctl_prediction_cleanup(bl_ctl_prediction_t *prediction); // a zeroed one is fine

// Returns the query that a job makes of a profile. The training need not exist yet: of the options only the dtype and
// the number of tensor ranks are set.
bl_profile_use_t bl_ctl_profile_use(const bl_job_t *job, const bl_model_t *model);
// Finds the built-in device of that name. BL_INVALID lists all names.
BL_MUST_USE bl_status_t bl_ctl_hardware_find(const char *name, const bl_hardware_t **hardware, bl_error_t *err);
// Moves the job to the device: to a GPU (pipeline.device: cuda), on a cluster of them in mixed precision (train.dtype:
// bf16). So its memory is that of the device whose times are predicted.
void bl_ctl_hardware_place(const bl_hardware_t *hardware, bool cluster, bl_job_t *job);

#endif
