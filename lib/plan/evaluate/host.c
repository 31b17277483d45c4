// SPDX-License-Identifier: Apache-2.0
#include "plan/evaluate/host.h"

#include <math.h>
#include <stdlib.h>

static bl_status_t allocate(bl_host_places_t *places, bool links) {
  places->of = calloc(places->stages, sizeof *places->of);
  places->links = links ? calloc(places->stages, sizeof *places->links) : NULL;
  return places->of != NULL && (places->links != NULL || !links) ? BL_OK : BL_EXHAUSTED;
}

// Returns the maximum number of replicas with stages on one machine. Replicas follow each other on its devices.
static uint32_t replicas_of_machine(uint32_t devices_per_node, uint32_t devices, uint32_t replicas) {
  const uint32_t whole = devices_per_node / devices, rest = devices_per_node % devices;
  const uint32_t most = rest == 0 ? whole : devices % devices_per_node == 0 ? 1 : whole + 2;
  return most < replicas ? most : replicas;
}

// Numbers machines in the order of stages, and links like NICs.
static bl_status_t place_on_nodes(bl_host_places_t *places, const bl_host_t *host, const bl_cluster_t *cluster,
                                  bl_node_order_t order, bl_parallel_t parallel) {
  const uint32_t stages = places->stages, share = host->devices_per_link;
  bl_cluster_t linked = *cluster;
  bl_nodes_t nodes;
  linked.nics_per_node = share > 0 && share < cluster->devices_per_node ? cluster->devices_per_node / share : 1;
  bl_status_t status = bl_nodes_init(&nodes, &linked, order, stages, parallel.tensor);
  if (status != BL_OK) {
    return status;
  }
  for (uint32_t s = 0; s < stages; s++) {
    uint32_t before = 0;
    while (before < s && nodes.nodes[before] != nodes.nodes[s]) {
      before++;
    }
    places->of[s] = before < s ? places->of[before] : (uint16_t)places->count++;
    if (places->links != NULL) {
      places->links[s] = nodes.nics[s];
    }
  }
  bl_nodes_cleanup(&nodes);
  const uint32_t devices = stages * parallel.tensor, sharing = share > 0 ? share : cluster->devices_per_node;
  places->planes = parallel.tensor * replicas_of_machine(cluster->devices_per_node, devices, parallel.data);
  places->sharers = fmin(sharing, parallel.tensor) * fmax(1, fmin(parallel.data, (double)sharing / devices));
  return BL_OK;
}

bl_status_t bl_host_places_init(bl_host_places_t *places, const bl_host_t *host, const bl_cluster_t *cluster,
                                bl_node_order_t order, uint32_t stages, bl_parallel_t parallel) {
  bl_host_places_t made = {.stages = stages, .count = 0, .planes = parallel.tensor * parallel.data, .sharers = 1};
  bl_status_t status = allocate(&made, host->devices_per_link > 0);
  if (status == BL_OK && cluster->nodes > 0) {
    status = place_on_nodes(&made, host, cluster, order, parallel);
  } else if (status == BL_OK) {
    made.count = 1;
    for (uint32_t s = 0; made.links != NULL && s < stages; s++) {
      made.links[s] = s / host->devices_per_link;
    }
  }
  if (status != BL_OK) {
    bl_host_places_cleanup(&made);
    return status;
  }
  *places = made;
  return BL_OK;
}

void bl_host_places_cleanup(bl_host_places_t *places) {
  free(places->of);
  free(places->links);
  *places = (bl_host_places_t){0};
}

uint32_t bl_host_slots(const bl_host_t *host, const bl_host_places_t *places, double block_bytes) {
  return block_bytes > 0 ? (uint32_t)fmin(1u << 30, floor(host->bytes / places->planes / block_bytes)) : 0;
}
