// SPDX-License-Identifier: Apache-2.0
// The number of this process's pod in its set, and so the stage that it should be. Pods of a pair (s, p - 1 - s) are
// consecutive (job/pods.h), so that a scheduler that keeps consecutive pods together keeps pairs together. The
// addresses in services.stages must be in that order. The driver decides which stage a process is; this code checks
// whether it is the expected one.
// Thread: the loop's.
#ifndef BALLAST_STAGE_SERVICE_POD_H
#define BALLAST_STAGE_SERVICE_POD_H

#include "model/grid.h"

#include <stdint.h>

#define BL_POD_NONE (-1)

// Returns `given` if it is not BL_POD_NONE; else POD_INDEX of the environment; else the number at the end of its
// POD_NAME ("train-stage-3" is pod 3). BL_POD_NONE: neither is set.
int64_t bl_pod_index(int64_t given);
// Logs which stage pod `pod` will be, as far as that is known without the number of stages and if there is one replica.
void bl_pod_announce(int64_t pod);
// Logs its coordinates in the grid, and warns if another rank is expected there. Does nothing for BL_POD_NONE.
void bl_pod_compare(int64_t pod, uint32_t rank, const bl_grid_t *grid);

#endif
