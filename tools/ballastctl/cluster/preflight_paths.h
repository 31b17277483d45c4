// SPDX-License-Identifier: Apache-2.0
// What ballastctl preflight asks of the stages that answered: pods, shared memory, GPUs, and the paths that the plan will
// use.
#ifndef BALLAST_BALLASTCTL_PREFLIGHT_PATHS_H
#define BALLAST_BALLASTCTL_PREFLIGHT_PATHS_H

#include "ballastctl/cluster/checklist.h"

#include "job/balance.h"

#include <stdbool.h>

// The name that a job's stages use at stores.
static inline const char *bl_ctl_preflight_run(const bl_job_t *job) {
  return job->name != NULL ? job->name : "run";
}

// `well` [stages], then [stores]: what may be asked; the rest has failed a check before. `spare_bytes` [stages]: what
// stores have that no job has. A store that is full of the job itself has no room for a block on trial: that path is not
// asked, and fails nothing.
BL_MUST_USE bl_status_t bl_ctl_preflight_paths(bl_ctl_checklist_t *list, const bl_job_t *job,
                                               const bl_training_t *training, const bl_holdings_t *holdings,
                                               const bool *well, const uint64_t *spare_bytes, bl_error_t *err);

#endif
