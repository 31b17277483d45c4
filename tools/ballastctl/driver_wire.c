// SPDX-License-Identifier: Apache-2.0
#include "driver_wire.h"

#include "job/policy.h"
#include "loop/timer.h"
#include "rpc/channel.h"

#include "ballast/v1/driver.pb-c.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define RETRY_MS       200
#define ACKNOWLEDGE_MS 5000

struct bl_ctl_driver {
  bl_rpc_t *rpc;
  bl_rpc_channel_t *channel;
  bl_ctl_watcher_t watcher;
  bl_timer_t *retry;
  uint64_t away_since_ms; // 0 while the watch is connected
  uint64_t last_step, last_validation;
  uint64_t record;       // our name as the one that keeps the run's record; 0: we keep none
  uint64_t written;      // revision up to which the record is written, as this driver counts
  uint64_t acknowledged; // of that, what the driver has been told
  bool acknowledging, closing;
};

// One call that is under way, with the callbacks of whoever asked.
typedef struct call {
  bl_ctl_done_fn done;
  bl_ctl_text_fn text;
  bl_ctl_trace_fn trace;
  bl_ctl_json_fn json;
  void *context;
} call_t;

static const ProtobufCServiceDescriptor *const service = &ballast__v1__driver__descriptor;

// ---- watch ----

static void free_plan(bl_ctl_stage_plan_t *stages, size_t count) {
  for (size_t i = 0; stages != NULL && i < count; i++) {
    free((void *)(uintptr_t)stages[i].layers);
    free((void *)(uintptr_t)stages[i].memory);
  }
  free(stages);
}

// "shm", "tcp", or "mixed" where the neighbours differ.
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

// False when memory runs out; what was made is in *to and freed by free_plan.
static bool convert_stage_plan(const Ballast__V1__StagePlan *from, bl_ctl_stage_plan_t *to) {
  bl_ctl_layers_t *layers = calloc(from->n_chunks + 1, sizeof *layers);
  bl_ctl_memory_t *memory = calloc(from->n_memory + 1, sizeof *memory);
  *to = (bl_ctl_stage_plan_t){.stage = from->stage,
                              .address = from->address,
                              .process = from->process,
                              .parameters = from->parameters,
                              .own_slots = from->own_slots,
                              .peak_slots = from->peak_slots,
                              .slot_bytes = from->slot_bytes,
                              .instruction_set = from->instruction_set,
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
                          .policy = from->policy,
                          .parameters = from->parameters,
                          .train_tokens = from->train_tokens,
                          .validation_tokens = from->validation_tokens,
                          .step_tokens = from->step_tokens,
                          .steps = from->steps,
                          .stages = stages,
                          .stage_count = from->n_stages};
    driver->watcher.plan(&plan, driver->watcher.context);
  }
  free_plan(stages, from->n_stages);
}

static bl_ctl_stage_step_t convert_stage_step(const Ballast__V1__StageStep *from) {
  bl_ctl_stage_step_t to = {.stage = from->stage, .process = from->process};
  const Ballast__V1__StageCounters *counters = from->counters;
  if (counters != NULL) {
    to.own_slots = counters->own_slots;
    to.peak_slots = counters->peak_slots;
    to.peak_slot_bytes = counters->peak_slot_bytes;
    to.evicted = counters->evicted;
    to.loaded = counters->loaded;
    to.lost = counters->lost;
    to.dropped = counters->dropped;
    to.recomputed = counters->recomputed;
    to.stall_seconds = (double)counters->stall_ns * 1e-9;
    to.busy_seconds = (double)counters->busy_ns * 1e-9;
    to.moved_bytes = counters->moved_bytes;
    to.moved_seconds = (double)counters->moved_ns * 1e-9;
  }
  return to;
}

// False: it is none that this program knows.
static bool read_policy(const Ballast__V1__PolicyRecord *from, bl_policy_t *policy) {
  bl_status_t status =
      from != NULL ? bl_policy_read(from->name, from->cap, from->mode, BL_BALANCE_OVERLAP, policy, NULL) : BL_NOT_FOUND;
  if (status == BL_OK && from->chosen[0] != '\0') {
    status = bl_policy_read_chosen(from->chosen, from->copy, policy, NULL);
  }
  for (size_t i = 0; status == BL_OK && i < from->n_devices; i++) {
    status = bl_policy_add_device(policy, from->devices[i], NULL);
  }
  return status == BL_OK;
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
    stores[i] =
        (bl_ctl_store_step_t){store->store, store->device, store->process, store->lent_slots, store->peak_leased};
  }
  for (size_t i = 0; i < from->n_stages; i++) {
    stages[i] = convert_stage_step(from->stages[i]);
  }
  driver->last_step = from->step;
  bl_policy_t policy;
  bl_ctl_step_t step = {.step = from->step,
                        .loss = from->loss,
                        .grad_norm = from->grad_norm,
                        .tokens = from->tokens,
                        .seconds = from->seconds,
                        .policy = from->policy,
                        .policy_version = from->policy_version,
                        .ran_under = read_policy(from->ran_under, &policy) ? &policy : NULL,
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

static void acknowledge(bl_ctl_driver_t *driver);

static void acknowledged(bl_rpc_request_t *request, const ProtobufCMessage *output, const bl_error_t *err,
                         void *context) {
  (void)request;
  (void)output;
  bl_ctl_driver_t *driver = context;
  driver->acknowledging = false;
  if (err->status != BL_OK) {
    driver->acknowledged = 0; // it may have been meant for a driver that has gone
  }
  if (!driver->closing && driver->away_since_ms == 0) {
    acknowledge(driver);
  }
}

// Tells the driver how far the record is written: its next commit waits for that.
static void acknowledge(bl_ctl_driver_t *driver) {
  if (driver->record == 0 || driver->acknowledging || driver->acknowledged == driver->written) {
    return;
  }
  Ballast__V1__AcknowledgeRequest request = BALLAST__V1__ACKNOWLEDGE_REQUEST__INIT;
  request.record = driver->record;
  request.revision = driver->written;
  bl_error_t err;
  driver->acknowledged = driver->written;
  driver->acknowledging = bl_rpc_channel_call(driver->channel, service, "Acknowledge", &request.base, ACKNOWLEDGE_MS,
                                              acknowledged, driver, NULL, &err) == BL_OK;
}

static void watched(bl_rpc_request_t *request, const ProtobufCMessage *output, void *context) {
  (void)request;
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
  case BALLAST__V1__WATCH_RESPONSE__EVENT_CHECKPOINT: {
    const Ballast__V1__CheckpointEvent *from = response->checkpoint;
    bl_ctl_checkpoint_t checkpoint = {.step = from->step,
                                      .folder = from->folder,
                                      .bytes = from->bytes,
                                      .seconds = from->seconds,
                                      .stopped_seconds = from->stopped_seconds,
                                      .error = from->error};
    driver->watcher.checkpoint(&checkpoint, driver->watcher.context);
    break;
  }
  case BALLAST__V1__WATCH_RESPONSE__EVENT_PHASE: {
    bl_ctl_phase_t phase = {response->phase->phase, response->phase->error, response->phase->exit_code};
    driver->watcher.phase(&phase, driver->watcher.context);
    break;
  }
  default:
    break;
  }
  driver->written = response->revision;
  acknowledge(driver);
}

static void watch_ended(bl_rpc_request_t *request, const ProtobufCMessage *output, const bl_error_t *err,
                        void *context) {
  (void)request;
  (void)output;
  bl_ctl_driver_t *driver = context;
  if (driver->closing) {
    return;
  }
  uint64_t now_ms = bl_loop_now_ms(bl_rpc_loop(driver->rpc));
  if (driver->away_since_ms == 0) {
    driver->away_since_ms = now_ms;
  }
  bool away_too_long = now_ms - driver->away_since_ms > BL_CTL_WATCH_PATIENCE_MS;
  if (err->status != BL_OK && (away_too_long || !bl_status_retryable(err->status))) {
    driver->watcher.lost(err, driver->watcher.context);
    return;
  }
  bl_timer_start(driver->retry, RETRY_MS, 0);
}

// Asks for everything: a driver that was started again counts its events anew, and steps seen are left out here.
static bl_status_t start_watch(bl_ctl_driver_t *driver, bl_error_t *err) {
  Ballast__V1__WatchRequest request = BALLAST__V1__WATCH_REQUEST__INIT;
  request.record = driver->record;
  driver->written = driver->acknowledged = 0;
  return bl_rpc_channel_stream(driver->channel, service, "Watch", &request.base, BL_RPC_NO_DEADLINE, watched,
                               watch_ended, driver, NULL, err);
}

static void retry_watch(bl_timer_t *timer, void *context) {
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

// ---- life ----

bl_status_t bl_ctl_driver_create(bl_rpc_t *rpc, const char *address, bl_ctl_driver_t **result, bl_error_t *err) {
  bl_ctl_driver_t *driver = calloc(1, sizeof *driver);
  if (driver == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  driver->rpc = rpc;
  bl_status_t status = bl_rpc_channel_create(rpc, address, &(bl_rpc_channel_options_t){.server_roles = BL_DRIVERS},
                                             &driver->channel, err);
  if (status != BL_OK) {
    goto free_driver;
  }
  status = bl_timer_create(bl_rpc_loop(rpc), retry_watch, driver, &driver->retry, err);
  if (status != BL_OK) {
    goto destroy_channel;
  }
  *result = driver;
  return BL_OK;

destroy_channel:
  bl_rpc_channel_destroy(driver->channel);
free_driver:
  free(driver);
  return status;
}

void bl_ctl_driver_destroy(bl_ctl_driver_t *driver) {
  if (driver == NULL) {
    return;
  }
  driver->closing = true;
  bl_rpc_channel_destroy(driver->channel);
  bl_timer_destroy(driver->retry);
  free(driver);
}

// ---- calls ----

static call_t *call_create(call_t values, bl_error_t *err) {
  call_t *call = malloc(sizeof *call);
  if (call == NULL) {
    bl_error_set(err, BL_EXHAUSTED, "no memory");
    return NULL;
  }
  *call = values;
  return call;
}

static void call_done(bl_rpc_request_t *request, const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  (void)request;
  (void)output;
  call_t *call = context;
  call->done(err, call->context);
  free(call);
}

bl_status_t bl_ctl_driver_stop(bl_ctl_driver_t *driver, uint64_t deadline_ms, bl_ctl_done_fn done, void *context,
                               bl_error_t *err) {
  call_t *call = call_create((call_t){.done = done, .context = context}, err);
  if (call == NULL) {
    return BL_EXHAUSTED;
  }
  Ballast__V1__DriverStopRequest request = BALLAST__V1__DRIVER_STOP_REQUEST__INIT;
  bl_status_t status =
      bl_rpc_channel_call(driver->channel, service, "Stop", &request.base, deadline_ms, call_done, call, NULL, err);
  if (status != BL_OK) {
    free(call);
  }
  return status;
}

static void generated(bl_rpc_request_t *request, const ProtobufCMessage *output, void *context) {
  (void)request;
  const call_t *call = context;
  const Ballast__V1__GenerateResponse *response = (const Ballast__V1__GenerateResponse *)output;
  if (response->text.len > 0) {
    call->text(response->text.data, response->text.len, call->context);
    return;
  }
  char number[16]; // no tokenizer here: tokens that are not bytes are shown as numbers
  int length = snprintf(number, sizeof number, "%u ", response->token);
  call->text((const uint8_t *)number, (size_t)length, call->context);
}

bl_status_t bl_ctl_driver_generate(bl_ctl_driver_t *driver, uint32_t tokens, uint64_t seed, double temperature,
                                   uint64_t deadline_ms, bl_ctl_text_fn text, bl_ctl_done_fn done, void *context,
                                   bl_error_t *err) {
  call_t *call = call_create((call_t){.done = done, .text = text, .context = context}, err);
  if (call == NULL) {
    return BL_EXHAUSTED;
  }
  Ballast__V1__GenerateRequest request = BALLAST__V1__GENERATE_REQUEST__INIT;
  request.tokens = tokens;
  request.seed = seed;
  request.temperature = temperature;
  bl_status_t status = bl_rpc_channel_stream(driver->channel, service, "Generate", &request.base, deadline_ms,
                                             generated, call_done, call, NULL, err);
  if (status != BL_OK) {
    free(call);
  }
  return status;
}

static void traced(bl_rpc_request_t *request, const ProtobufCMessage *output, void *context) {
  (void)request;
  const call_t *call = context;
  const Ballast__V1__DriverTraceResponse *response = (const Ballast__V1__DriverTraceResponse *)output;
  for (size_t i = 0; i < response->n_events; i++) {
    const Ballast__V1__TraceEvent *from = response->events[i];
    bl_ctl_trace_event_t event = {.stage = response->stage,
                                  .name = from->name,
                                  .wait = from->wait,
                                  .start_ns = from->start_ns,
                                  .end_ns = from->end_ns,
                                  .micro_batch = from->micro_batch,
                                  .slots_in_use = from->slots_in_use};
    call->trace(&event, call->context);
  }
}

bl_status_t bl_ctl_driver_trace(bl_ctl_driver_t *driver, uint64_t deadline_ms, bl_ctl_trace_fn event,
                                bl_ctl_done_fn done, void *context, bl_error_t *err) {
  call_t *call = call_create((call_t){.done = done, .trace = event, .context = context}, err);
  if (call == NULL) {
    return BL_EXHAUSTED;
  }
  Ballast__V1__DriverTraceRequest request = BALLAST__V1__DRIVER_TRACE_REQUEST__INIT;
  bl_status_t status = bl_rpc_channel_stream(driver->channel, service, "Trace", &request.base, deadline_ms, traced,
                                             call_done, call, NULL, err);
  if (status != BL_OK) {
    free(call);
  }
  return status;
}

// ---- status ----

static json_t *waits_json(const Ballast__V1__StageStatusResponse *status) {
  json_t *waits = json_array();
  for (size_t i = 0; i < status->n_waits; i++) {
    const Ballast__V1__Wait *wait = status->waits[i];
    double seconds = status->now_ns > wait->since_ns ? (double)(status->now_ns - wait->since_ns) * 1e-9 : 0;
    json_t *row = json_pack("{s:s, s:f, s:i, s:i}", "what", wait->what, "seconds", seconds, "peer", wait->peer,
                            "micro_batch", wait->micro_batch);
    if (wait->peer < 0 && wait->at_store >= 0) {
      json_object_set_new(row, "store", json_integer(wait->at_store));
      json_object_set_new(row, "chunk", json_integer(wait->chunk));
      if (wait->lease != 0) { // as `leases get` takes it
        json_object_set_new(row, "lease", json_sprintf("%d/%" PRIu64, wait->at_store, wait->lease));
      }
    }
    json_array_append_new(waits, row);
  }
  return waits;
}

static json_t *paths_json(const Ballast__V1__StageStatusResponse *status) {
  json_t *paths = json_array();
  for (size_t i = 0; i < status->n_paths; i++) {
    const Ballast__V1__PeerPath *path = status->paths[i];
    json_array_append_new(
        paths, json_pack("{s:i, s:s, s:s}", "stage", path->stage, "path", path->data_path, "reason", path->reason));
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

static json_t *stage_json(const Ballast__V1__StageHealth *health) {
  json_t *stage =
      json_pack("{s:i, s:s, s:b}", "stage", health->stage, "address", health->address, "reachable", health->reachable);
  if (stage != NULL && health->own_slots > 0) {
    json_object_set_new(stage, "own_slots", json_integer(health->own_slots)); // the plan's; below, the last step's
  }
  const Ballast__V1__StageStatusResponse *status = health->status;
  if (stage == NULL || status == NULL) {
    return stage;
  }
  json_object_set_new(stage, "phase", json_string(status->phase));
  json_object_set_new(stage, "running_step", json_integer((json_int_t)status->running_step));
  json_object_set_new(stage, "operation", json_string(status->operation));
  json_object_set_new(stage, "operations_done", json_integer(status->operations_done));
  json_object_set_new(stage, "operations_total", json_integer(status->operations_total));
  json_object_set_new(stage, "device", json_string(status->device));
  json_object_set_new(stage, "waits", waits_json(status));
  json_object_set_new(stage, "paths", paths_json(status));
  json_object_set_new(stage, "memory", memory_json(status));
  if (status->state != NULL) {
    json_object_set_new(stage, "pid", json_integer(status->state->process));
    json_object_set_new(stage, "applied", json_integer((json_int_t)status->state->applied));
  }
  if (status->counters != NULL) {
    if (status->state != NULL && status->state->applied > 0) {
      json_object_set_new(stage, "own_slots", json_integer(status->counters->own_slots));
    }
    json_object_set_new(stage, "peak_slots", json_integer(status->counters->peak_slots));
  }
  return stage;
}

static json_t *status_json(const Ballast__V1__DriverStatusResponse *response) {
  json_t *stages = json_array();
  for (size_t i = 0; i < response->n_stages; i++) {
    json_array_append_new(stages, stage_json(response->stages[i]));
  }
  json_t *stores = json_array();
  for (size_t i = 0; i < response->n_stores; i++) {
    const Ballast__V1__StoreHealth *store = response->stores[i];
    json_array_append_new(stores, json_pack("{s:I, s:s, s:b, s:b, s:I}", "store", (json_int_t)store->store, "address",
                                            store->address, "reachable", (int)store->reachable, "draining",
                                            (int)store->draining, "pid", (json_int_t)store->process));
  }
  return json_pack("{s:s, s:s, s:I, s:I, s:s, s:f, s:s, s:s, s:o, s:o}", "run", response->run, "phase", response->phase,
                   "step", (json_int_t)response->step, "steps", (json_int_t)response->steps, "waiting_for",
                   response->waiting_for, "waiting_seconds", (double)response->waiting_ns * 1e-9, "error",
                   response->error, "page", response->page, "stages", stages, "stores", stores);
}

static void status_done(bl_rpc_request_t *request, const ProtobufCMessage *output, const bl_error_t *err,
                        void *context) {
  (void)request;
  call_t *call = context;
  json_t *value = output != NULL ? status_json((const Ballast__V1__DriverStatusResponse *)output) : NULL;
  bl_error_t failure = *err;
  if (output != NULL && value == NULL) {
    bl_error_set(&failure, BL_INTERNAL, "the driver's status holds text that is not UTF-8");
  }
  call->json(value, &failure, call->context);
  json_decref(value);
  free(call);
}

bl_status_t bl_ctl_driver_status(bl_ctl_driver_t *driver, uint64_t deadline_ms, bl_ctl_json_fn done, void *context,
                                 bl_error_t *err) {
  call_t *call = call_create((call_t){.json = done, .context = context}, err);
  if (call == NULL) {
    return BL_EXHAUSTED;
  }
  Ballast__V1__DriverStatusRequest request = BALLAST__V1__DRIVER_STATUS_REQUEST__INIT;
  bl_status_t status =
      bl_rpc_channel_call(driver->channel, service, "Status", &request.base, deadline_ms, status_done, call, NULL, err);
  if (status != BL_OK) {
    free(call);
  }
  return status;
}
