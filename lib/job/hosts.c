// SPDX-License-Identifier: Apache-2.0
#include "job/hosts.h"

#include "base/bytes.h"
#include "base/host.h"
#include "base/words.h"
#include "lease/granule.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOST_NAME    256
#define NOT_ASSIGNED UINT16_MAX

// Finds the one host store whose address has the host name of `address`. Returns false if none has it, or several have.
static bool find_by_name(const bl_text_list_t *stores, const char *address, uint32_t *found) {
  char wanted[HOST_NAME], name[HOST_NAME];
  uint16_t port;
  uint32_t matches = 0;
  if (bl_host_split(address, wanted, sizeof wanted, &port, NULL) != BL_OK) {
    return false;
  }
  for (uint32_t i = 0; i < stores->count; i++) {
    if (bl_host_split(stores->items[i], name, sizeof name, &port, NULL) == BL_OK && strcmp(name, wanted) == 0) {
      *found = i;
      matches++;
    }
  }
  return matches == 1;
}

static bool assign_by_name(bl_hosts_t *hosts, const bl_job_t *job, uint32_t ranks) {
  for (uint32_t rank = 0; rank < ranks; rank++) {
    if (rank >= job->services.stages.count ||
        !find_by_name(&job->services.host_stores, job->services.stages.items[rank], &hosts->of_rank[rank])) {
      return false;
    }
  }
  return true;
}

static bl_status_t assign_by_order(bl_hosts_t *hosts, const bl_job_t *job, uint32_t ranks, bl_error_t *err) {
  const size_t stores = job->services.host_stores.count > 0 ? job->services.host_stores.count : 1;
  if (ranks % stores != 0) {
    return bl_job_fail(job, err, "services.host_stores",
                       "names %zu for %" PRIu32
                       " rank%s, and host names of addresses do not tell which rank is on which "
                       "machine; name a number that divides the ranks, each for as many of them in order",
                       stores, ranks, bl_plural(ranks));
  }
  for (uint32_t rank = 0; rank < ranks; rank++) {
    hosts->of_rank[rank] = (uint32_t)(rank / (ranks / stores));
  }
  return BL_OK;
}

// Numbers the stores of the first plane in the order of its stages. Checks that the stages of every other plane share
// stores in the same way.
static bl_status_t number_stores(bl_hosts_t *hosts, const bl_job_t *job, const bl_grid_t *grid, bl_error_t *err) {
  memset(hosts->of, 0xff, grid->stages * sizeof hosts->of[0]);
  for (uint32_t s = 0; s < grid->stages; s++) {
    for (uint32_t before = 0; before < s && hosts->of[s] == NOT_ASSIGNED; before++) {
      if (hosts->of_rank[bl_grid_rank(grid, (bl_coords_t){.stage = before})] ==
          hosts->of_rank[bl_grid_rank(grid, (bl_coords_t){.stage = s})]) {
        hosts->of[s] = hosts->of[before];
      }
    }
    if (hosts->of[s] == NOT_ASSIGNED) {
      hosts->of[s] = (uint16_t)hosts->count++;
    }
  }
  for (uint32_t rank = 0; rank < bl_grid_ranks(grid); rank++) {
    const bl_coords_t coords = bl_grid_coords(grid, rank);
    for (bl_coords_t other = {0, coords.tensor, coords.data}; other.stage < coords.stage; other.stage++) {
      const bool share = hosts->of_rank[rank] == hosts->of_rank[bl_grid_rank(grid, other)];
      if (share != (hosts->of[coords.stage] == hosts->of[other.stage])) {
        char name[BL_GRID_NAME_BYTES];
        return bl_job_fail(job, err, "services.host_stores",
                           "%s %s a store with stage %" PRIu32 " of its pipeline, and stage %" PRIu32
                           " of the first one does not; place all pipelines of the run alike on machines",
                           bl_grid_name(grid, rank, name), share ? "shares" : "does not share", other.stage,
                           coords.stage);
      }
    }
  }
  return BL_OK;
}

static bl_status_t count_planes(bl_hosts_t *hosts, const bl_grid_t *grid, size_t stores) {
  const uint32_t planes = grid->tensor * grid->data;
  uint32_t *of_store = calloc(stores, sizeof *of_store), *last = malloc(stores * sizeof *last);
  bl_status_t status = of_store != NULL && last != NULL ? BL_OK : BL_EXHAUSTED;
  if (status == BL_OK) {
    memset(last, 0xff, stores * sizeof *last);
    hosts->planes = 1; // at least
    for (uint32_t plane = 0; plane < planes; plane++) {
      for (uint32_t s = 0; s < grid->stages; s++) {
        const bl_coords_t coords = {s, plane % grid->tensor, plane / grid->tensor};
        const uint32_t store = hosts->of_rank[bl_grid_rank(grid, coords)];
        of_store[store] += last[store] != plane;
        last[store] = plane;
        hosts->planes = of_store[store] > hosts->planes ? of_store[store] : hosts->planes;
      }
    }
  }
  free(last);
  free(of_store);
  return status;
}

static void share_slots(bl_hosts_t *hosts, const bl_job_t *job, uint64_t block_bytes) {
  const uint64_t bytes = (uint64_t)job->balance.host.value,
                 slot_bytes = bl_align_up(block_bytes, BL_LEASE_GRANULE_BYTES);
  const uint64_t slots = slot_bytes > 0 ? bytes / hosts->planes / slot_bytes : 0;
  hosts->slot_bytes = slot_bytes;
  hosts->slots = slots > UINT32_MAX ? UINT32_MAX : (uint32_t)slots;
}

const char *bl_hosts_size(const bl_hosts_t *hosts, uint64_t blocks, char text[BL_BYTES_TEXT]) {
  static const char *const units[] = {"KiB", "MiB", "GiB"};
  const uint64_t bytes = (blocks > 0 ? blocks : 1) * hosts->planes * hosts->slot_bytes;
  size_t unit = 0;
  uint64_t scale = 1024;
  while (unit < 2 && bytes >= UINT64_C(10) * 1024 * scale) {
    unit++;
    scale *= 1024;
  }
  (void)snprintf(text, BL_BYTES_TEXT, "%" PRIu64 " %s", bytes / scale + (bytes % scale > 0), units[unit]);
  return text;
}

bool bl_hosts_warning(const bl_job_t *job, char text[BL_HOSTS_WARNING]) {
  const bool limited = job->memory.slots.set || job->memory.activation_bytes.set || job->balance.cap.set;
  if (job->balance.policy != BL_POLICY_OFFLOAD || limited) {
    return false;
  }
  (void)snprintf(text, BL_HOSTS_WARNING,
                 "balance.policy: offload parks nothing here, because nothing says how many blocks a device keeps: set "
                 "memory.slots or balance.cap");
  return true;
}

bl_status_t bl_hosts_init(bl_hosts_t *hosts, const bl_job_t *job, uint64_t block_bytes, bl_error_t *err) {
  const bl_grid_t grid = bl_job_grid(job);
  const uint32_t ranks = bl_grid_ranks(&grid);
  const size_t named = job->services.host_stores.count;
  bl_hosts_t made = {0};
  if (!job->balance.host.set) {
    *hosts = made;
    return BL_OK;
  }
  made.of = malloc(grid.stages * sizeof *made.of);
  made.of_rank = malloc(ranks * sizeof *made.of_rank);
  bl_status_t status = made.of != NULL && made.of_rank != NULL ? BL_OK : BL_EXHAUSTED;
  if (status == BL_OK && !assign_by_name(&made, job, ranks)) {
    status = assign_by_order(&made, job, ranks, err);
  }
  if (status == BL_OK) {
    status = number_stores(&made, job, &grid, err);
  }
  if (status == BL_OK) {
    status = count_planes(&made, &grid, named > 0 ? named : 1);
  }
  if (status == BL_OK) {
    share_slots(&made, job, block_bytes);
  }
  if (status != BL_OK) {
    bl_hosts_cleanup(&made);
    return status == BL_EXHAUSTED
               ? bl_error_set(err, status, "no memory for the host stores of %" PRIu32 " ranks", ranks)
               : status;
  }
  *hosts = made;
  return BL_OK;
}

void bl_hosts_cleanup(bl_hosts_t *hosts) {
  free(hosts->of);
  free(hosts->of_rank);
  *hosts = (bl_hosts_t){0};
}
