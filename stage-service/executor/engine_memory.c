// SPDX-License-Identifier: Apache-2.0
#include "executor/engine_memory.h"

#include "base/bytes.h"
#include "job/balance.h"
#include "model/memory.h"
#include "sys/log.h"
#include "sys/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

_Static_assert(sizeof(bl_chunk_loss_t) == BL_STAGE_LOSS_BYTES, "what is planned for the losses");

// The memory needs of this stage's operations, as its back end has planned them.
static bl_operation_memory_t operations_of(const bl_engine_t *engine) {
  bl_operation_memory_t operations = {
      .logits = engine->ops->logits,
      .held_bytes = engine->ops->held_bytes == NULL ? 0 : engine->ops->held_bytes(engine->compute)};
  operations.layer_workspace_bytes = operations.head_workspace_bytes = engine->ops->workspace_bytes(engine->compute);
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    const bl_chunk_sizes_t sizes = bl_chunk_sizes(engine->chunks[i].chunk);
    operations.packed_layer_bytes = sizes.packed_layer_bytes;
    operations.packed_head_bytes += sizes.packed_head_bytes;
  }
  return operations;
}

static bl_status_t plan_memory(bl_engine_t *engine, bl_stage_memory_t *memory, bl_error_t *err) {
  const bl_training_t *training = &engine->training;
  bl_chunk_span_t *spans = calloc(engine->chunk_count, sizeof *spans);
  if (spans == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the stage's tables");
  }
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    spans[i] = training->partition.spans[engine->chunks[i].virtual_stage];
  }
  const bl_operation_memory_t operations = operations_of(engine);
  const bl_stage_memory_request_t request = {.model = &training->model,
                                             .spans = spans,
                                             .span_count = engine->chunk_count,
                                             .options = training->layout,
                                             .operations = &operations,
                                             .micro_batches = training->schedule->micro_batches,
                                             .asynchronous = engine->stream != NULL,
                                             .copies = bl_grid_copies(&training->grid),
                                             .replica = engine->coords.data,
                                             .optimizer_on_host = engine->host != NULL,
                                             .post_validation = engine->job.train.post_validation};
  bl_status_t status = bl_stage_memory(&request, memory);
  free(spans);
  if (status != BL_OK) {
    return bl_error_set(err, status, "train.micro_batch: no valid activation block");
  }
  engine->batch_count = memory->batches;
  engine->slot_bytes = memory->slot_bytes;
  engine->edge_bytes = memory->edge_bytes;
  engine->page_bytes = memory->page_bytes;
  engine->page_gradient_bytes = memory->page_gradient_bytes;
  return BL_OK;
}

bl_status_t bl__engine_reserve(bl_engine_t *engine, bl_memory_tag_t tag, bl_arena_kind_t kind, uint64_t bytes,
                               bl_arena_t *arena, bl_error_t *err) {
  bl_memory_plan(&engine->account, tag, bytes);
  bl_status_t status = bl_arena_create(engine->device, &engine->account, tag, kind, bytes, arena, err);
  if (status != BL_OK) {
    bl_memory_unplan(&engine->account, tag, bytes);
  }
  return status;
}

// ---- edge buffers

// Allocates buffers [from, to) of an arena that has addresses for all buffers but memory for none (host).
static bl_status_t take_edges(bl_engine_t *engine, uint32_t from, uint32_t to, bl_error_t *err) {
  const uint64_t bytes = (to - from) * engine->edge_bytes;
  bl_memory_plan(&engine->account, BL_MEMORY_EDGES, bytes);
  bl_status_t status = bl_memory_acquire(&engine->account, BL_MEMORY_EDGES, bytes, err);
  if (status != BL_OK) {
    bl_memory_unplan(&engine->account, BL_MEMORY_EDGES, bytes);
    return status;
  }
  status = bl_arena_fill(&engine->edges, from * engine->edge_bytes, bytes, err);
  if (status != BL_OK) {
    bl_memory_release(&engine->account, BL_MEMORY_EDGES, bytes);
    bl_memory_unplan(&engine->account, BL_MEMORY_EDGES, bytes);
  }
  return status;
}

bl_status_t bl_engine_allocate_edges(bl_engine_t *engine, uint32_t count, bl_error_t *err) {
  if (count > engine->edge_count) {
    return bl_error_set(err, BL_EXHAUSTED, "%" PRIu32 " edge buffers wanted where there are addresses for %" PRIu32,
                        count, engine->edge_count);
  }
  bl_status_t status =
      count > engine->edges_allocated ? take_edges(engine, engine->edges_allocated, count, err) : BL_OK;
  engine->edges_allocated = status == BL_OK && count > engine->edges_allocated ? count : engine->edges_allocated;
  return status;
}

// If some plan may need more buffers than the first plan, the additional ones get addresses but no memory yet.
static bl_status_t reserve_edges(bl_engine_t *engine, uint64_t bytes, bl_error_t *err) {
  if (engine->edges_allocated == engine->edge_count) {
    return bl__engine_reserve(engine, BL_MEMORY_EDGES, BL_ARENA_SHAREABLE, bytes, &engine->edges, err);
  }
  bl_status_t status =
      bl_arena_create(engine->device, NULL, BL_MEMORY_EDGES, BL_ARENA_SHAREABLE_LATER, bytes, &engine->edges, err);
  return status == BL_OK ? take_edges(engine, 0, engine->edges_allocated, err) : status;
}

// ---- slots

static void plan_slots(bl_engine_t *engine, uint32_t from, uint32_t to) {
  bl_memory_plan(&engine->account, BL_MEMORY_SLOTS, (to - from) * engine->slot_bytes);
  if (engine->slot_twins.capacity > 0) {
    bl_memory_plan(&engine->account, BL_MEMORY_STAGING, (to - from) * engine->slot_bytes);
  }
}

static void unplan_slots(bl_engine_t *engine, uint32_t from, uint32_t to) {
  bl_memory_unplan(&engine->account, BL_MEMORY_SLOTS, (from - to) * engine->slot_bytes);
  if (engine->slot_twins.capacity > 0) {
    bl_memory_unplan(&engine->account, BL_MEMORY_STAGING, (from - to) * engine->slot_bytes);
  }
}

static bl_status_t resize_slots(bl_engine_t *engine, uint32_t count, bl_error_t *err) {
  const uint32_t before = engine->slots.count;
  bl_status_t status = bl_segments_resize(&engine->slots, count, err);
  if (status == BL_OK && engine->slot_twins.capacity > 0) {
    status = bl_segments_resize(&engine->slot_twins, count, err);
    if (status != BL_OK && bl_segments_resize(&engine->slots, before, NULL) != BL_OK) {
      return status; // restoring fails only after a shrink: a reduction always works
    }
  }
  return status;
}

bl_status_t bl_engine_resize_slots(bl_engine_t *engine, uint32_t count, bl_error_t *err) {
  const uint32_t before = engine->slots.count;
  if (count > before) {
    plan_slots(engine, before, count);
  }
  bl_status_t status = resize_slots(engine, count, err);
  if (status != BL_OK && count > before) {
    unplan_slots(engine, count, before);
  } else if (status == BL_OK && count < before) {
    unplan_slots(engine, before, count);
  }
  return status;
}

bl_status_t bl_engine_allocate_slot_twins(bl_engine_t *engine, bl_error_t *err) {
  if (engine->device->host_memory || engine->slot_twins.capacity > 0) {
    return BL_OK;
  }
  bl_status_t status = bl_segments_init(&engine->slot_twins, engine->device, &engine->account, BL_MEMORY_STAGING,
                                        BL_ARENA_STAGING_SHAREABLE, engine->slot_count, engine->slot_bytes, err);
  if (status != BL_OK) {
    return status;
  }
  const uint64_t bytes = engine->slots.count * engine->slot_bytes;
  bl_memory_plan(&engine->account, BL_MEMORY_STAGING, bytes);
  status = bl_segments_resize(&engine->slot_twins, engine->slots.count, err);
  if (status != BL_OK) {
    bl_memory_unplan(&engine->account, BL_MEMORY_STAGING, bytes);
    bl_segments_cleanup(&engine->slot_twins);
  }
  return status;
}

// The kernel cannot reclaim pinned memory.
static bl_status_t check_twins(const bl_engine_t *engine, uint64_t bytes, bl_error_t *err) {
  const uint64_t free_bytes = bl_memory_available_bytes();
  char all[BL_BYTES_TEXT], left[BL_BYTES_TEXT], rank_name[BL_GRID_NAME_BYTES];
  return bytes <= free_bytes
             ? BL_OK
             : bl_error_set(
                   err, BL_EXHAUSTED,
                   "%s exchanges weights and gradients with other copies through memory of the host, and needs "
                   "%s of it, %s are free: let them go by cuda-ipc or NCCL (balance.data_path)",
                   bl_engine_name(engine, rank_name), bl_bytes_format(bytes, all), bl_bytes_format(free_bytes, left));
}

static bl_status_t make_edge_twins(bl_engine_t *engine, bl_error_t *err) {
  const bool shares = bl_engine_copies(engine) > 1;
  const uint64_t tied_bytes =
      bl__engine_exchanges_tied(engine) ? 2 * bl_chunk_tied_elements(engine->tied) * sizeof(float) : 0;
  const uint64_t sums_bytes = engine->received_at - engine->sums_at;
  const struct {
    bl_arena_t *arena;
    uint64_t bytes;
  } twins[] = {{&engine->edge_twins, engine->edge_count * engine->edge_bytes},
               {&engine->tied_twins, tied_bytes},
               {&engine->weight_twins, shares && !bl_engine_shares_masters(engine) ? engine->weights.bytes : 0},
               {&engine->gradient_twins, shares ? engine->gradients.bytes - sums_bytes : 0}};
  bl_status_t status = shares ? check_twins(engine, twins[2].bytes + twins[3].bytes, err) : BL_OK;
  size_t made = 0;
  for (; made < sizeof twins / sizeof twins[0] && status == BL_OK; made++) {
    status = bl__engine_reserve(engine, BL_MEMORY_STAGING, BL_ARENA_STAGING_SHAREABLE, twins[made].bytes,
                                twins[made].arena, err);
  }
  for (size_t i = 0; i + 1 < made && status != BL_OK; i++) {
    bl_arena_destroy(twins[i].arena);
    bl_memory_unplan(&engine->account, BL_MEMORY_STAGING, twins[i].bytes);
  }
  return status;
}

bl_status_t bl_engine_allocate_edge_twins(bl_engine_t *engine, bl_error_t *err) {
  return engine->edge_twins.base != NULL ? BL_OK : make_edge_twins(engine, err);
}

// The slots that the job's own policy leaves this stage.
static bl_status_t own_slots(const bl_engine_t *engine, uint32_t *own, bl_error_t *err) {
  bl_policy_t policy = bl_policy_of_job(&engine->job);
  bl_balance_plan_t plan;
  bl_status_t status = bl_balance_plan_init(&plan, &engine->training, &policy, err);
  if (status == BL_OK) {
    *own = plan.device_slots.own[engine->coords.stage];
    bl_balance_plan_cleanup(&plan);
  }
  return status;
}

static bl_status_t reserve_slots(bl_engine_t *engine, uint32_t own, bl_error_t *err) {
  // Only memory from which blocks may leave is shared: private memory can have large pages.
  const bool parks = engine->training.layout.recompute != BL_RECOMPUTE_FULL &&
                     (engine->training.stage_count > 1 || engine->training.hosts.count > 0);
  bl_status_t status =
      bl_segments_init(&engine->slots, engine->device, &engine->account, BL_MEMORY_SLOTS,
                       parks ? BL_ARENA_SHAREABLE : BL_ARENA_PRIVATE, engine->slot_count, engine->slot_bytes, err);
  return status == BL_OK ? bl_engine_resize_slots(engine, own, err) : status;
}

// ---- data exchanged between CPU and device

static void place_data(bl_engine_t *engine, const bl_stage_memory_t *memory) {
  uint8_t *base = engine->data.base;
  engine->losses = (bl_chunk_loss_t *)(void *)base;
  engine->squares = (double *)(void *)(base + memory->squares_at);
  engine->block_hashes = (uint64_t *)(void *)(base + memory->hash_at);
  engine->tokens = (int32_t *)(void *)(base + memory->tokens_at);
  engine->labels = (int32_t *)(void *)(base + memory->labels_at);
}

// ---- all arenas

typedef struct {
  bl_memory_tag_t tag;
  bl_arena_kind_t kind;
  uint64_t bytes;
  bl_arena_t *arena;
} wanted_t;

#define WANTED 9

static void list_wanted(bl_engine_t *engine, const bl_stage_memory_t *memory, wanted_t wanted[WANTED]) {
  const bool exchanges = bl__engine_exchanges_tied(engine);
  const bool shares = bl_engine_copies(engine) > 1;
  const bool away = engine->host != NULL;
  const bool pulled = shares && !bl_engine_shares_masters(engine); // peers pull weights from their own arena
  const uint64_t edges = engine->edge_count * engine->edge_bytes;
  const uint64_t pages =
      engine->page_count * engine->page_bytes + engine->page_gradient_count * engine->page_gradient_bytes;
  const wanted_t list[WANTED] = {
      {BL_MEMORY_WEIGHTS, pulled ? BL_ARENA_SHAREABLE : BL_ARENA_PRIVATE, memory->weight_bytes, &engine->weights},
      {BL_MEMORY_GRADIENTS, exchanges || shares ? BL_ARENA_SHAREABLE : BL_ARENA_PRIVATE,
       memory->gradient_bytes + memory->tied_bytes + memory->fold_bytes + memory->reduce_bytes, &engine->gradients},
      {away ? BL_MEMORY_OPTIMIZER_HOST : BL_MEMORY_OPTIMIZER, away ? BL_ARENA_STAGING : BL_ARENA_PRIVATE,
       away ? memory->host_bytes : memory->optimizer_bytes, &engine->optimizer},
      {BL_MEMORY_SHADOW, away ? BL_ARENA_STAGING : BL_ARENA_PRIVATE, memory->shadow_bytes, &engine->shadow},
      {BL_MEMORY_EDGES, BL_ARENA_SHAREABLE, edges, &engine->edges},
      {BL_MEMORY_KV_CACHE, BL_ARENA_PRIVATE, pages, &engine->kv_cache},
      {BL_MEMORY_WORKSPACE, BL_ARENA_PRIVATE, memory->chunk_bytes + memory->operation_bytes, &engine->workspace},
      {BL_MEMORY_WORKSPACE, engine->device->host_memory ? BL_ARENA_SHAREABLE : BL_ARENA_PRIVATE, memory->window_bytes,
       &engine->exchange_buffers},
      {BL_MEMORY_DATA, BL_ARENA_STAGING, memory->data_bytes, &engine->data},
  };
  for (size_t i = 0; i < WANTED; i++) {
    wanted[i] = list[i];
  }
}

// Whether tensors between stages may go by NCCL. It is also loaded for tensor ranks alone.
static bool may_use_channels(const bl_engine_t *engine) {
  const bl_job_data_path_t path = bl_job_boundary_path(&engine->job);
  return engine->nccl != NULL && (path == BL_JOB_DATA_PATH_NCCL || path == BL_JOB_DATA_PATH_AUTO);
}

// What the communicator of the tensor ranks is expected to take.
static uint64_t group_bytes(const bl_engine_t *engine) {
  return engine->tensor_group != NULL && !engine->device->host_memory ? BL_NCCL_GROUP_BYTES : 0;
}

// Checks before any allocation that the device has memory for everything. The error lists every tag.
static bl_status_t check_device(bl_engine_t *engine, const wanted_t wanted[WANTED], uint64_t slots, uint64_t held,
                                bl_error_t *err) {
  // The maximum that NCCL will take in addition to the plan, once stages are connected and it is known which peers use
  // it.
  const uint64_t peers = bl_engine_peers(engine, NULL, 0) - (engine->training.grid.tensor - 1); // those get notes only
  const uint64_t ways = may_use_channels(engine) ? 2 * peers : 0;
  const uint64_t communicators = ways * BL_NCCL_CHANNEL_BYTES + group_bytes(engine);
  uint64_t free_bytes, total_bytes, planned = slots + held + communicators;
  if (engine->device->ops->memory == NULL) {
    return BL_OK;
  }
  bl_status_t status = engine->device->ops->memory(engine->device, &free_bytes, &total_bytes, err);
  if (status != BL_OK) {
    return status;
  }
  char one[BL_BYTES_TEXT], all[BL_BYTES_TEXT], list[512];
  int used = snprintf(list, sizeof list, "slots %s", bl_bytes_format(slots, one));
  for (size_t i = 0; i < WANTED; i++) {
    if (wanted[i].bytes == 0 || bl_arena_kind_is_staging(wanted[i].kind)) {
      continue;
    }
    uint64_t bytes = wanted[i].bytes + (wanted[i].tag == BL_MEMORY_WORKSPACE ? held : 0);
    planned += wanted[i].bytes;
    used += snprintf(list + used, sizeof list - (size_t)used, ", %s %s", bl_memory_tag_name(wanted[i].tag),
                     bl_bytes_format(bytes, one));
  }
  if (planned <= free_bytes) {
    engine->free_bytes_when_planned = free_bytes;
    engine->device_bytes = planned - slots - held - communicators; // held memory has been taken before
    return BL_OK;
  }
  if (communicators > 0) {
    snprintf(list + used, sizeof list - (size_t)used, ", communicators %s", bl_bytes_format(communicators, one));
  }
  char total[BL_BYTES_TEXT], rank_name[BL_GRID_NAME_BYTES];
  const char *away = engine->host == NULL ? ", or the optimizer on the host (train.optimizer_memory: host)" : "";
  return bl_error_set(err, BL_EXHAUSTED,
                      "%s needs %s of device memory (%s), %s of %s are free: more stages, fewer slots "
                      "(memory.slots, balance), a smaller train.micro_batch or pipeline.recompute%s",
                      bl_engine_name(engine, rank_name), bl_bytes_format(planned, all), list,
                      bl_bytes_format(free_bytes, one), bl_bytes_format(total_bytes, total), away);
}

// Memory of the communicators that this stage has with others.
static uint64_t count_communicators(const bl_engine_t *engine) {
  bl_transport_path_t paths[BL_TRANSPORT_MAX_PEERS];
  const size_t count =
      engine->transport == NULL ? 0 : bl_transport_paths(engine->transport, paths, BL_TRANSPORT_MAX_PEERS);
  uint64_t bytes = engine->has_group ? group_bytes(engine) : 0;
  for (size_t i = 0; i < count && i < BL_TRANSPORT_MAX_PEERS; i++) {
    bytes += paths[i].path == BL_PATH_NCCL ? 2 * BL_NCCL_CHANNEL_BYTES : 0;
  }
  return bytes;
}

bl_status_t bl_engine_check_memory(bl_engine_t *engine, uint64_t coming_bytes, bl_error_t *err) {
  uint64_t free_bytes, total_bytes;
  if (engine->device->ops->memory == NULL) {
    return BL_OK;
  }
  bl_status_t status = engine->device->ops->memory(engine->device, &free_bytes, &total_bytes, err);
  coming_bytes += engine->has_group ? 0 : group_bytes(engine); // the communicator is created with the first attempt
  if (status != BL_OK || (engine->memory_told && coming_bytes <= free_bytes)) {
    return status;
  }
  const uint64_t slots = engine->device->whole_ranges ? engine->slots.capacity : engine->slots.count;
  const uint64_t planned = engine->device_bytes + slots * engine->slot_bytes;
  const uint64_t taken =
      engine->free_bytes_when_planned > free_bytes ? engine->free_bytes_when_planned - free_bytes : 0;
  char plan[BL_BYTES_TEXT], beside[BL_BYTES_TEXT], counted[BL_BYTES_TEXT], left[BL_BYTES_TEXT], coming[BL_BYTES_TEXT];
  bl_bytes_format(planned, plan);
  bl_bytes_format(taken > planned ? taken - planned : 0, beside);
  bl_bytes_format(count_communicators(engine), counted);
  bl_bytes_format(free_bytes, left);
  if (coming_bytes > free_bytes) {
    char rank_name[BL_GRID_NAME_BYTES];
    return bl_error_set(
        err, BL_EXHAUSTED,
        "%s needs %s more of device memory, %s are free: in addition to the %s that it planned, libraries, "
        "communicators and other processes have taken %s",
        bl_engine_name(engine, rank_name), bl_bytes_format(coming_bytes, coming), left, plan, beside);
  }
  engine->memory_told = true;
  bl_log(
      BL_LOG_INFO,
      "device memory: %s planned and taken; %s taken in addition by libraries, communicators (counted: %s) and other "
      "processes; %s free",
      plan, beside, counted, left);
  return BL_OK;
}

// The same check for the host, if the optimizer is there: the kernel cannot reclaim pinned memory.
static bl_status_t check_host(bl_engine_t *engine, const bl_stage_memory_t *memory, bl_error_t *err) {
  const uint64_t free_bytes = bl_memory_available_bytes();
  if (engine->host == NULL || memory->host_bytes + memory->shadow_bytes <= free_bytes) {
    return BL_OK;
  }
  char all[BL_BYTES_TEXT], free_text[BL_BYTES_TEXT], rank_name[BL_GRID_NAME_BYTES];
  return bl_error_set(err, BL_EXHAUSTED,
                      "train.optimizer_memory: host: %s needs %s of the host's memory for master weights, moments and "
                      "gradients, %s are free: more stages on more hosts, or device",
                      bl_engine_name(engine, rank_name),
                      bl_bytes_format(memory->host_bytes + memory->shadow_bytes, all),
                      bl_bytes_format(free_bytes, free_text));
}

static bl_status_t create_events(bl_engine_t *engine, bl_error_t *err) {
  engine->edge_states = calloc(engine->edge_count + 1, sizeof *engine->edge_states);
  bl_status_t status =
      engine->edge_states == NULL ? bl_error_set(err, BL_EXHAUSTED, "no memory for the table of edge buffers") : BL_OK;
  for (uint32_t i = 0; i < engine->edge_count && status == BL_OK; i++) {
    bl_edge_state_t *edge = &engine->edge_states[i];
    bl_device_event_t **events[] = {&edge->ready, &edge->copied_out, &edge->taken};
    for (size_t k = 0; k < sizeof events / sizeof events[0] && status == BL_OK; k++) {
      status = bl_device_event_create(engine->device, false, events[k], err);
    }
  }
  for (uint32_t i = 0; i < engine->chunk_count && bl_engine_copies(engine) > 1 && status == BL_OK; i++) {
    status = bl_device_event_create(engine->device, false, &engine->chunks[i].computed, err);
  }
  engine->slot_marks = calloc(engine->slot_count + 1u, sizeof(bl_device_event_t *));
  if (status == BL_OK && engine->slot_marks == NULL) {
    status = bl_error_set(err, BL_EXHAUSTED, "no memory for the table of slots");
  }
  for (uint32_t i = 0; i < engine->slot_count && status == BL_OK; i++) {
    status = bl_device_event_create(engine->device, false, &engine->slot_marks[i], err);
  }
  return status;
}

void bl__engine_free_events(bl_engine_t *engine) {
  for (uint32_t i = 0; i < engine->edge_count && engine->edge_states != NULL; i++) {
    bl_edge_state_t *edge = &engine->edge_states[i];
    bl_device_event_destroy(engine->device, edge->ready);
    bl_device_event_destroy(engine->device, edge->copied_out);
    bl_device_event_destroy(engine->device, edge->taken);
  }
  free(engine->edge_states);
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    bl_device_event_destroy(engine->device, engine->chunks[i].computed);
  }
  for (uint32_t i = 0; i < engine->slot_count && engine->slot_marks != NULL; i++) {
    bl_device_event_destroy(engine->device, engine->slot_marks[i]);
  }
  free(engine->slot_marks);
}

// Plans and counts what the back end holds itself, like an arena.
static bl_status_t count_held(bl_engine_t *engine, uint64_t held, bl_error_t *err) {
  bl_memory_plan(&engine->account, BL_MEMORY_WORKSPACE, held);
  return bl_memory_acquire(&engine->account, BL_MEMORY_WORKSPACE, held, err);
}

bl_status_t bl__engine_reserve_all(bl_engine_t *engine, bl_error_t *err) {
  uint32_t own = 0;
  bl_status_t status = own_slots(engine, &own, err);
  if (status != BL_OK) {
    return status;
  }
  bl_stage_memory_t memory;
  status = plan_memory(engine, &memory, err);
  if (status != BL_OK) {
    return status;
  }
  const uint64_t held = operations_of(engine).held_bytes;
  wanted_t wanted[WANTED];
  list_wanted(engine, &memory, wanted);
  status = check_device(engine, wanted, own * engine->slot_bytes, held, err);
  status = status == BL_OK ? check_host(engine, &memory, err) : status;
  for (size_t i = 0; i < WANTED && status == BL_OK; i++) {
    status = wanted[i].arena == &engine->edges
                 ? reserve_edges(engine, wanted[i].bytes, err)
                 : bl__engine_reserve(engine, wanted[i].tag, wanted[i].kind, wanted[i].bytes, wanted[i].arena, err);
  }
  if (status == BL_OK) {
    status = count_held(engine, held, err);
  }
  if (status == BL_OK) {
    status = reserve_slots(engine, own, err);
  }
  if (status == BL_OK) {
    status = create_events(engine, err);
  }
  if (status != BL_OK) {
    return status;
  }
  engine->sums_at = memory.gradient_bytes + memory.tied_bytes;
  engine->received_at = engine->sums_at + memory.fold_bytes;
  engine->tied_part = memory.tied_bytes == 0 ? NULL : (float *)(void *)(engine->gradients.base + memory.gradient_bytes);
  place_data(engine, &memory);
  engine->ops->use_workspace(engine->compute, engine->workspace.base + memory.chunk_bytes, memory.operation_bytes);
  const uint32_t slices = engine->training.schedule->slices;
  engine->blocks = calloc((size_t)engine->chunk_count * bl_engine_units(engine), sizeof *engine->blocks);
  engine->leaving = calloc(engine->slot_count, sizeof *engine->leaving);
  engine->pages = calloc(slices, sizeof *engine->pages);
  engine->page_gradients = calloc(slices, sizeof *engine->page_gradients);
  return engine->blocks != NULL && engine->leaving != NULL && engine->pages != NULL && engine->page_gradients != NULL
             ? BL_OK
             : bl_error_set(err, BL_EXHAUSTED, "no memory for the stage's tables");
}

void bl__engine_hand_out(bl_engine_t *engine) {
  uint8_t *weights = engine->weights.base, *gradients = engine->gradients.base, *moments = engine->optimizer.base,
          *sums = gradients + engine->sums_at;
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    bl_chunk_t *chunk = engine->chunks[i].chunk;
    bl_chunk_sizes_t sizes = bl_chunk_sizes(chunk);
    uint64_t weight_bytes = bl_align_up(sizes.resident_bytes, BL_CACHE_LINE_BYTES);
    uint64_t moment_bytes = bl_align_up(sizes.moment_bytes, BL_CACHE_LINE_BYTES);
    bl_chunk_arenas_t arenas = {.weights = (float *)(void *)weights,
                                .gradients = (float *)(void *)gradients,
                                .first_moments = (float *)(void *)moments,
                                .second_moments = (float *)(void *)(moments + moment_bytes),
                                .sums = sizes.fold_bytes == 0 ? NULL : (float *)(void *)sums,
                                .packed = sizes.packed_bytes == 0 ? NULL : weights + weight_bytes,
                                .workspace = engine->workspace.base};
    moments += 2 * moment_bytes;
    arenas.masters = sizes.master_bytes == 0 ? NULL : (float *)(void *)moments;
    moments += bl_align_up(sizes.master_bytes, BL_CACHE_LINE_BYTES);
    if (engine->host != NULL) { // everything that is updated lies together
      arenas.landed = (float *)(void *)moments;
      moments += bl_align_up(sizes.weight_bytes, BL_CACHE_LINE_BYTES);
    }
    bl_chunk_use_arenas(chunk, &arenas);
    weights += weight_bytes + bl_align_up(sizes.packed_bytes, BL_CACHE_LINE_BYTES);
    gradients += bl_align_up(sizes.gradient_bytes, BL_CACHE_LINE_BYTES);
    sums += bl_align_up(sizes.fold_bytes, BL_CACHE_LINE_BYTES);
  }
}

static uint64_t line_elements(uint64_t elements) {
  return bl_align_up(elements, BL_CACHE_LINE_BYTES / sizeof(float));
}

static void add_shared(bl_engine_t *engine, bl_engine_shared_t tensor, float **received) {
  if (tensor.owner == engine->chunks[tensor.chunk].copy) {
    tensor.received = *received;
    *received += (bl_engine_copies(engine) - 1) * line_elements(tensor.elements);
  }
  if (engine->shared != NULL) {
    engine->shared[engine->shared_count] = tensor;
  }
  engine->shared_count++;
}

// Adds message `k` of each copy of a chunk.
static void share(bl_engine_t *engine, uint32_t index, uint32_t k, float **received) {
  const bl_chunk_t *chunk = engine->chunks[index].chunk;
  for (uint32_t copy = 0; copy < bl_engine_copies(engine); copy++) {
    const bl_chunk_message_t message = bl_chunk_message(chunk, k, copy);
    bl_engine_shared_t shared = {.chunk = index,
                                 .number = k,
                                 .weight = message.weight,
                                 .gradient = message.gradient,
                                 .elements = message.elements,
                                 .owner = copy};
    if (message.elements > 0) {
      add_shared(engine, shared, received);
    }
    if (message.elements > 0 && message.second != NULL) {
      shared.number += bl_chunk_parameter_count(chunk);
      shared.weight = NULL;
      shared.gradient = message.second;
      add_shared(engine, shared, received);
    }
  }
}

// Lists all messages; without memory for them it counts them.
static void list_all(bl_engine_t *engine) {
  float *received = (float *)(void *)(engine->gradients.base + engine->received_at);
  engine->shared_count = 0;
  for (uint32_t i = 0; i < engine->chunk_count && bl_engine_copies(engine) > 1; i++) {
    engine->chunks[i].shared_first = engine->shared_count;
    for (uint32_t k = 0; k < bl_chunk_parameter_count(engine->chunks[i].chunk); k++) {
      share(engine, i, k, &received);
    }
    engine->chunks[i].shared_count = engine->shared_count - engine->chunks[i].shared_first;
  }
}

bl_status_t bl__engine_list_shared(bl_engine_t *engine, bl_error_t *err) {
  list_all(engine);
  engine->shared = calloc(engine->shared_count + 1u, sizeof *engine->shared);
  if (engine->shared == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the stage's tables");
  }
  list_all(engine);
  return BL_OK;
}

void bl__engine_release_all(bl_engine_t *engine) {
  if (engine->edges.base != NULL && engine->edges.account == NULL) {
    bl_memory_release(&engine->account, BL_MEMORY_EDGES, engine->edges_allocated * engine->edge_bytes);
  }
  bl_arena_t *arenas[] = {
      &engine->weights,          &engine->gradients,      &engine->optimizer,       &engine->edges,
      &engine->workspace,        &engine->data,           &engine->edge_twins,      &engine->tied_twins,
      &engine->weight_twins,     &engine->gradient_twins, &engine->snapshot_memory, &engine->shadow,
      &engine->exchange_buffers, &engine->kv_cache};
  for (size_t i = 0; i < sizeof arenas / sizeof arenas[0]; i++) {
    bl_arena_destroy(arenas[i]);
  }
  bl_segments_cleanup(&engine->slots);
  bl_segments_cleanup(&engine->slot_twins);
}
