// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/inspect/driver_core_wire.h"

#include "ballastctl/inspect/coords.h"

#include "model/grid.h"
#include "step/stage_counters.h"

#include <inttypes.h>

static json_t *waits_json(const Ballast__V1__StageStatusResponse *status) {
  json_t *waits = json_array();
  for (size_t i = 0; i < status->n_waits; i++) {
    const Ballast__V1__Wait *wait = status->waits[i];
    double seconds = status->now_ns > wait->since_ns ? (double)(status->now_ns - wait->since_ns) * 1e-9 : 0;
    json_t *row = json_pack("{s:s, s:f}", "what", wait->what, "seconds", seconds);
    if (wait->peer >= 0) {
      json_object_set_new(row, "peer", json_integer(wait->peer));
    }
    if (wait->micro_batch >= 0) {
      json_object_set_new(row, "micro_batch", json_integer(wait->micro_batch));
    }
    if (wait->peer < 0 && wait->at_store >= 0) {
      json_object_set_new(row, "store", json_integer(wait->at_store));
      json_object_set_new(row, "chunk", json_integer(wait->chunk));
      if (wait->lease != 0) { // in the form that `leases get` accepts
        json_object_set_new(row, "lease", json_sprintf("%d/%" PRIu64, wait->at_store, wait->lease));
      }
    }
    json_array_append_new(waits, row);
  }
  return waits;
}

static void set_coords(json_t *row, const bl_grid_t *grid, bl_coords_t coords) {
  if (grid->tensor * grid->data > 1) {
    json_object_set_new(row, "tensor", json_integer(coords.tensor));
    json_object_set_new(row, "data", json_integer(coords.data));
  }
}

// A rank names its peers by their ranks.
static json_t *paths_json(const Ballast__V1__StageStatusResponse *status, const bl_grid_t *grid) {
  json_t *paths = json_array();
  for (size_t i = 0; i < status->n_paths; i++) {
    const Ballast__V1__PeerPath *path = status->paths[i];
    const bl_coords_t coords = bl_grid_coords(grid, (uint32_t)path->stage);
    json_t *row =
        json_pack("{s:i, s:s, s:s}", "stage", (int)coords.stage, "path", path->data_path, "reason", path->reason);
    set_coords(row, grid, coords);
    json_array_append_new(paths, row);
  }
  return paths;
}

static json_t *memory_json(const Ballast__V1__StageStatusResponse *status) {
  json_t *memory = json_object();
  for (size_t i = 0; i < status->n_memory; i++) {
    json_object_set_new(memory, status->memory[i]->name, json_integer((json_int_t)status->memory[i]->planned_bytes));
  }
  return memory;
}

#define SHOW(object, counters, type, name, key, unit, shown, metric)                                                   \
  if (shown) {                                                                                                         \
    json_object_set_new(object, #name, json_integer((json_int_t)(counters)->name));                                    \
  }

static json_t *stage_json(const Ballast__V1__StageHealth *health, const bl_grid_t *grid) {
  json_t *stage =
      json_pack("{s:i, s:s, s:b}", "stage", health->stage, "address", health->address, "reachable", health->reachable);
  set_coords(stage, grid, (bl_coords_t){.tensor = health->tensor, .data = health->data});
  if (stage != NULL && health->own_slots > 0) {
    json_object_set_new(stage, "own_slots",
                        json_integer(health->own_slots)); // the plan's; below, the last step's
  }
  const Ballast__V1__StageStatusResponse *status = health->status;
  if (stage == NULL || status == NULL) {
    return stage;
  }
  json_object_set_new(stage, "age_seconds", json_real((double)health->age_ns * 1e-9));
  json_object_set_new(stage, "phase", json_string(status->phase));
  json_object_set_new(stage, "running_step", json_integer((json_int_t)status->running_step));
  json_object_set_new(stage, "operation", json_string(status->operation));
  json_object_set_new(stage, "operations_done", json_integer(status->operations_done));
  json_object_set_new(stage, "operations_total", json_integer(status->operations_total));
  json_object_set_new(stage, "device", json_string(status->device));
  json_object_set_new(stage, "waits", waits_json(status));
  json_object_set_new(stage, "paths", paths_json(status, grid));
  json_object_set_new(stage, "memory", memory_json(status));
  if (status->state != NULL) {
    json_object_set_new(stage, "pid", json_integer(status->state->process));
    json_object_set_new(stage, "applied", json_integer((json_int_t)status->state->applied));
  }
  if (status->counters != NULL) {
    if (status->state != NULL && status->state->applied > 0) {
      json_object_set_new(stage, "own_slots", json_integer(status->counters->own_slots));
    }
    BL_STAGE_COUNTERS(SHOW, stage, status->counters)
  }
  return stage;
}

// The last rank has the largest coordinates. False: no run has such ranks.
static bool read_grid(const Ballast__V1__DriverStatusResponse *response, bl_grid_t *grid) {
  *grid = (bl_grid_t){.stages = 1, .tensor = 1, .data = 1};
  const size_t count = response->n_stages;
  const Ballast__V1__StageHealth *last = count > 0 ? response->stages[count - 1] : NULL;
  bool good =
      last == NULL || (count <= BL_GRID_RANKS_MAX &&
                       bl_ctl_coords_grid_of((uint32_t)last->stage + 1, last->tensor + 1, last->data + 1, grid));
  for (size_t i = 0; i < count && good; i++) {
    const Ballast__V1__StageHealth *rank = response->stages[i];
    good = rank->stage >= 0 && (uint32_t)rank->stage < grid->stages && rank->tensor < grid->tensor &&
           rank->data < grid->data;
  }
  return good;
}

static json_t *stores_json(const Ballast__V1__DriverStatusResponse *response, const bl_grid_t *grid) {
  json_t *stores = json_array();
  size_t devices = 0;
  for (size_t i = 0; i < response->n_stores; i++) {
    const Ballast__V1__StoreHealth *store = response->stores[i];
    char of[BL_CTL_OWNER_BYTES];
    devices += !store->of_host; // host stores come last
    json_array_append_new(stores, json_pack("{s:I, s:s, s:s, s:b, s:b, s:b, s:I}", "store", (json_int_t)store->store,
                                            "of", bl_ctl_store_owner(grid, devices, i, of), "address", store->address,
                                            "of_host", (int)store->of_host, "reachable", (int)store->reachable,
                                            "draining", (int)store->draining, "pid", (json_int_t)store->process));
  }
  return stores;
}

json_t *bl__driver_status_json(const Ballast__V1__DriverStatusResponse *response) {
  bl_grid_t grid;
  if (!read_grid(response, &grid)) {
    return NULL;
  }
  json_t *stages = json_array();
  for (size_t i = 0; i < response->n_stages; i++) {
    json_array_append_new(stages, stage_json(response->stages[i], &grid));
  }
  return json_pack("{s:s, s:s, s:I, s:I, s:s, s:f, s:s, s:s, s:o, s:o}", "run", response->run, "phase", response->phase,
                   "step", (json_int_t)response->step, "steps", (json_int_t)response->steps, "waiting_for",
                   response->waiting_for, "waiting_seconds", (double)response->waiting_ns * 1e-9, "error",
                   response->error, "page", response->page, "stages", stages, "stores", stores_json(response, &grid));
}
