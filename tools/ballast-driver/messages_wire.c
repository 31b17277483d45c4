// SPDX-License-Identifier: Apache-2.0
#include "messages_wire.h"

#include "policy_records_wire.h"

#include <stdlib.h>

// All parts of one message are cut from one block.
typedef struct block {
  char *bytes;
  size_t size, used;
} block_t;

static void *take(block_t *block, size_t size_bytes) {
  size_t aligned = (size_bytes + 15) / 16 * 16;
  if (block->used + aligned > block->size) {
    abort(); // the size below is wrong
  }
  void *piece = block->bytes + block->used;
  block->used += aligned;
  return piece;
}

// Allocates a block for any event of `stages` stages and `stores` stores with `items` chunks, memory tags and paths
// together.
static block_t make_block(size_t stages, size_t stores, size_t items) {
  size_t part =
      sizeof(Ballast__V1__StagePlan) + sizeof(Ballast__V1__StageStep) + sizeof(Ballast__V1__StageCounters) + 128;
  size_t store = sizeof(Ballast__V1__StoreStep) + 32;
  size_t item = sizeof(Ballast__V1__ChunkLayers) + sizeof(Ballast__V1__MemoryTag) + sizeof(Ballast__V1__PeerPath) + 64;
  block_t block = {.size = sizeof(Ballast__V1__WatchResponse) + sizeof(Ballast__V1__PlanEvent) +
                           sizeof(Ballast__V1__StepEvent) + sizeof(bl_policy_wire_t) + 256 + stages * part +
                           stores * store + items * item};
  block.bytes = calloc(1, block.size);
  return block;
}

static void make_step(block_t *block, const bl_grid_t *grid, const bl_step_event_t *step,
                      Ballast__V1__WatchResponse *message) {
  Ballast__V1__StepEvent *event = take(block, sizeof *event);
  *event = (Ballast__V1__StepEvent)BALLAST__V1__STEP_EVENT__INIT;
  event->step = step->step;
  event->loss = step->loss;
  event->grad_norm = step->grad_norm;
  event->tokens = step->tokens;
  event->seconds = step->seconds;
  event->policy_version = step->ran_under.version;
  if (step->ran_under.version > 0) {
    bl_policy_wire_t *wire = take(block, sizeof *wire);
    bl_policy_to_wire(&step->ran_under, wire);
    event->ran_under = &wire->message;
    event->policy = wire->message.name;
  }
  event->n_stages = step->stage_count;
  event->stages = take(block, step->stage_count * sizeof(Ballast__V1__StageStep *));
  for (size_t i = 0; i < step->stage_count; i++) {
    Ballast__V1__StageCounters *counters = take(block, sizeof *counters);
    *counters = (Ballast__V1__StageCounters)BALLAST__V1__STAGE_COUNTERS__INIT;
    BL_STAGE_COUNTERS(BL_COUNTER_COPY, counters, &step->stages[i].counters)
    Ballast__V1__StageStep *stage = take(block, sizeof *stage);
    *stage = (Ballast__V1__StageStep)BALLAST__V1__STAGE_STEP__INIT;
    const bl_coords_t coords = bl_grid_coords(grid, (uint32_t)i);
    stage->stage = (int32_t)coords.stage;
    stage->data = coords.data;
    stage->tensor = coords.tensor;
    stage->process = step->stages[i].process;
    stage->counters = counters;
    event->stages[i] = stage;
  }
  event->stores = take(block, step->store_count * sizeof(Ballast__V1__StoreStep *));
  for (size_t i = 0; i < step->store_count; i++) {
    Ballast__V1__StoreStep *store = take(block, sizeof *store);
    *store = (Ballast__V1__StoreStep)BALLAST__V1__STORE_STEP__INIT;
    store->store = (uint32_t)i;
    store->of_host = step->stores[i].of_host;
    store->device = step->stores[i].device;
    if (!store->of_host) {
      const bl_coords_t coords = bl_grid_coords(grid, step->stores[i].device);
      store->device = coords.stage;
      store->data = coords.data;
      store->tensor = coords.tensor;
    }
    store->process = step->stores[i].process;
    store->lent_slots = step->stores[i].lent_slots;
    store->peak_leased = step->stores[i].peak_leased;
    event->stores[event->n_stores++] = store;
  }
  message->event_case = BALLAST__V1__WATCH_RESPONSE__EVENT_STEP;
  message->step = event;
}

// Returns the elements of a parameter that a tensor rank holds.
static uint64_t elements_of(const bl_training_t *training, uint32_t index, uint32_t tensor) {
  const bl_parameter_t parameter = bl_parameter_get(&training->model, index);
  const bl_grid_t *grid = &training->grid;
  const uint32_t here = grid->tensor_parts / grid->tensor;
  uint64_t elements = 0;
  if (grid->tensor == 1 || !bl_layer_parts_cut(parameter.role)) {
    return parameter.elements;
  }
  for (uint32_t part = tensor * here; part < (tensor + 1) * here; part++) {
    const bl_slice_t slice = bl_layer_part_slice(&training->model, &parameter, grid->tensor_parts, part);
    elements += bl_slice_elements(&slice);
  }
  return elements;
}

static void make_chunks(block_t *block, const bl_training_t *training, bl_coords_t coords,
                        Ballast__V1__StagePlan *plan) {
  const bl_schedule_t *schedule = training->schedule;
  plan->chunks = take(block, schedule->virtual_stages * sizeof(Ballast__V1__ChunkLayers *));
  for (uint32_t i = 0; i < schedule->virtual_stages; i++) {
    if (schedule->stage_of[i] != coords.stage) {
      continue;
    }
    const bl_chunk_span_t *span = &training->partition.spans[i];
    Ballast__V1__ChunkLayers *chunk = take(block, sizeof *chunk);
    *chunk = (Ballast__V1__ChunkLayers)BALLAST__V1__CHUNK_LAYERS__INIT;
    chunk->virtual_stage = (int32_t)i;
    chunk->first_layer = (int32_t)span->first_layer;
    chunk->layer_count = (int32_t)span->layer_count;
    plan->chunks[plan->n_chunks++] = chunk;
    for (uint32_t k = 0; k < bl_chunk_span_parameter_count(&training->model, *span); k++) {
      uint32_t index = bl_chunk_span_parameter(&training->model, *span, k);
      if (bl_chunk_span_owns(&training->model, *span, index)) {
        plan->parameters += elements_of(training, index, coords.tensor);
      }
    }
  }
}

static Ballast__V1__StagePlan *make_stage_plan(block_t *block, const bl_driver_t *driver, size_t rank) {
  const bl_training_t *training = bl_driver_training(driver);
  const bl_coords_t coords = bl_grid_coords(&training->grid, (uint32_t)rank);
  const uint32_t s = coords.stage;
  bl_stage_view_t view = bl_driver_stage(driver, rank);
  Ballast__V1__StagePlan *plan = take(block, sizeof *plan);
  *plan = (Ballast__V1__StagePlan)BALLAST__V1__STAGE_PLAN__INIT;
  plan->stage = (int32_t)s;
  plan->data = coords.data;
  plan->tensor = coords.tensor;
  plan->address = (char *)view.address;
  plan->process = view.process;
  make_chunks(block, training, coords, plan);
  plan->memory = take(block, view.place->memory_count * sizeof(Ballast__V1__MemoryTag *));
  for (size_t i = 0; i < view.place->memory_count; i++) {
    Ballast__V1__MemoryTag *tag = take(block, sizeof *tag);
    *tag = (Ballast__V1__MemoryTag)BALLAST__V1__MEMORY_TAG__INIT;
    tag->name = (char *)view.place->memory[i].name;
    tag->planned_bytes = view.place->memory[i].planned_bytes;
    plan->memory[plan->n_memory++] = tag;
  }
  const bl_device_slots_t *device_slots = bl_driver_policies(driver).device_slots;
  plan->own_slots = s < device_slots->devices ? device_slots->own[s] : training->stages[s].slots;
  plan->slot_bytes = view.place->slot_bytes;
  plan->paths = take(block, view.path_count * sizeof(Ballast__V1__PeerPath *));
  for (size_t i = 0; i < view.path_count; i++) {
    Ballast__V1__PeerPath *path = take(block, sizeof *path);
    *path = (Ballast__V1__PeerPath)BALLAST__V1__PEER_PATH__INIT;
    path->stage = view.paths[i].stage;
    path->data_path = (char *)view.paths[i].data_path;
    path->reason = (char *)view.paths[i].reason;
    plan->paths[plan->n_paths++] = path;
  }
  return plan;
}

static void make_plan(block_t *block, const bl_driver_t *driver, Ballast__V1__WatchResponse *message) {
  const bl_training_t *training = bl_driver_training(driver);
  const bl_job_t *job = bl_driver_job(driver);
  Ballast__V1__PlanEvent *event = take(block, sizeof *event);
  *event = (Ballast__V1__PlanEvent)BALLAST__V1__PLAN_EVENT__INIT;
  event->version = bl_driver_policies(driver).plan_version;
  event->schedule = training->schedule->name;
  event->policy = (char *)bl_policy_kind_name(job->balance.policy);
  event->parameters = bl_model_parameter_elements(&training->model);
  event->train_tokens = training->dataset.train.count;
  event->validation_tokens = training->dataset.validation.count;
  event->step_tokens = (uint64_t)job->train.micro_batch * (uint64_t)job->train.micro_batches * training->model.seq;
  event->steps = (uint64_t)job->train.steps;
  event->replicas = training->grid.data;
  event->tensor_ranks = training->grid.tensor;
  event->set_aside = (char *)bl_driver_set_aside(driver);
  event->n_stages = bl_driver_stage_count(driver);
  event->stages = take(block, event->n_stages * sizeof(Ballast__V1__StagePlan *));
  for (size_t i = 0; i < event->n_stages; i++) {
    event->stages[i] = make_stage_plan(block, driver, i);
  }
  message->event_case = BALLAST__V1__WATCH_RESPONSE__EVENT_PLAN;
  message->plan = event;
}

static size_t count_items(const bl_driver_t *driver) {
  size_t stages = bl_driver_stage_count(driver);
  size_t items = stages * bl_driver_training(driver)->schedule->virtual_stages;
  for (size_t i = 0; i < stages; i++) {
    bl_stage_view_t view = bl_driver_stage(driver, i);
    items += view.path_count + view.place->memory_count;
  }
  return items;
}

Ballast__V1__WatchResponse *bl_watch_message_create(const bl_driver_t *driver, const bl_event_t *event) {
  size_t stages = bl_driver_stage_count(driver);
  block_t block = make_block(stages, event->kind == BL_EVENT_STEP ? event->step.store_count : 0,
                             event->kind == BL_EVENT_PLAN ? count_items(driver) : 0);
  if (block.bytes == NULL) {
    return NULL;
  }
  Ballast__V1__WatchResponse *message = take(&block, sizeof *message); // first: destroying it frees the block
  *message = (Ballast__V1__WatchResponse)BALLAST__V1__WATCH_RESPONSE__INIT;
  message->revision = event->revision;
  switch (event->kind) {
  case BL_EVENT_STEP:
    make_step(&block, &bl_driver_training(driver)->grid, &event->step, message);
    break;
  case BL_EVENT_VALIDATION:
    message->event_case = BALLAST__V1__WATCH_RESPONSE__EVENT_VALIDATION;
    message->validation = take(&block, sizeof *message->validation);
    *message->validation = (Ballast__V1__ValidationEvent)BALLAST__V1__VALIDATION_EVENT__INIT;
    message->validation->step = event->validation.step;
    message->validation->loss = event->validation.loss;
    message->validation->tokens = event->validation.tokens;
    break;
  case BL_EVENT_PHASE:
    message->event_case = BALLAST__V1__WATCH_RESPONSE__EVENT_PHASE;
    message->phase = take(&block, sizeof *message->phase);
    *message->phase = (Ballast__V1__PhaseEvent)BALLAST__V1__PHASE_EVENT__INIT;
    message->phase->phase = event->phase->phase;
    message->phase->error = event->phase->error;
    message->phase->exit_code = event->phase->exit_code;
    break;
  case BL_EVENT_CHECKPOINT:
    message->event_case = BALLAST__V1__WATCH_RESPONSE__EVENT_CHECKPOINT;
    message->checkpoint = take(&block, sizeof *message->checkpoint);
    *message->checkpoint = (Ballast__V1__CheckpointEvent)BALLAST__V1__CHECKPOINT_EVENT__INIT;
    message->checkpoint->step = event->checkpoint->step;
    message->checkpoint->folder = event->checkpoint->folder;
    message->checkpoint->bytes = event->checkpoint->bytes;
    message->checkpoint->seconds = event->checkpoint->seconds;
    message->checkpoint->stopped_seconds = event->checkpoint->stopped_seconds;
    message->checkpoint->error = event->checkpoint->error;
    break;
  case BL_EVENT_PLAN:
    make_plan(&block, driver, message);
    break;
  }
  return message;
}

void bl_watch_message_destroy(Ballast__V1__WatchResponse *message) {
  free(message);
}
