// SPDX-License-Identifier: Apache-2.0
// What ballastctl preflight asks of the stages that answered: pods, shared memory, GPUs, and the paths that the plan will
// use.
#ifndef BALLAST_BALLASTCTL_PREFLIGHT_PATHS_H
#define BALLAST_BALLASTCTL_PREFLIGHT_PATHS_H

#include "ballastctl/cluster/checklist.h"

#include "job/balance.h"

#include <stdbool.h>
#include <stdio.h>

// The name that a job's stages use at stores.
static inline const char *bl_ctl_preflight_run(const bl_job_t *job) {
  return job->name != NULL ? job->name : "run";
}

// What is known of the stores of a job by then, by their number in it (bl_job_store).
typedef struct bl_ctl_store_seen {
  bool well;            // may be asked; the rest has failed a check before
  uint64_t spare_bytes; // what no job has
  const char *machine;  // borrowed; NULL or "": not known
} bl_ctl_store_seen_t;

// "store 3", "host store 0"
static inline const char *bl_ctl_preflight_store_name(const bl_job_t *job, uint32_t number,
                                                      char text[BL_GRID_NAME_BYTES]) {
  const bool of_host = number >= job->services.stores.count;
  snprintf(text, BL_GRID_NAME_BYTES, "%sstore %u", of_host ? "host " : "",
           number - (of_host ? (uint32_t)job->services.stores.count : 0));
  return text;
}

// `well` [ranks]: the stages that may be asked; `stores` [bl_job_store_count]. A store that is full of the job itself has
// no room for a block on trial: that path is not asked, and fails nothing.
BL_MUST_USE bl_status_t bl_ctl_preflight_paths(bl_ctl_checklist_t *list, const bl_job_t *job,
                                               const bl_training_t *training, const bl_holdings_t *holdings,
                                               const bool *well, const bl_ctl_store_seen_t *stores, bl_error_t *err);

#endif
