// SPDX-License-Identifier: Apache-2.0
#include "plan/candidate/partition.h"

#include <math.h>
#include <stdlib.h>

static double cost_of(const bl_partition_request_t *r, uint32_t virtual_stage, uint32_t layers) {
  double cost = r->costs.layer * layers;
  cost += virtual_stage == 0 ? r->costs.embedding : 0;
  return virtual_stage + 1 == r->virtual_stages ? cost + r->costs.head : cost;
}

static uint32_t most_of(const bl_partition_request_t *r, uint32_t virtual_stage) {
  uint32_t all = r->layers - (r->virtual_stages - 1);
  return r->most != NULL && r->most[virtual_stage] < all ? r->most[virtual_stage] : all;
}

// best[v][n]: time of the slowest of the first v + 1 virtual stages if they hold n layers; choice: layers of the last
// of these. Of equal choices it takes the one with more layers at the end, where 1F1B keeps fewer blocks.
static bool solve(const bl_partition_request_t *r, double *best, uint32_t *choice) {
  const uint32_t width = r->layers + 1;
  for (uint32_t v = 0; v < r->virtual_stages; v++) {
    for (uint32_t n = 0; n <= r->layers; n++) {
      double *at = &best[v * width + n];
      *at = INFINITY;
      uint32_t most = most_of(r, v);
      for (uint32_t k = 1; k <= n && k <= most; k++) {
        double before = v == 0 ? (k == n ? 0 : INFINITY) : best[(v - 1) * width + n - k];
        double slowest = fmax(before, cost_of(r, v, k));
        if (slowest <= *at && isfinite(slowest)) {
          *at = slowest;
          choice[v * width + n] = k;
        }
      }
    }
  }
  return isfinite(best[(r->virtual_stages - 1) * width + r->layers]);
}

static double slowest_device(const bl_partition_request_t *r, const uint32_t *layers_of, double *loads) {
  double slowest = 0;
  for (uint32_t s = 0; s < r->stages; s++) {
    loads[s] = 0;
  }
  for (uint32_t v = 0; v < r->virtual_stages; v++) {
    loads[r->stage_of[v]] += cost_of(r, v, layers_of[v]);
  }
  for (uint32_t s = 0; s < r->stages; s++) {
    slowest = fmax(slowest, loads[s]);
  }
  return slowest;
}

// Moves one layer at a time from a virtual stage to any other while the slowest device gains. Layers are alike, so it
// does not matter which ones move.
static void level_devices(const bl_partition_request_t *r, uint32_t *layers_of, double *loads) {
  double slowest = slowest_device(r, layers_of, loads);
  for (bool gained = true; gained;) {
    gained = false;
    for (uint32_t from = 0; from < r->virtual_stages && !gained; from++) {
      if (layers_of[from] < 2 || loads[r->stage_of[from]] < slowest) {
        continue;
      }
      for (uint32_t to = 0; to < r->virtual_stages && !gained; to++) {
        if (to == from || layers_of[to] >= most_of(r, to) ||
            loads[r->stage_of[to]] + r->costs.layer >= slowest * (1 - 1e-9)) {
          continue;
        }
        layers_of[from]--;
        layers_of[to]++;
        slowest = slowest_device(r, layers_of, loads);
        gained = true;
      }
    }
  }
}

bl_status_t bl_partition_layers(const bl_partition_request_t *r, uint32_t *layers_of) {
  const uint32_t width = r->layers + 1;
  if (r->virtual_stages > r->layers || r->virtual_stages == 0) {
    return BL_INVALID;
  }
  double *best = malloc((size_t)r->virtual_stages * width * sizeof *best);
  uint32_t *choice = calloc((size_t)r->virtual_stages * width, sizeof *choice);
  double *loads = calloc(r->stages, sizeof *loads);
  bl_status_t status = BL_EXHAUSTED;
  if (best != NULL && choice != NULL && loads != NULL) {
    status = solve(r, best, choice) ? BL_OK : BL_PRECONDITION;
  }
  if (status == BL_OK) {
    for (uint32_t v = r->virtual_stages, n = r->layers; v-- > 0; n -= layers_of[v]) {
      layers_of[v] = choice[v * width + n];
    }
    if (r->virtual_stages > r->stages) {
      level_devices(r, layers_of, loads);
    }
  }
  free(loads);
  free(choice);
  free(best);
  return status;
}
