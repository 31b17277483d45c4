// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/inspect/driver_core_wire.h"

#include "policy/policy.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define RETRY_MS       200
#define ACKNOWLEDGE_MS 5000

// ---- events ---------------------------------------------------------------------------------------------------------

static void free_plan(bl_ctl_stage_plan_t *stages, size_t count) {
  for (size_t i = 0; stages != NULL && i < count; i++) {
    free((void *)(uintptr_t)stages[i].layers);
    free((void *)(uintptr_t)stages[i].memory);
  }
  free(stages);
}

// Returns "shm", "tcp", or "mixed" if the neighbours differ.
static const char *path_of(const Ballast__V1__StagePlan *from) {
  const char *path = "";
  for (size_t i = 0; i < from->n_paths; i++) {
    if (path[0] != '\0' && strcmp(path, from->paths[i]->data_path) != 0) {
      return "mixed";
    }
    path = from->paths[i]->data_path;
  }
  return path;
}

// Returns false if memory runs out; *to then holds what was allocated, and free_plan frees it.
static bool convert_stage_plan(const Ballast__V1__StagePlan *from, bl_ctl_stage_plan_t *to) {
  bl_ctl_layers_t *layers = calloc(from->n_chunks + 1, sizeof *layers);
  bl_ctl_memory_t *memory = calloc(from->n_memory + 1, sizeof *memory);
  *to = (bl_ctl_stage_plan_t){.stage = from->stage,
                              .tensor = from->tensor,
                              .data = from->data,
                              .parameters = from->parameters,
                              .own_slots = from->own_slots,
                              .slot_bytes = from->slot_bytes,
                              .layers = layers,
                              .layers_count = from->n_chunks,
                              .memory = memory,
                              .memory_count = from->n_memory,
                              .data_path = path_of(from)};
  if (layers == NULL || memory == NULL) {
    return false;
  }
  for (size_t i = 0; i < from->n_chunks; i++) {
    layers[i] = (bl_ctl_layers_t){from->chunks[i]->first_layer, from->chunks[i]->layer_count};
  }
  for (size_t i = 0; i < from->n_memory; i++) {
    memory[i] = (bl_ctl_memory_t){from->memory[i]->name, from->memory[i]->planned_bytes};
  }
  return true;
}

static void deliver_plan(bl_ctl_driver_t *driver, const Ballast__V1__PlanEvent *from) {
  bl_ctl_stage_plan_t *stages = calloc(from->n_stages + 1, sizeof *stages);
  bool good = stages != NULL;
  for (size_t i = 0; good && i < from->n_stages; i++) {
    good = convert_stage_plan(from->stages[i], &stages[i]);
  }
  if (good) {
    bl_ctl_plan_t plan = {.schedule = from->schedule,
                          .parameters = from->parameters,
                          .train_tokens = from->train_tokens,
                          .validation_tokens = from->validation_tokens,
                          .step_tokens = from->step_tokens,
                          .steps = from->steps,
                          .tensor_ranks = from->tensor_ranks > 0 ? from->tensor_ranks : 1,
                          .replicas = from->replicas > 0 ? from->replicas : 1,
                          .set_aside = from->set_aside,
                          .stages = stages,
                          .stage_count = from->n_stages};
    driver->watcher.plan(&plan, driver->watcher.context);
  }
  free_plan(stages, from->n_stages);
}

static bl_ctl_stage_step_t convert_stage_step(const Ballast__V1__StageStep *from) {
  bl_ctl_stage_step_t to = {.stage = from->stage, .tensor = from->tensor, .data = from->data, .process = from->process};
  if (from->counters != NULL) {
    BL_STAGE_COUNTERS(BL_COUNTER_COPY, &to.counters, from->counters)
  }
  return to;
}

// Returns version 0 for a policy that this program does not know. The steps and the request of the record stay 0.
static bl_policy_record_t read_policy(const Ballast__V1__PolicyRecord *from) {
  bl_policy_record_t record = {0};
  bl_policy_t *policy = &record.policy;
  bl_status_t status =
      from != NULL ? bl_policy_read(from->name, from->cap, from->mode, BL_BALANCE_OVERLAP, policy, NULL) : BL_NOT_FOUND;
  if (status == BL_OK && from->chosen[0] != '\0') {
    status = bl_policy_read_chosen(from->chosen, from->copy, policy, NULL);
  }
  for (size_t i = 0; status == BL_OK && i < from->n_devices; i++) {
    status = bl_policy_add_device(policy, from->devices[i], NULL);
  }
  record.version = status == BL_OK ? from->version : 0;
  return record;
}

static void deliver_step(bl_ctl_driver_t *driver, const Ballast__V1__StepEvent *from) {
  if (from->step <= driver->last_step) {
    return; // replayed after a reconnect
  }
  bl_ctl_stage_step_t *stages = calloc(from->n_stages + 1, sizeof *stages);
  bl_ctl_store_step_t *stores = calloc(from->n_stores + 1, sizeof *stores);
  if (stages == NULL || stores == NULL) {
    free(stages);
    free(stores);
    return;
  }
  for (size_t i = 0; i < from->n_stores; i++) {
    const Ballast__V1__StoreStep *store = from->stores[i];
    stores[i] = (bl_ctl_store_step_t){.store = store->store,
                                      .device = store->device,
                                      .of_host = store->of_host,
                                      .tensor = store->tensor,
                                      .data = store->data,
                                      .process = store->process,
                                      .lent_slots = store->lent_slots,
                                      .peak_leased = store->peak_leased};
  }
  for (size_t i = 0; i < from->n_stages; i++) {
    stages[i] = convert_stage_step(from->stages[i]);
  }
  driver->last_step = from->step;
  bl_ctl_step_t step = {.step = from->step,
                        .loss = from->loss,
                        .grad_norm = from->grad_norm,
                        .tokens = from->tokens,
                        .seconds = from->seconds,
                        .ran_under = read_policy(from->ran_under),
                        .stages = stages,
                        .stage_count = from->n_stages,
                        .stores = stores,
                        .store_count = from->n_stores};
  driver->watcher.step(&step, driver->watcher.context);
  free(stages);
  free(stores);
}

static void deliver_validation(bl_ctl_driver_t *driver, const Ballast__V1__ValidationEvent *from) {
  if (from->step <= driver->last_validation) {
    return;
  }
  driver->last_validation = from->step;
  bl_ctl_validation_t validation = {from->step, from->loss, from->tokens};
  driver->watcher.validation(&validation, driver->watcher.context);
}

static void deliver_checkpoint(bl_ctl_driver_t *driver, const Ballast__V1__CheckpointEvent *from) {
  bl_ctl_checkpoint_t checkpoint = {
      .step = from->step, .folder = from->folder, .bytes = from->bytes, .error = from->error};
  driver->watcher.checkpoint(&checkpoint, driver->watcher.context);
}

static void deliver_phase(bl_ctl_driver_t *driver, const Ballast__V1__PhaseEvent *from) {
  bl_ctl_phase_t phase = {from->phase, from->error, from->exit_code};
  driver->watcher.phase(&phase, driver->watcher.context);
}

// ---- the record -----------------------------------------------------------------------------------------------------

static void acknowledge(bl_ctl_driver_t *driver);

static void acknowledged(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  (void)output;
  bl_ctl_driver_t *driver = context;
  driver->acknowledging = false;
  if (err->status != BL_OK) {
    driver->acknowledged = 0; // the notification may have been meant for a driver that has died
  }
  if (!driver->closing && driver->away_since_ms == 0) {
    acknowledge(driver);
  }
}

// Reports to the driver how far the record is written; its next commit waits for that.
static void acknowledge(bl_ctl_driver_t *driver) {
  if (driver->record == 0 || driver->acknowledging || driver->acknowledged == driver->written) {
    return;
  }
  Ballast__V1__AcknowledgeRequest request = BALLAST__V1__ACKNOWLEDGE_REQUEST__INIT;
  request.record = driver->record;
  request.revision = driver->written;
  bl_error_t err;
  driver->acknowledged = driver->written;
  driver->acknowledging = bl_rpc_channel_call(driver->channel, &ballast__v1__driver__descriptor, "Acknowledge",
                                              &request.base, ACKNOWLEDGE_MS, acknowledged, driver, &err) == BL_OK;
}

// ---- the stream -----------------------------------------------------------------------------------------------------

static void watched(const ProtobufCMessage *output, void *context) {
  bl_ctl_driver_t *driver = context;
  const Ballast__V1__WatchResponse *response = (const Ballast__V1__WatchResponse *)output;
  driver->away_since_ms = 0;
  switch (response->event_case) {
  case BALLAST__V1__WATCH_RESPONSE__EVENT_PLAN:
    deliver_plan(driver, response->plan);
    break;
  case BALLAST__V1__WATCH_RESPONSE__EVENT_STEP:
    deliver_step(driver, response->step);
    break;
  case BALLAST__V1__WATCH_RESPONSE__EVENT_VALIDATION:
    deliver_validation(driver, response->validation);
    break;
  case BALLAST__V1__WATCH_RESPONSE__EVENT_CHECKPOINT:
    deliver_checkpoint(driver, response->checkpoint);
    break;
  case BALLAST__V1__WATCH_RESPONSE__EVENT_PHASE:
    deliver_phase(driver, response->phase);
    break;
  default:
    break;
  }
  driver->written = response->revision;
  acknowledge(driver);
}

static void watch_ended(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  (void)output;
  bl_ctl_driver_t *driver = context;
  if (driver->closing) {
    return;
  }
  uint64_t now_ms = bl_loop_now_ms(bl_rpc_loop(driver->rpc));
  if (driver->away_since_ms == 0) {
    driver->away_since_ms = now_ms;
  }
  bool away_too_long = now_ms - driver->away_since_ms > BL_CTL_WATCH_TIMEOUT_MS;
  if (err->status != BL_OK && (away_too_long || !bl_status_retryable(err->status))) {
    driver->watcher.lost(err, driver->watcher.context);
    return;
  }
  bl_timer_start(driver->retry, RETRY_MS, 0);
}

// Requests all events from the start, because a restarted driver numbers its events from the start. Steps that were
// seen already are left out here.
static bl_status_t start_watch(bl_ctl_driver_t *driver, bl_error_t *err) {
  Ballast__V1__WatchRequest request = BALLAST__V1__WATCH_REQUEST__INIT;
  request.record = driver->record;
  driver->written = driver->acknowledged = 0;
  return bl_rpc_channel_stream(driver->channel, &ballast__v1__driver__descriptor, "Watch", &request.base,
                               BL_RPC_NO_DEADLINE, watched, watch_ended, driver, err);
}

void bl__driver_watch_retry(bl_timer_t *timer, void *context) {
  (void)timer;
  bl_ctl_driver_t *driver = context;
  bl_error_t err;
  if (start_watch(driver, &err) != BL_OK) {
    driver->watcher.lost(&err, driver->watcher.context);
  }
}

bl_status_t bl_ctl_driver_watch(bl_ctl_driver_t *driver, const bl_ctl_watcher_t *watcher, bl_error_t *err) {
  driver->watcher = *watcher;
  if (watcher->keeps_record && getrandom(&driver->record, sizeof driver->record, 0) != (ssize_t)sizeof driver->record) {
    return bl_error_set(err, BL_INTERNAL, "the system has no random numbers");
  }
  return start_watch(driver, err);
}
