// SPDX-License-Identifier: Apache-2.0
#include "plan/candidate/nodes.h"

#include <math.h>
#include <stdlib.h>

const char *bl_node_order_name(bl_node_order_t order) {
  return order == BL_NODES_SEQUENTIAL ? "sequential" : "pair-adjacent";
}

static uint32_t nics_of(const bl_cluster_t *cluster) {
  return cluster->nics_per_node > 0 ? cluster->nics_per_node : cluster->devices_per_node;
}

double bl_cluster_shared_rate(const bl_cluster_t *cluster) {
  return cluster->inter_rate * nics_of(cluster) / cluster->devices_per_node;
}

double bl_nodes_copy(const bl_nodes_t *nodes, uint32_t a, uint32_t b) {
  return nodes->nodes[a] == nodes->nodes[b] || !(nodes->far_rate > 0) ? 1 : nodes->near_rate / nodes->far_rate;
}

double bl_cluster_far_rate(const bl_cluster_t *cluster, uint32_t tensor) {
  return fmax(bl_cluster_shared_rate(cluster), cluster->inter_rate / tensor);
}

bl_status_t bl_nodes_init(bl_nodes_t *nodes, const bl_cluster_t *cluster, bl_node_order_t order, uint32_t stages,
                          uint32_t tensor) {
  bl_nodes_t made = {.stages = stages,
                     .nodes = calloc(stages, sizeof *made.nodes),
                     .nics = calloc(stages, sizeof *made.nics),
                     .near_rate = cluster->intra_rate,
                     .far_rate = bl_cluster_far_rate(cluster, tensor)};
  if (made.nodes == NULL || made.nics == NULL) {
    bl_nodes_cleanup(&made);
    return BL_EXHAUSTED;
  }
  uint64_t before = 0;
  for (uint32_t place = 0, nic = 0; place < stages; place++) {
    uint32_t stage = place;
    if (order == BL_NODES_PAIR_ADJACENT) {
      stage = place % 2 == 0 ? place / 2 : stages - 1 - place / 2;
    }
    uint64_t device = (uint64_t)place * tensor, wired_to = device * nics_of(cluster) / cluster->devices_per_node;
    nic += place > 0 && wired_to != before;
    before = wired_to;
    made.nodes[stage] = (uint32_t)(device / cluster->devices_per_node);
    made.nics[stage] = nic;
  }
  *nodes = made;
  return BL_OK;
}

void bl_nodes_cleanup(bl_nodes_t *nodes) {
  free(nodes->nodes);
  free(nodes->nics);
  *nodes = (bl_nodes_t){0};
}

bool bl_nodes_spread(const bl_nodes_t *nodes) {
  for (uint32_t s = 1; s < nodes->stages; s++) {
    if (nodes->nodes[s] != nodes->nodes[0]) {
      return true;
    }
  }
  return false;
}
