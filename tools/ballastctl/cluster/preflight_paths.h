// SPDX-License-Identifier: Apache-2.0
// The checks that ballastctl preflight makes through the stages that answered: pods, shared memory, GPUs, and the paths
// that the plan will use.
#ifndef BALLAST_BALLASTCTL_PREFLIGHT_PATHS_H
#define BALLAST_BALLASTCTL_PREFLIGHT_PATHS_H

#include "ballastctl/cluster/checklist.h"

#include "job/balance.h"

#include <stdbool.h>
#include <stdio.h>

// Returns the name that a job's stages use at stores.
static inline const char *bl_ctl_preflight_run(const bl_job_t *job) {
  return job->name != NULL ? job->name : "run";
}

// The state of a job's stores after the first checks, by their number in it (bl_job_store).
typedef struct bl_ctl_store_seen {
  bool well;            // may be asked; false: it failed a check
  uint64_t spare_bytes; // reserved by no job
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

// `well` [ranks]: the stages that may be asked; `stores` [bl_job_store_count]. If the job's own reservations fill a
// store, there is no memory for a test block: that path is not tested, and is not a failure.
BL_MUST_USE bl_status_t bl_ctl_preflight_paths(bl_ctl_checklist_t *list, const bl_job_t *job,
                                               const bl_training_t *training, const bl_device_slots_t *device_slots,
                                               const bool *well, const bl_ctl_store_seen_t *stores, bl_error_t *err);

#endif
