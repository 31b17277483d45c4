// SPDX-License-Identifier: Apache-2.0
#include "prepared.h"

#include "client/client.h"
#include "datapath/path.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <stdlib.h>

// Maximum wait of a step boundary for stores, which need a few ms if they are available.
#define BOUNDARY_NS (UINT64_C(200) * BL_NS_PER_MS)

void bl_reserving_drop(bl_reserving_t *ahead) {
  bl_store_parking_destroy(ahead->parking);
  *ahead = (bl_reserving_t){0};
}

// Opens sessions, or continues to wait for those being opened. BL_DEADLINE: they are still being opened, and `ahead`
// holds them.
static bl_status_t open_way(const bl_store_parking_options_t *options, const bl_executor_plan_request_t *request,
                            bl_reserving_t *ahead, bl_store_parking_t **parking, bl_error_t *err) {
  const bool waits = request->reservation == 0; // nothing else runs meanwhile
  bl_store_parking_t *opening = ahead->parking;
  bl_status_t status = opening != NULL ? BL_OK : bl_store_parking_create(options, &opening, err);
  if (status == BL_OK) {
    status = bl_store_parking_await(opening, waits ? UINT64_MAX : bl_clock_now_ns() + BOUNDARY_NS, err);
  }
  ahead->parking = status == BL_DEADLINE && !waits ? opening : NULL;
  if (status == BL_OK) {
    *parking = opening;
  } else if (ahead->parking == NULL) {
    bl_store_parking_destroy(opening);
  }
  return status;
}

// Blocks on a GPU leave from it directly if every store can be reached that way, else through memory of the host.
static bl_status_t open_stores(bl_engine_t *engine, bl_store_parking_options_t *options,
                               const bl_executor_plan_request_t *request, bl_reserving_t *ahead,
                               bl_store_parking_t **parking, bl_error_t *err) {
  bool directly = options->path != BL_CLIENT_PATH_SHM && options->path != BL_CLIENT_PATH_TCP;
  options->slots = &engine->slots;
  if (engine->device->host_memory) {
    return open_way(options, request, ahead, parking, err);
  }
  options->device = engine->device;
  if (directly) {
    options->device_memory = true;
    options->nccl = engine->nccl;
    options->nccl_shared_gpu = engine->block_memory.shared_gpu;
    bl_status_t status = open_way(options, request, ahead, parking, err);
    if (status != BL_UNIMPLEMENTED || options->path != BL_CLIENT_PATH_AUTO) {
      return status;
    }
    bl_log(BL_LOG_INFO, "blocks go through memory of the host: %s", err->text);
    bl_error_clear(err);
  }
  bl_status_t status = bl_engine_allocate_slot_twins(engine, err);
  if (status != BL_OK) {
    return status;
  }
  options->device_memory = false;
  options->nccl = NULL;
  options->slots = &engine->slot_twins;
  return open_way(options, request, ahead, parking, err);
}

static bl_status_t reserve(bl_prepared_t *prepared, bl_engine_t *engine, const bl_device_slots_t *device_slots,
                           const bl_executor_plan_request_t *request, bl_reserving_t *ahead,
                           struct bl_client_runtime *runtime, bl_error_t *err) {
  const bl_training_t *training = &engine->training;
  const bl_hosts_t *hosts = &training->hosts;
  const bl_text_list_t *of_devices = &engine->job.services.stores, *of_hosts = &engine->job.services.host_stores;
  uint64_t *evict_bytes = calloc(training->stage_count, sizeof *evict_bytes);
  const char **stores = calloc((size_t)training->stage_count + hosts->count, sizeof *stores);
  if (evict_bytes == NULL || stores == NULL) {
    free(evict_bytes);
    free(stores);
    return bl_error_set(err, BL_EXHAUSTED, "no memory for plan %lu", prepared->plan->version);
  }
  for (uint32_t s = 0; s < training->stage_count; s++) {
    evict_bytes[s] = training->stages[s].evict_bytes;
    // The stores of its plane.
    stores[s] = of_devices->count > 0 ? of_devices->items[bl_engine_rank_of(engine, s)] : NULL;
  }
  if (hosts->count > 0 && of_hosts->count > 0) {
    stores[training->stage_count + hosts->of[engine->coords.stage]] = of_hosts->items[hosts->of_rank[engine->rank]];
  }
  const uint32_t there = request->reservation != 0 ? ahead->steady_slots : engine->slots.count;
  bl_path_t path = BL_PATH_AUTO;
  (void)bl_path_parse(bl_job_data_path_name(bl_job_block_path(&engine->job)), &path);
  bl_store_parking_options_t options = {.job = engine->job.name != NULL ? engine->job.name : "run",
                                        .plan = request->reservation != 0 ? request->reservation : request->version,
                                        .stage = engine->coords.stage,
                                        .rank = engine->rank,
                                        .host_planes = hosts->planes,
                                        .device_slots = device_slots,
                                        .stores = stores,
                                        .evict_bytes = evict_bytes,
                                        .own_slots = prepared->own_slots,
                                        .slots_there = there < prepared->own_slots ? there : prepared->own_slots,
                                        .virtual_stages = training->schedule->virtual_stages,
                                        .micro_batches = bl_engine_units(engine),
                                        .path = (bl_client_path_t)path,
                                        .runtime = runtime};
  if (engine->job.balance.rate.set) {
    options.bytes_per_second = (uint64_t)engine->job.balance.rate.value;
  }
  bl_status_t status = open_stores(engine, &options, request, ahead, &prepared->parking, err);
  free(evict_bytes);
  free(stores);
  const bool lacks_path = engine->job.balance.require != BL_JOB_DATA_PATH_AUTO &&
                          (status == BL_NOT_FOUND || status == BL_UNAVAILABLE || status == BL_IO);
  if (lacks_path) {
    err->status = status = BL_UNAVAILABLE; // the operator must fix it; then the run can continue
    (void)bl_error_prefix(err, "balance.require is %s, and it does not work yet",
                          bl_job_data_path_name(engine->job.balance.require));
  }
  return status;
}

// Takes slots and store slots for a plan that trains.
static bl_status_t take(bl_prepared_t *prepared, bl_engine_t *engine, const bl_executor_plan_request_t *request,
                        bl_reserving_t *ahead, struct bl_client_runtime *runtime, bl_error_t *err) {
  bl_device_slots_t device_slots;
  bl_status_t status = bl_device_slots_init(&device_slots, prepared->plan->schedule, err);
  if (status != BL_OK) {
    return status;
  }
  const uint32_t before = engine->slots.count;
  prepared->own_slots = device_slots.own[engine->coords.stage];
  status = bl_engine_allocate_edges(engine, prepared->plan->stage.edges, err);
  if (status == BL_OK && device_slots.evicted[engine->coords.stage] > 0) {
    status = reserve(prepared, engine, &device_slots, request, ahead, runtime, err);
  }
  if (status == BL_OK) { // stores may also have created communicators
    const bool takes = prepared->own_slots > before && !engine->device->whole_ranges;
    const uint64_t more = takes ? prepared->own_slots - before : 0;
    status = bl_engine_check_memory(engine, more * engine->slot_bytes, err);
  }
  if (status == BL_OK && prepared->own_slots > before) {
    status = bl_engine_resize_slots(engine, prepared->own_slots, err);
  }
  if (status == BL_OK && prepared->parking != NULL) {
    const bool twins = !engine->device->host_memory && !bl_store_parking_seam(prepared->parking)->device_memory;
    status = bl_store_parking_extend(prepared->parking, twins ? &engine->slot_twins : &engine->slots, err);
    bl_error_t ignored;
    if (status != BL_OK && bl_engine_resize_slots(engine, before, &ignored) != BL_OK) {
      // Unexpected: a reduction always works.
      bl_log(BL_LOG_ERROR, "slots of a plan that was refused are kept: %s", ignored.text);
    }
  }
  bl_device_slots_cleanup(&device_slots);
  return status;
}

bl_status_t bl_prepared_create(bl_engine_t *engine, const bl_executor_plan_request_t *request, bl_reserving_t *ahead,
                               struct bl_client_runtime *runtime, bl_prepared_t **prepared, bl_error_t *err) {
  if (request->reservation == 0 || ahead->reservation != request->reservation || ahead->digest != request->digest) {
    const uint32_t steady = ahead->steady_slots;
    bl_reserving_drop(ahead);
    *ahead = (bl_reserving_t){.reservation = request->reservation, .digest = request->digest, .steady_slots = steady};
  }
  bl_prepared_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for plan %lu", request->version);
  }
  bl_executor_plan_request_t whole = *request;
  whole.stage = engine->coords.stage;
  whole.configured = engine->training.schedule;
  whole.slots = engine->slot_count;
  whole.edges = engine->edge_count;
  whole.pages = engine->page_count;
  whole.page_gradients = engine->page_gradient_count;
  whole.hosts = engine->training.hosts.count;
  whole.parks = bl_job_store_count(&engine->job) > 0;
  whole.recomputes = engine->training.layout.recompute == BL_RECOMPUTE_FULL;
  bl_status_t status = bl_executor_plan_create(&whole, &made->plan, err);
  if (status == BL_OK && request->kind == BL_RUN_TRAIN) {
    status = take(made, engine, request, ahead, runtime, err);
  }
  if (status != BL_OK) {
    bl_prepared_destroy(made);
    return status;
  }
  *prepared = made;
  return BL_OK;
}

void bl_prepared_destroy(bl_prepared_t *prepared) {
  if (prepared == NULL) {
    return;
  }
  bl_store_parking_destroy(prepared->parking);
  bl_executor_plan_destroy(prepared->plan);
  free(prepared);
}

void bl_prepared_use(const bl_prepared_t *prepared, bl_engine_t *engine) {
  if (prepared->plan->kind == BL_RUN_TRAIN && engine->slots.count > prepared->own_slots) {
    bl_error_t err;
    if (bl_engine_resize_slots(engine, prepared->own_slots, &err) != BL_OK) {
      bl_log(BL_LOG_ERROR, "slots of the plan before are kept: %s", err.text);
    }
  }
}
