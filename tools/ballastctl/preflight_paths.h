// SPDX-License-Identifier: Apache-2.0
// What ballastctl preflight asks of the stages that answered: pods, shared memory, GPUs, and the paths that the plan will
// use.
#ifndef BALLAST_BALLASTCTL_PREFLIGHT_PATHS_H
#define BALLAST_BALLASTCTL_PREFLIGHT_PATHS_H

#include "checklist.h"

#include "job/balance.h"

#include <stdbool.h>

// `stage_well` and `store_well` [stages]: what may be asked; the rest has failed a check before.
BL_MUST_USE bl_status_t bl_ctl_preflight_paths(bl_ctl_checklist_t *list, const bl_job_t *job,
                                               const bl_training_t *training, const bl_holdings_t *holdings,
                                               const bool *stage_well, const bool *store_well, bl_error_t *err);

#endif
