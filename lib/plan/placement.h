// SPDX-License-Identifier: Apache-2.0
// Which node holds which pipeline stage. A stage takes t neighbouring devices of one node; replicas of the pipeline follow
// each other.
//
//   sequential     stages in order: neighbours share nodes, boundaries are short, evictions of pairs (s, p-1-s) are long
//   pair-adjacent  0, p-1, 1, p-2, ...: pairs share nodes, evictions are short, boundaries are long
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_PLAN_PLACEMENT_H
#define BALLAST_PLAN_PLACEMENT_H

#include "schedule/schedule.h"

typedef enum bl_node_order { BL_NODES_SEQUENTIAL, BL_NODES_PAIR_ADJACENT } bl_node_order_t;

typedef struct bl_cluster {
  uint32_t nodes, devices_per_node;
  double intra_rate, inter_rate; // bytes per second and direction of one device
} bl_cluster_t;

const char *bl_node_order_name(bl_node_order_t order); // "sequential", "pair-adjacent"
// Node of every stage of the first replica: nodes[stages]. `tensor` divides devices_per_node.
void bl_placement_nodes(const bl_cluster_t *cluster, bl_node_order_t order, uint32_t stages, uint32_t tensor,
                        uint32_t *nodes);
// Rates of every boundary, boundary_rates[virtual_stages], and between every stage and its pair, path_rates[stages].
void bl_placement_rates(const bl_cluster_t *cluster, const bl_schedule_t *schedule, const uint32_t *nodes,
                        double *boundary_rates, double *path_rates);

#endif
