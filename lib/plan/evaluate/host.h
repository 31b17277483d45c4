// SPDX-License-Identifier: Apache-2.0
// Host memory of machines in which their devices park blocks: which stages share it, how many blocks it holds, and
// which copies wait for each other.
//
//   bl_host_places_t places;
//   if (bl_host_places_init(&places, &request.host, &request.cluster, order, stages, parallel) == BL_OK) {
//     places.of[stage], bl_host_slots(&request.host, &places, block_bytes), places.links[stage]
//     bl_host_places_cleanup(&places);
//   }
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_PLAN_HOST_H
#define BALLAST_PLAN_HOST_H

#include "plan/candidate/nodes.h"
#include "plan/evaluate/hardware.h"

typedef struct bl_host {
  double bytes;              // of one machine, shared by all its devices; 0: nothing is parked there
  double rate;               // bytes per second and direction of one link; 0: by the costs
  uint32_t devices_per_link; // neighbours that share a link; 0: all devices of a machine
} bl_host_t;

typedef struct bl_host_places {
  uint32_t stages, count; // number of stages, and of machines that hold them
  uint16_t *of;           // [stages] machine, from 0
  uint32_t *links;        // [stages] link, below `stages`; NULL: a machine has one
  uint32_t planes; // devices of a machine that may each hold a part of one stage's block, or belong to another replica
  double sharers;  // of a link, copying at the same time for any stage: its other devices, other replicas
} bl_host_places_t;

// Without nodes all stages are on one machine. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_host_places_init(bl_host_places_t *places, const bl_host_t *host,
                                            const bl_cluster_t *cluster, bl_node_order_t order, uint32_t stages,
                                            bl_parallel_t parallel);
void bl_host_places_cleanup(bl_host_places_t *places); // a zeroed one is fine
// Returns how many blocks of `block_bytes` per device a pipeline may park on one machine.
uint32_t bl_host_slots(const bl_host_t *host, const bl_host_places_t *places, double block_bytes);

#endif
