// SPDX-License-Identifier: Apache-2.0
#include "executor/engine.h"

#include "base/bytes.h"
#include "checkpoint/restore.h"
#include "data/weights.h"
#include "executor/plan.h"
#include "job/balance.h"
#include "schedule/generate.h"
#include "sys/thread.h"

#include <stdlib.h>
#include <string.h>

// Itself, what it waits for (its message and its slot or block), a block made again, and its part of E and L.
#define TRACE_EVENTS_PER_OPERATION 6
#define TRACE_EVENTS_PER_STEP      8 // waits and work outside operations

static bl_status_t no_memory(bl_error_t *err) {
  return bl_error_set(err, BL_EXHAUSTED, "no memory for the stage's tables");
}

static bl_status_t read_job(bl_engine_t *engine, const bl_engine_options_t *options, bl_error_t *err) {
  bl_job_source_t source = {.file = {.name = "job", .bytes = options->job, .size_bytes = options->job_bytes}};
  bl_status_t status = bl_job_parse(&engine->job, &source, err);
  if (status != BL_OK) {
    return status;
  }
  status = bl_training_init(&engine->training, &engine->job, err);
  if (status != BL_OK) {
    return status;
  }
  engine->stage = options->stage;
  if (engine->stage >= engine->training.stage_count) {
    return bl_error_set(err, BL_INVALID, "stage %u of a job with %u stages", engine->stage,
                        engine->training.stage_count);
  }
  return BL_OK;
}

static bl_status_t create_compute(bl_engine_t *engine, const bl_engine_options_t *wanted, bl_error_t *err) {
  int threads = (int)engine->job.pipeline.threads;
  if (wanted->first_core >= 0 && bl_thread_pin(wanted->first_core, threads) != BL_OK) {
    return bl_error_set(err, BL_INVALID, "cannot run on %d cores from core %d on", threads, wanted->first_core);
  }
  engine->ops = bl_ops_host();
  bl_compute_options_t options = {.threads = (uint32_t)engine->job.pipeline.threads};
  bl_status_t status = engine->ops->create(&options, &engine->compute, err);
  if (status == BL_OK) {
    engine->ops->attach(engine->compute);
  }
  return status;
}

// Tokens for the cores of this machine, where it has fewer than stages.
static bl_status_t share_cores(bl_engine_t *engine, const bl_engine_options_t *options, bl_error_t *err) {
  const bl_job_t *job = &engine->job;
  if (options->first_core >= 0) { // whoever pins stages has given out the cores
    return BL_OK;
  }
  if (options->core_tokens == NULL) {
    return job->pipeline.cores.set
               ? bl_error_set(err, BL_INVALID,
                              "pipeline.cores: this stage has no file to share tokens for cores in; start "
                              "the stages of one machine with the same --core-tokens, or remove the key")
               : BL_OK;
  }
  int64_t cores = bl_thread_processors() / job->pipeline.threads;
  cores = job->pipeline.cores.set ? job->pipeline.cores.value : cores > 0 ? cores : 1;
  if ((int64_t)engine->training.stage_count <= cores) {
    return BL_OK;
  }
  return bl_core_tokens_attach(options->core_tokens, (uint32_t)cores, engine->stage, &engine->core_tokens, err);
}

// Stage that holds the embedding (first) or the head (last virtual stage).
static uint32_t stage_at_end(const bl_training_t *training, bool last) {
  const bl_schedule_t *schedule = training->schedule;
  return schedule->stage_of[last ? schedule->virtual_stages - 1 : 0];
}

static bl_status_t create_chunks(bl_engine_t *engine, bl_error_t *err) {
  const bl_training_t *training = &engine->training;
  const bl_schedule_t *schedule = training->schedule;
  engine->chunks = calloc(schedule->virtual_stages, sizeof *engine->chunks);
  if (engine->chunks == NULL) {
    return no_memory(err);
  }
  for (uint32_t virtual_stage = 0; virtual_stage < schedule->virtual_stages; virtual_stage++) {
    if (schedule->stage_of[virtual_stage] != engine->stage) {
      continue;
    }
    bl_chunk_options_t options = {.ops = engine->ops,
                                  .compute = engine->compute,
                                  .model = &training->model,
                                  .span = training->partition.spans[virtual_stage],
                                  .layout = training->layout,
                                  .micro_batches = schedule->micro_batches,
                                  .prepack = true};
    bl_engine_chunk_t *chunk = &engine->chunks[engine->chunk_count];
    chunk->virtual_stage = virtual_stage;
    bl_status_t status = bl_chunk_create(&options, &chunk->chunk, err);
    if (status != BL_OK) {
      return status;
    }
    engine->chunk_count++;
    if (engine->tied != NULL && bl_chunk_tied_needs_peer(chunk->chunk)) {
      engine->tied_twin = chunk->chunk;
    } else if (bl_chunk_tied_needs_peer(chunk->chunk)) {
      engine->tied = chunk->chunk;
      engine->tied_peer = stage_at_end(training, virtual_stage == 0);
    }
  }
  return BL_OK;
}

// Slots and edge buffers that the training and the forward-only plan of this stage need.
static bl_status_t count_buffers(bl_engine_t *engine, size_t *op_count, bl_error_t *err) {
  const bl_training_t *training = &engine->training;
  const bl_training_stage_t *stage = &training->stages[engine->stage];
  bl_stage_plan_t plan;
  bl_status_t status = bl_stage_plan_init(training->schedule, engine->stage, bl_executor_plan_limits(0), &plan, err);
  if (status != BL_OK) {
    return status;
  }
  engine->slot_count = stage->slots < stage->slots_needed ? stage->slots : stage->slots_needed;
  engine->edge_count = plan.edges;
  *op_count = plan.op_count;
  bl_stage_plan_cleanup(&plan);

  bl_schedule_t *forward;
  status = bl_schedule_forward(training->schedule, training->schedule->micro_batches, &forward, err);
  if (status != BL_OK) {
    return status;
  }
  status = bl_stage_plan_init(forward, engine->stage, bl_executor_plan_limits(0), &plan, err);
  if (status == BL_OK) {
    engine->edge_count = plan.edges > engine->edge_count ? plan.edges : engine->edge_count;
    *op_count = plan.op_count > *op_count ? plan.op_count : *op_count;
    bl_stage_plan_cleanup(&plan);
  }
  bl_schedule_destroy(forward);
  return status;
}

typedef struct {
  uint64_t weights, gradients, moments, workspace; // bytes over all chunks; workspace: of the largest
} sums_t;

static sums_t add_up(bl_engine_t *engine) {
  sums_t sums = {0};
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    bl_chunk_sizes_t sizes = bl_chunk_sizes(engine->chunks[i].chunk);
    sums.weights += bl_align_up(sizes.weight_bytes, BL_CACHE_LINE_BYTES) + bl_align_up(sizes.packed_bytes, 64);
    sums.gradients += bl_align_up(sizes.gradient_bytes, BL_CACHE_LINE_BYTES);
    sums.moments += bl_align_up(sizes.moment_bytes, BL_CACHE_LINE_BYTES);
    sums.workspace = sizes.workspace_bytes > sums.workspace ? sizes.workspace_bytes : sums.workspace;
    uint64_t slot = bl_align_up(sizes.slot_bytes, BL_CACHE_LINE_BYTES);
    uint64_t edge = bl_align_up(sizes.edge_bytes, BL_CACHE_LINE_BYTES);
    engine->slot_bytes = slot > engine->slot_bytes ? slot : engine->slot_bytes;
    engine->edge_bytes = edge > engine->edge_bytes ? edge : engine->edge_bytes;
  }
  return sums;
}

static bl_status_t reserve(bl_engine_t *engine, bl_memory_tag_t tag, bl_arena_kind_t kind, uint64_t bytes,
                           bl_arena_t *arena, bl_error_t *err) {
  bl_memory_plan(&engine->account, tag, bytes);
  return bl_arena_create(bl_device_host(), &engine->account, tag, kind, bytes, arena, err);
}

bl_status_t bl_engine_hold_slots(bl_engine_t *engine, uint32_t count, bl_error_t *err) {
  const uint32_t before = engine->slots.count;
  if (count > before) {
    bl_memory_plan(&engine->account, BL_MEMORY_SLOTS, (count - before) * engine->slot_bytes);
  }
  bl_status_t status = bl_segments_resize(&engine->slots, count, err);
  if (status != BL_OK && count > before) {
    bl_memory_unplan(&engine->account, BL_MEMORY_SLOTS, (count - before) * engine->slot_bytes);
  } else if (status == BL_OK && count < before) {
    bl_memory_unplan(&engine->account, BL_MEMORY_SLOTS, (before - count) * engine->slot_bytes);
  }
  return status;
}

// The slots that the job's own policy leaves this stage.
static bl_status_t reserve_slots(bl_engine_t *engine, bl_error_t *err) {
  bl_policy_t policy = bl_policy_of_job(&engine->job);
  bl_balance_plan_t plan;
  bl_status_t status = bl_balance_plan_init(&plan, &engine->training, &policy, err);
  if (status != BL_OK) {
    return status;
  }
  const uint32_t own = plan.holdings.own[engine->stage];
  bl_balance_plan_cleanup(&plan);
  // Only what may leave is shared: private memory can have large pages.
  bool parks = engine->training.layout.recompute != BL_RECOMPUTE_FULL && engine->training.stage_count > 1;
  status = bl_segments_init(&engine->slots, bl_device_host(), &engine->account, BL_MEMORY_SLOTS,
                            parks ? BL_ARENA_SHAREABLE : BL_ARENA_PRIVATE, engine->slot_count, engine->slot_bytes, err);
  return status == BL_OK ? bl_engine_hold_slots(engine, own, err) : status;
}

static bl_status_t reserve_all(bl_engine_t *engine, bl_error_t *err) {
  const bl_model_t *model = &engine->training.model;
  sums_t sums = add_up(engine);
  uint64_t tied_bytes = engine->tied == NULL ? 0 : (uint64_t)model->vocab * model->hidden * sizeof(float);
  uint64_t chunk_workspace = bl_align_up(sums.workspace, BL_CACHE_LINE_BYTES);
  uint64_t ops_workspace = engine->ops->workspace_bytes(engine->compute);
  uint64_t batch = (uint64_t)engine->job.train.micro_batch * model->seq;
  const struct {
    bl_memory_tag_t tag;
    bl_arena_kind_t kind;
    uint64_t bytes;
    bl_arena_t *arena;
  } wanted[] = {
      {BL_MEMORY_WEIGHTS, BL_ARENA_PRIVATE, sums.weights, &engine->weights},
      {BL_MEMORY_GRADIENTS, engine->tied != NULL && engine->tied_twin == NULL ? BL_ARENA_SHAREABLE : BL_ARENA_PRIVATE,
       sums.gradients + tied_bytes, &engine->gradients},
      {BL_MEMORY_OPTIMIZER, BL_ARENA_PRIVATE, 2 * sums.moments, &engine->optimizer},
      {BL_MEMORY_EDGES, BL_ARENA_SHAREABLE, engine->edge_count * engine->edge_bytes, &engine->edges},
      {BL_MEMORY_WORKSPACE, BL_ARENA_PRIVATE, chunk_workspace + ops_workspace, &engine->workspace},
      {BL_MEMORY_DATA, BL_ARENA_PRIVATE, 2 * batch * sizeof(int32_t), &engine->data},
  };
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
    bl_status_t reserved = reserve(engine, wanted[i].tag, wanted[i].kind, wanted[i].bytes, wanted[i].arena, err);
    if (reserved != BL_OK) {
      return reserved;
    }
  }
  bl_status_t status = reserve_slots(engine, err);
  if (status != BL_OK) {
    return status;
  }
  engine->tied_part = tied_bytes == 0 ? NULL : (float *)(void *)(engine->gradients.base + sums.gradients);
  engine->tokens = (int32_t *)(void *)engine->data.base;
  engine->labels = engine->tokens + batch;
  engine->ops->use_workspace(engine->compute, engine->workspace.base + chunk_workspace, ops_workspace);
  engine->edge_sends = calloc(engine->edge_count, sizeof *engine->edge_sends);
  engine->blocks =
      calloc((size_t)engine->chunk_count * engine->training.schedule->micro_batches, sizeof *engine->blocks);
  engine->leaving = calloc(engine->slot_count, sizeof *engine->leaving);
  bool complete = engine->edge_sends != NULL && engine->blocks != NULL && engine->leaving != NULL;
  return complete ? BL_OK : no_memory(err);
}

// Cuts the arenas into the parts of each chunk.
static void hand_out(bl_engine_t *engine) {
  uint8_t *weights = engine->weights.base, *gradients = engine->gradients.base, *moments = engine->optimizer.base;
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    bl_chunk_t *chunk = engine->chunks[i].chunk;
    bl_chunk_sizes_t sizes = bl_chunk_sizes(chunk);
    uint64_t weight_bytes = bl_align_up(sizes.weight_bytes, BL_CACHE_LINE_BYTES);
    uint64_t moment_bytes = bl_align_up(sizes.moment_bytes, BL_CACHE_LINE_BYTES);
    bl_chunk_arenas_t arenas = {.weights = (float *)(void *)weights,
                                .gradients = (float *)(void *)gradients,
                                .first_moments = (float *)(void *)moments,
                                .second_moments = (float *)(void *)(moments + moment_bytes),
                                .packed = sizes.packed_bytes == 0 ? NULL : weights + weight_bytes,
                                .workspace = engine->workspace.base};
    bl_chunk_use_arenas(chunk, &arenas);
    weights += weight_bytes + bl_align_up(sizes.packed_bytes, BL_CACHE_LINE_BYTES);
    gradients += bl_align_up(sizes.gradient_bytes, BL_CACHE_LINE_BYTES);
    moments += 2 * moment_bytes;
  }
}

static bl_status_t load_initial(bl_engine_t *engine, bl_error_t *err) {
  const bl_training_t *training = &engine->training;
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    bl_chunk_t *chunk = engine->chunks[i].chunk;
    bl_chunk_span_t span = training->partition.spans[engine->chunks[i].virtual_stage];
    // The first parameter of a chunk lies at the start of its arena (bl_chunk_span_places).
    bl_status_t status =
        bl_chunk_weights_load(&engine->job, &training->model, span, bl_chunk_parameter(chunk, 0).weight, err);
    if (status != BL_OK) {
      return status;
    }
    bl_chunk_weights_changed(chunk);
  }
  return BL_OK;
}

static bl_status_t load_checkpoint(bl_engine_t *engine, const bl_engine_options_t *options, bl_error_t *err) {
  bl_checkpoint_t checkpoint;
  bl_status_t status = bl_checkpoint_open(&checkpoint, options->resume, err);
  if (status != BL_OK) {
    return status;
  }
  if (checkpoint.digest != options->resume_digest) {
    status = bl_error_set(err, BL_DATA_LOSS,
                          "%s: is another checkpoint here than the driver has seen: driver and stages must share the "
                          "file system of checkpoint.folder",
                          options->resume);
  }
  for (uint32_t i = 0; i < engine->chunk_count && status == BL_OK; i++) {
    status = bl_chunk_restore(engine->chunks[i].chunk, &checkpoint, err);
  }
  engine->applied = checkpoint.state.step;
  bl_checkpoint_close(&checkpoint);
  return status;
}

static bl_status_t load_weights(bl_engine_t *engine, const bl_engine_options_t *options, bl_error_t *err) {
  bool resumes = options->resume != NULL && options->resume[0] != '\0';
  bl_status_t status = resumes ? load_checkpoint(engine, options, err) : load_initial(engine, err);
  if (status != BL_OK) {
    return status;
  }
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    const bl_chunk_t *chunk = engine->chunks[i].chunk;
    for (uint32_t k = 0; k < bl_chunk_parameter_count(chunk); k++) {
      engine->parameter_count += bl_chunk_parameter(chunk, k).owned;
    }
  }
  return engine->ops->status(engine->compute, err);
}

// Room for a copy of all that this stage saves, where the job writes checkpoints.
static bl_status_t prepare_snapshot(bl_engine_t *engine, bl_error_t *err) {
  if (engine->job.checkpoint.folder == NULL) {
    return BL_OK;
  }
  bl_snapshot_tensor_t *tensors = calloc(engine->parameter_count + 1, sizeof *tensors);
  if (tensors == NULL) {
    return no_memory(err);
  }
  size_t count = 0;
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    const bl_chunk_t *chunk = engine->chunks[i].chunk;
    for (uint32_t k = 0; k < bl_chunk_parameter_count(chunk); k++) {
      bl_chunk_parameter_t p = bl_chunk_parameter(chunk, k);
      if (p.owned) {
        tensors[count++] = (bl_snapshot_tensor_t){.parameter = p.parameter,
                                                  .parts = {[BL_CHECKPOINT_WEIGHT] = p.weight,
                                                            [BL_CHECKPOINT_FIRST_MOMENT] = p.first_moment,
                                                            [BL_CHECKPOINT_SECOND_MOMENT] = p.second_moment}};
      }
    }
  }
  bl_status_t status = bl_snapshot_create(tensors, count, &engine->snapshot, err);
  free(tensors);
  if (status == BL_OK) {
    status = reserve(engine, BL_MEMORY_CHECKPOINT, BL_ARENA_PRIVATE, bl_snapshot_bytes(engine->snapshot),
                     &engine->snapshot_memory, err);
  }
  if (status == BL_OK) {
    bl_snapshot_use_memory(engine->snapshot, engine->snapshot_memory.base);
  }
  return status;
}

static bl_status_t create_hub(bl_engine_t *engine, const bl_engine_options_t *options, bl_error_t *err) {
  bl_arena_t arenas[2] = {engine->edges, engine->gradients};
  bl_hub_options_t hub = {.stage = (int32_t)engine->stage,
                          .unix_path = options->unix_path,
                          .tcp_host = options->tcp_host,
                          .tcp_advertise = options->tcp_advertise,
                          .arenas = arenas,
                          .arena_count = engine->tied != NULL && engine->tied_twin == NULL ? 2 : 1,
                          .tls = options->tls,
                          .plaintext_ok = options->plaintext_ok,
                          .max_in_flight = 2 * engine->training.schedule->micro_batches + 16};
  return bl_hub_create(&hub, &engine->hub, err);
}

bl_status_t bl_engine_create(const bl_engine_options_t *options, bl_engine_t **engine, bl_error_t *err) {
  bl_engine_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return no_memory(err);
  }
  size_t op_count = 0;
  bl_status_t status = read_job(made, options, err);
  if (status == BL_OK) {
    status = create_compute(made, options, err);
  }
  if (status == BL_OK) {
    status = create_chunks(made, err);
  }
  if (status == BL_OK) {
    status = count_buffers(made, &op_count, err);
  }
  if (status == BL_OK) {
    status = reserve_all(made, err);
  }
  if (status == BL_OK) {
    hand_out(made);
    status = load_weights(made, options, err);
  }
  if (status == BL_OK) {
    status = prepare_snapshot(made, err);
  }
  if (status == BL_OK) {
    status = share_cores(made, options, err);
  }
  if (status == BL_OK) {
    status = create_hub(made, options, err);
  }
  if (status == BL_OK) {
    status = bl_trace_create(op_count * TRACE_EVENTS_PER_OPERATION + TRACE_EVENTS_PER_STEP, &made->trace);
  }
  if (status != BL_OK) {
    bl_engine_destroy(made);
    return status;
  }
  *engine = made;
  return BL_OK;
}

void bl_engine_destroy(bl_engine_t *engine) {
  if (engine == NULL) {
    return;
  }
  bl_trace_destroy(engine->trace);
  bl_core_tokens_detach(engine->core_tokens);
  if (engine->hub != NULL) {
    bl_hub_destroy(engine->hub); // before the arenas that it sends from
  }
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    bl_chunk_destroy(engine->chunks[i].chunk);
  }
  free(engine->chunks);
  free(engine->edge_sends);
  free(engine->blocks);
  free(engine->leaving);
  if (engine->compute != NULL) {
    engine->ops->destroy(engine->compute);
  }
  bl_snapshot_destroy(engine->snapshot);
  bl_arena_t *arenas[] = {&engine->weights,   &engine->gradients, &engine->optimizer,      &engine->edges,
                          &engine->workspace, &engine->data,      &engine->snapshot_memory};
  for (size_t i = 0; i < sizeof arenas / sizeof arenas[0]; i++) {
    bl_arena_destroy(arenas[i]);
  }
  bl_segments_cleanup(&engine->slots);
  bl_training_cleanup(&engine->training);
  bl_job_cleanup(&engine->job);
  free(engine);
}

bl_chunk_t *bl_engine_chunk(const bl_engine_t *engine, uint32_t virtual_stage) {
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    if (engine->chunks[i].virtual_stage == virtual_stage) {
      return engine->chunks[i].chunk;
    }
  }
  return NULL;
}

uint32_t bl_engine_peers(const bl_engine_t *engine, uint32_t *peers, uint32_t capacity) {
  const bl_schedule_t *schedule = engine->training.schedule;
  uint32_t count = 0;
  for (uint32_t peer = 0; peer < schedule->stages; peer++) {
    bool exchanges = engine->tied != NULL && peer == engine->tied_peer;
    for (uint32_t i = 0; i + 1 < schedule->virtual_stages && !exchanges; i++) {
      uint32_t low = schedule->stage_of[i], high = schedule->stage_of[i + 1];
      exchanges = (low == engine->stage && high == peer) || (high == engine->stage && low == peer);
    }
    if (exchanges && peer != engine->stage) {
      if (count < capacity) {
        peers[count] = peer;
      }
      count++;
    }
  }
  return count;
}
