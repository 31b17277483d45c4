// SPDX-License-Identifier: Apache-2.0
// Division of layers over virtual stages by dynamic programming. It makes the slowest virtual stage as fast as
// possible, including the costs of embedding and head. If devices are small, no stage gets more layers than fit (as
// BaPipe, arXiv 2012.12544, explores). With several chunks per stage, layers then move between neighbours while that
// makes the slowest device faster.
//
// Pure. Thread: any.
#ifndef BALLAST_PLAN_PARTITION_H
#define BALLAST_PLAN_PARTITION_H

#include "base/status.h"

#include <stdint.h>

typedef struct bl_partition_costs {
  double layer;           // cost of one layer, in any unit of time
  double embedding, head; // in addition to the layers of the first and the last virtual stage
} bl_partition_costs_t;

typedef struct bl_partition_request {
  uint32_t layers, virtual_stages, stages;
  const uint16_t *stage_of; // [virtual_stages]
  bl_partition_costs_t costs;
  const uint32_t *most; // [virtual_stages] maximum number of layers, or NULL
} bl_partition_request_t;

// Sets layers_of[virtual_stages], each at least 1. BL_INVALID: more virtual stages than layers. BL_PRECONDITION: fewer
// layers fit than there are. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_partition_layers(const bl_partition_request_t *request, uint32_t *layers_of);

#endif
