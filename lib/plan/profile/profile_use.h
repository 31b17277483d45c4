// SPDX-License-Identifier: Apache-2.0
// Whether a profile applies to a job. If it does not (another model, another type of numbers, another kind of device,
// the replay of another order), it is refused. If it is an approximation (another micro-batch, attention,
// recomputation, number of threads or cores, other losses, copies that were not measured), the result comes with a
// warning.
//
//   bl_profile_use_t use = {.model = &model, .options = layout, .device = BL_PROFILE_HOST, .threads = 1};
//   char warning[BL_PROFILE_WARNING];
//   if (bl_profile_check(&profile, &use, "p.json", &err) == BL_OK && bl_profile_warning(&profile, &use, warning)) {
//     ... "profile p.json: " warning ...
//   }
//
// Pure. Thread: any.
#ifndef BALLAST_PLAN_PROFILE_USE_H
#define BALLAST_PLAN_PROFILE_USE_H

#include "plan/profile/profile.h"

#define BL_PROFILE_WARNING 1024

typedef struct bl_profile_use {
  const bl_model_t *model;
  bl_layout_options_t options; // bl_profile_check reads only dtype and tensor ranks
  bl_profile_device_t device;
  uint32_t threads;              // of a stage
  bool masked;                   // data.loss
  uint32_t cores;                // shared by its stages; 0: as many as the profile says
  const bl_schedule_t *schedule; // with its E and L; NULL: not known
} bl_profile_use_t;

// BL_INVALID names the file, the field, both values and what to do.
BL_MUST_USE bl_status_t bl_profile_check(const bl_profile_t *profile, const bl_profile_use_t *use, const char *name,
                                         bl_error_t *err);
// BL_INVALID: the profile's recorded step is not of this order and micro-batch.
BL_MUST_USE bl_status_t bl_profile_check_replay(const bl_profile_t *profile, const bl_schedule_t *schedule,
                                                uint32_t micro_batch, const char *name, bl_error_t *err);
// BL_INVALID: the profiles cannot be compared: models, types of numbers, devices, stages.
BL_MUST_USE bl_status_t bl_profile_check_pair(const bl_profile_t *first, const char *first_name,
                                              const bl_profile_t *second, const char *second_name, bl_error_t *err);

// Returns true if times are an approximation, and writes one line with the reason and what to do; else "". The profile
// must have passed bl_profile_check.
bool bl_profile_warning(const bl_profile_t *profile, const bl_profile_use_t *use, char warning[BL_PROFILE_WARNING]);
// The same for two profiles that are compared: other differences that change times.
bool bl_profile_warning_pair(const bl_profile_t *first, const bl_profile_t *second, char warning[BL_PROFILE_WARNING]);

#endif
