// SPDX-License-Identifier: Apache-2.0
#include "plan/placement.h"

const char *bl_node_order_name(bl_node_order_t order) {
  return order == BL_NODES_SEQUENTIAL ? "sequential" : "pair-adjacent";
}

void bl_placement_nodes(const bl_cluster_t *cluster, bl_node_order_t order, uint32_t stages, uint32_t tensor,
                        uint32_t *nodes) {
  for (uint32_t place = 0; place < stages; place++) {
    uint32_t stage = place;
    if (order == BL_NODES_PAIR_ADJACENT) {
      stage = place % 2 == 0 ? place / 2 : stages - 1 - place / 2;
    }
    nodes[stage] = place * tensor / cluster->devices_per_node;
  }
}

void bl_placement_rates(const bl_cluster_t *cluster, const bl_schedule_t *schedule, const uint32_t *nodes,
                        double *boundary_rates, double *path_rates) {
  for (uint32_t v = 0; v < schedule->virtual_stages; v++) {
    uint32_t next = v + 1 < schedule->virtual_stages ? v + 1 : v;
    bool together = nodes[schedule->stage_of[v]] == nodes[schedule->stage_of[next]];
    boundary_rates[v] = together ? cluster->intra_rate : cluster->inter_rate;
  }
  for (uint32_t s = 0; s < schedule->stages; s++) {
    bool together = nodes[s] == nodes[schedule->stages - 1 - s];
    path_rates[s] = together ? cluster->intra_rate : cluster->inter_rate;
  }
}
