// SPDX-License-Identifier: Apache-2.0
// Which node holds which pipeline stage, and through which NICs it reaches the others. A stage has t neighbouring
// devices of one node; replicas of the pipeline follow each other.
//
//   sequential     stages in order: neighbours share nodes, boundaries are short, evictions of pairs (s, p-1-s) long
//   pair-adjacent  0, p-1, 1, p-2, ...: pairs share nodes, evictions are short, boundaries long
//
// Devices reach other nodes through network cards (NICs). Every node has the same number of NICs, each for neighbouring
// devices. Stages at one NIC share it (simulate/machine.h). A stage with several NICs sends a part of every tensor
// over each.
//
//   bl_nodes_t nodes;
//   if (bl_nodes_init(&nodes, &cluster, BL_NODES_SEQUENTIAL, stages, tensor) == BL_OK) {
//     nodes.nodes[stage], nodes.nics[stage], nodes.far_rate
//     bl_nodes_cleanup(&nodes);
//   }
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_PLAN_NODES_H
#define BALLAST_PLAN_NODES_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum bl_node_order { BL_NODES_SEQUENTIAL, BL_NODES_PAIR_ADJACENT } bl_node_order_t;

typedef struct bl_cluster {
  uint32_t nodes, devices_per_node;
  uint32_t nics_per_node; // divides devices_per_node; 0: every device has its own
  double intra_rate;      // bytes per second and direction of one device
  double inter_rate;      // the same of one NIC
} bl_cluster_t;

const char *bl_node_order_name(bl_node_order_t order); // "sequential", "pair-adjacent"

typedef struct bl_nodes {
  uint32_t stages;
  uint32_t *nodes;            // [stages] in the first replica
  uint32_t *nics;             // [stages] numbered from 0 over all nodes; the first one of a stage with several
  double near_rate, far_rate; // bytes per second and direction of one device, inside a node and between nodes
} bl_nodes_t;

// `tensor` must divide devices_per_node. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_nodes_init(bl_nodes_t *nodes, const bl_cluster_t *cluster, bl_node_order_t order,
                                      uint32_t stages, uint32_t tensor);
void bl_nodes_cleanup(bl_nodes_t *nodes); // a zeroed one is fine
// Returns whether there is more than one node.
bool bl_nodes_spread(const bl_nodes_t *nodes);
// Returns the time of a copy between the devices of two stages, relative to a copy within a node: 1, or the ratio of
// the rates between nodes. The unit of a job's balance.slow_paths.
double bl_nodes_copy(const bl_nodes_t *nodes, uint32_t a, uint32_t b);

// Returns the rate that one of the `tensor` devices of a stage gets from the stage's NICs, if no other stage uses
// them.
double bl_cluster_far_rate(const bl_cluster_t *cluster, uint32_t tensor);
// Returns the rate that a device gets if all devices of its node send at once, as between replicas.
double bl_cluster_shared_rate(const bl_cluster_t *cluster);

#endif
