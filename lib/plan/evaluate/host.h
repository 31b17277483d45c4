// SPDX-License-Identifier: Apache-2.0
// Memory of machines that their devices park blocks in: which stages share it, how many blocks it has room for, and what a
// copy to it waits for.
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

#include "plan/candidate/placement.h"
#include "plan/evaluate/hardware.h"

typedef struct bl_host {
  double bytes;              // of one machine, which all its devices share; 0: nothing is parked there
  double rate;               // bytes per second and direction of one link; 0: as the costs have it
  uint32_t devices_per_link; // neighbours that share a link; 0: all of a machine do
} bl_host_t;

typedef struct bl_host_places {
  uint32_t stages, count; // machines that the stages of a pipeline are on
  uint16_t *of;           // [stages] machine, from 0
  uint32_t *links;        // [stages] below `stages`; NULL: a machine has one
  uint32_t planes; // devices of a machine that may hold a part each of one stage's block, or of another replica's
  double sharers;  // of a link, that copy at the same time whatever the stage: its other devices, other replicas
} bl_host_places_t;

// On a cluster of no nodes all stages are on one machine. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_host_places_init(bl_host_places_t *places, const bl_host_t *host,
                                            const bl_cluster_t *cluster, bl_node_order_t order, uint32_t stages,
                                            bl_parallel_t parallel);
void bl_host_places_cleanup(bl_host_places_t *places); // a zeroed one is fine
// Blocks of `block_bytes` on each device that a pipeline may have on one machine.
uint32_t bl_host_slots(const bl_host_t *host, const bl_host_places_t *places, double block_bytes);

#endif
