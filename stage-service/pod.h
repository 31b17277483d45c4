// SPDX-License-Identifier: Apache-2.0
// Which pod of its set this process is, and so which stage it should be. Pods of a pair (s, p - 1 - s) follow each other
// (job/pods.h), so that whatever keeps consecutive pods together keeps pairs together; the addresses of services.stages
// must be in that order. The driver says which stage a process is; this says whether that is the one that belongs there.
// Thread: the loop's.
#ifndef BALLAST_STAGE_SERVICE_POD_H
#define BALLAST_STAGE_SERVICE_POD_H

#include "model/grid.h"

#include <stdint.h>

#define BL_POD_NONE (-1)

// `given` where it is not BL_POD_NONE; else POD_INDEX of the environment, else the number at the end of its POD_NAME
// ("train-stage-3" is pod 3). BL_POD_NONE: neither says.
int64_t bl_pod_index(int64_t given);
// Says in the log which stage pod `pod` will be, as far as that is known without the number of stages and if there is one
// replica.
void bl_pod_announce(int64_t pod);
// Says in the log what it is in the grid; warns where another rank belongs there. Nothing for BL_POD_NONE.
void bl_pod_compare(int64_t pod, uint32_t rank, const bl_grid_t *grid);

#endif
