// SPDX-License-Identifier: Apache-2.0
// The GPU checks of ballastctl preflight: whether each stage has a GPU, which stages can read each other's memory
// directly, and whether all have one version of NCCL.
#ifndef BALLAST_BALLASTCTL_PREFLIGHT_GPUS_H
#define BALLAST_BALLASTCTL_PREFLIGHT_GPUS_H

#include "ballastctl/cluster/checklist.h"
#include "ballastctl/cluster/paths_wire.h"

#include "job/balance.h"
#include "job/training.h"

// `stages` have answered bl_ctl_paths_explore. For a job that computes on the host there is nothing to check.
void bl_ctl_preflight_gpus(bl_ctl_checklist_t *list, const bl_job_t *job, const bl_training_t *training,
                           const bl_device_slots_t *device_slots, const bl_ctl_explorer_t *stages, uint32_t count);

#endif
