// SPDX-License-Identifier: Apache-2.0
// Layers to virtual stages by dynamic programming: the slowest virtual stage is made as fast as possible, embedding and
// head counted at what they cost, and, where a device holds little, no stage gets more layers than fit (as BaPipe,
// arXiv 2012.12544, explores). With several chunks a stage, layers then move between neighbours while that makes the
// slowest device faster.
//
// Pure. Thread: any.
#ifndef BALLAST_PLAN_PARTITION_H
#define BALLAST_PLAN_PARTITION_H

#include "base/status.h"

#include <stdint.h>

typedef struct bl_partition_costs {
  double layer;           // of one layer, any unit of time
  double embedding, head; // on top of the layers of the first and the last virtual stage
} bl_partition_costs_t;

typedef struct bl_partition_request {
  uint32_t layers, virtual_stages, stages;
  const uint16_t *stage_of; // [virtual_stages]
  bl_partition_costs_t costs;
  const uint32_t *most; // [virtual_stages] layers that fit, or NULL
} bl_partition_request_t;

// Sets layers_of[virtual_stages], every one at least 1. BL_INVALID: more virtual stages than layers; BL_PRECONDITION: what
// fits is less than all layers; BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_partition_layers(const bl_partition_request_t *request, uint32_t *layers_of);

#endif
