// SPDX-License-Identifier: Apache-2.0
// What Ballast's own stages keep in the job of a planned candidate. Plans of a cluster count its devices as Korthikanti
// et al. do (plan/evaluate/footprint.h); the job that is written runs on Ballast, whose stages keep something else.
#ifndef BALLAST_BALLASTCTL_OWN_STAGES_H
#define BALLAST_BALLASTCTL_OWN_STAGES_H

#include "ballastctl/plan/plan_request.h"

#define BL_CTL_OWN_STAGES_WARNING (sizeof(((bl_error_t *)NULL)->text) + 512)

typedef struct bl_ctl_own_stages {
  bool known;
  uint32_t stage;                          // the fullest
  bl_footprint_t fullest;                  // its memory by use
  bl_ctl_operations_t operations;          // whether memory of operations is known
  char warning[BL_CTL_OWN_STAGES_WARNING]; // a job that does not fit, or is refused; else ""
} bl_ctl_own_stages_t;

// Counts the stages of `job`, of the candidate `best`, as ballastctl simulate does. On failure nothing is known, and the
// warning says why. The job must outlive the result; call the cleanup.
void bl_ctl_own_stages_find(const bl_job_t *job, const bl_plan_request_t *request, const bl_plan_candidate_t *best,
                            bl_ctl_own_stages_t *own);
// Sets the warning of a candidate whose job is refused.
void bl_ctl_own_stages_refuse(bl_ctl_own_stages_t *own, const bl_error_t *fault);
void bl_ctl_own_stages_cleanup(bl_ctl_own_stages_t *own); // a zeroed one is fine

#endif
