// SPDX-License-Identifier: Apache-2.0
#include "executor/engine.h"

#include "base/words.h"
#include "checkpoint/restore.h"
#include "compute/ops/select.h"
#include "data/weights.h"
#include "datapath/nccl/start.h"
#include "device/open.h"
#include "executor/engine_memory.h"
#include "executor/plan.h"
#include "executor/tensor_group.h"
#include "executor/warm.h"
#include "job/resume.h"
#include "job/threads.h"
#include "schedule/generate.h"
#include "sys/clock.h"
#include "sys/log.h"
#include "sys/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_SQUARES 1000000u // of 12 bytes each: less than BL_RPC_MESSAGE_LIMIT_BYTES

// The operation itself, its waits (for its message, and for its slot or block), a recomputed block, and its part of E
// and L.
#define TRACE_EVENTS_PER_OPERATION 6
#define TRACE_EVENTS_PER_STEP      8 // waits and work outside operations
// Deadline for all work on a device before it is destroyed. Queued work then waits for nobody.
#define DRAIN_NS (600ull * BL_NS_PER_S)

static bl_status_t no_memory(bl_error_t *err) {
  return bl_error_set(err, BL_EXHAUSTED, "no memory for the stage's tables");
}

// Adds the time since `since_ns` to a phase, and sets `since_ns` to now.
static void end_phase(bl_engine_t *engine, bl_start_phase_t phase, uint64_t *since_ns) {
  const uint64_t now_ns = bl_clock_now_ns();
  engine->start_ns[phase] += now_ns - *since_ns;
  *since_ns = now_ns;
}

static bl_status_t read_job(bl_engine_t *engine, const bl_engine_options_t *options, bl_error_t *err) {
  bl_job_source_t source = {.file = {.name = "job", .bytes = options->job, .size_bytes = options->job_bytes}};
  bl_status_t status = bl_job_parse(&engine->job, &source, err);
  if (status != BL_OK) {
    return status;
  }
  if (options->resume != NULL && options->resume[0] != '\0') {
    (void)bl_resume_init_from(&engine->job, options->resume);
  }
  status = bl_training_init_with(&engine->training, &engine->job, &options->orders, err);
  if (status != BL_OK) {
    return status;
  }
  const bl_grid_t *grid = &engine->training.grid;
  engine->rank = options->rank;
  if (engine->rank >= bl_grid_ranks(grid)) {
    return bl_error_set(err, BL_INVALID, "rank %u of a job with %u rank%s", engine->rank, bl_grid_ranks(grid),
                        bl_plural(bl_grid_ranks(grid)));
  }
  engine->coords = bl_grid_coords(grid, engine->rank);
  engine->training.layout.layer_parts.rank = engine->coords.tensor;
  return BL_OK;
}

static bl_status_t open_device(bl_engine_t *engine, const bl_engine_options_t *wanted, bl_error_t *err) {
  int threads = (int)engine->job.pipeline.threads;
  char doubt[BL_THREADS_WARNING];
  if (bl_threads_warning(&engine->job, doubt)) {
    bl_log(BL_LOG_WARNING, "%s", doubt);
  }
  if (wanted->first_core >= 0 && bl_thread_pin(wanted->first_core, threads) != BL_OK) {
    return bl_error_set(err, BL_INVALID, "cannot run on %d cores from core %d on", threads, wanted->first_core);
  }
  const bool cuda = engine->job.pipeline.device == BL_JOB_DEVICE_CUDA;
  const bl_device_kind_t kind = cuda ? BL_DEVICE_CUDA : BL_DEVICE_HOST;
  uint32_t ordinal = 0;
  bl_status_t status = bl_device_choose(kind, wanted->gpu, engine->rank, &ordinal, err);
  if (status == BL_OK) {
    status = bl_device_open(kind, ordinal, &engine->device, err);
  }
  if (status == BL_OK) {
    status = bl_ops_select(kind, &engine->ops, err);
  }
  return status != BL_OK && cuda ? bl_error_prefix(err, "pipeline.device: cuda") : status;
}

static bl_status_t create_compute(bl_engine_t *engine, bl_error_t *err) {
  bl_compute_options_t options = {.threads = (uint32_t)engine->job.pipeline.threads, .device = engine->device};
  bl_status_t status = engine->ops->create(&options, &engine->compute, err);
  if (status != BL_OK) {
    return status;
  }
  engine->ops->attach(engine->compute);
  engine->stream = engine->ops->stream == NULL ? NULL : engine->ops->stream(engine->compute);
  status = bl_device_stream_create(engine->device, BL_STREAM_COPY, &engine->copies, err);
  if (status == BL_OK && engine->job.train.optimizer_memory == BL_JOB_OPTIMIZER_ON_HOST) {
    status = bl_host_optimizer_create(engine->device, options.threads, &engine->host, err);
  }
  return status == BL_OK ? bl_device_event_create(engine->device, false, &engine->finished, err) : status;
}

// Loads NCCL if the job's tensors may use it, or tensor ranks need it. If tensors may use another path as well, a
// missing NCCL is no error.
static bl_status_t start_nccl(bl_engine_t *engine, const bl_engine_options_t *options, bl_error_t *err) {
  const bl_job_data_path_t path = bl_job_boundary_path(&engine->job);
  const bool asked = path == BL_JOB_DATA_PATH_NCCL, grouped = engine->training.grid.tensor > 1;
  bl_status_t status = BL_OK;
  if (!engine->device->host_memory && (asked || grouped || path == BL_JOB_DATA_PATH_AUTO)) {
    status = bl_nccl_start(engine->device, options->nccl_shared_gpu, &engine->nccl, err);
  }
  if (status == BL_OK && engine->nccl != NULL && grouped) {
    bl_nccl_engine_expect_waits(engine->nccl);
  }
  if (status != BL_OK && (asked || grouped)) {
    return bl_error_prefix(err, "%s", asked ? "nccl is asked for" : "tensor ranks on GPUs need NCCL");
  }
  if (status != BL_OK) {
    bl_log(BL_LOG_INFO, "tensors do not go by NCCL: %s", err->text);
    bl_error_clear(err);
  }
  const bl_nccl_api_t *api = engine->nccl != NULL ? bl_nccl_engine_api(engine->nccl) : NULL;
  bl_block_memory_describe(engine->device, api, options->nccl_shared_gpu, &engine->block_memory);
  return BL_OK;
}

// Opens the tokens for the cores of this machine, if it has fewer cores than stages.
static bl_status_t share_cores(bl_engine_t *engine, const bl_engine_options_t *options, bl_error_t *err) {
  const bl_job_t *job = &engine->job;
  // An operator who pins stages has assigned the cores, and a GPU computes without one.
  if (options->first_core >= 0 || !engine->device->host_memory) {
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
  if ((int64_t)bl_grid_ranks(&engine->training.grid) <= cores) {
    return BL_OK;
  }
  bl_status_t status =
      bl_core_tokens_attach(options->core_tokens, (uint32_t)cores, engine->rank, &engine->core_tokens, err);
  if (status == BL_OK && job->pipeline.threads == 1) {
    bl_core_tokens_bind(engine->core_tokens);
  } else if (status == BL_OK && getenv("GOMP_SPINCOUNT") == NULL && getenv("OMP_WAIT_POLICY") == NULL) {
    bl_log(BL_LOG_WARNING, "idle compute threads of this stage spin on cores that other stages want; start the stages "
                           "of this machine with GOMP_SPINCOUNT=1000 in the environment");
  }
  return status;
}

// The stage that holds the embedding (`last` false) or the head (last virtual stage) of the first pipe.
static uint32_t stage_at_end(const bl_training_t *training, bool last) {
  const bl_schedule_t *schedule = training->schedule;
  return schedule->stage_of[last ? bl_schedule_depth(schedule) - 1 : 0];
}

static bl_status_t create_chunks(bl_engine_t *engine, bl_error_t *err) {
  const bl_training_t *training = &engine->training;
  const bl_schedule_t *schedule = training->schedule;
  engine->chunks = calloc(schedule->virtual_stages, sizeof *engine->chunks);
  if (engine->chunks == NULL) {
    return no_memory(err);
  }
  bl_ownership_t ownership = {.copies = bl_grid_copies(&training->grid)};
  for (uint32_t virtual_stage = 0; virtual_stage < schedule->virtual_stages; virtual_stage++) {
    if (schedule->stage_of[virtual_stage] != engine->coords.stage) {
      continue;
    }
    const uint32_t pipe = bl_schedule_pipe(schedule, virtual_stage),
                   copy = bl_copies_number(ownership.copies, engine->coords.data, pipe);
    bl_chunk_options_t options = {.ops = engine->ops,
                                  .compute = engine->compute,
                                  .device = engine->device,
                                  .model = &training->model,
                                  .span = training->partition.spans[virtual_stage],
                                  .layout = training->layout,
                                  .group = engine->tensor_group != NULL ? &engine->tensor_group->group : NULL,
                                  .micro_batches = (uint32_t)engine->job.train.micro_batches,
                                  .ownership = &ownership,
                                  .host = engine->host,
                                  .copy = copy,
                                  .fold_levels = bl_engine_fold_levels(engine),
                                  .prepack = true};
    bl_engine_chunk_t *chunk = &engine->chunks[engine->chunk_count];
    chunk->virtual_stage = virtual_stage;
    chunk->pipe = pipe;
    chunk->copy = copy;
    bl_status_t status = bl_chunk_create(&options, &chunk->chunk, err);
    if (status != BL_OK) {
      return status;
    }
    engine->chunk_count++;
    for (uint32_t k = 0; k < bl_chunk_parameter_count(chunk->chunk); k++) {
      engine->square_count += bl_chunk_shares(chunk->chunk, k).count;
    }
    if (pipe > 0 || !bl_chunk_tied_needs_peer(chunk->chunk)) {
      continue; // the second pipe's copy sends its gradient to the first pipe's
    }
    if (engine->tied != NULL) {
      engine->tied_partner = chunk->chunk;
    } else {
      engine->tied = chunk->chunk;
      engine->tied_peer = bl_engine_rank_of(engine, stage_at_end(training, virtual_stage == 0));
    }
  }
  return BL_OK;
}

static bl_status_t count_of_order(bl_engine_t *engine, const bl_schedule_t *order, size_t *op_count, bl_error_t *err) {
  bl_stage_plan_t plan;
  bl_status_t status = bl_stage_plan_init(order, engine->coords.stage, bl_executor_plan_limits(0), &plan, err);
  if (status == BL_OK) {
    engine->edge_count = plan.edges > engine->edge_count ? plan.edges : engine->edge_count;
    engine->page_count = plan.pages > engine->page_count ? plan.pages : engine->page_count;
    engine->page_gradient_count =
        plan.page_gradients > engine->page_gradient_count ? plan.page_gradients : engine->page_gradient_count;
    *op_count = plan.op_count > *op_count ? plan.op_count : *op_count;
    bl_stage_plan_cleanup(&plan);
  }
  return status;
}

// Counts the slots and edge buffers that plans for training, in each order, and the forward-only plan of this stage
// need. Edge buffers for the order that the job does not start with are allocated when a plan needs them.
static bl_status_t count_buffers(bl_engine_t *engine, size_t *op_count, bl_error_t *err) {
  const bl_training_t *training = &engine->training;
  const bl_training_stage_t *stage = &training->stages[engine->coords.stage];
  const uint32_t needed = stage->slots_needed > stage->other_needed ? stage->slots_needed : stage->other_needed;
  bl_schedule_t *forward;
  engine->slot_count = stage->slots < needed ? stage->slots : needed;
  bl_status_t status = count_of_order(engine, training->schedule, op_count, err);
  if (status == BL_OK) {
    status = bl_schedule_forward(training->schedule, training->schedule->micro_batches, &forward, err);
  }
  if (status != BL_OK) {
    return status;
  }
  status = count_of_order(engine, forward, op_count, err);
  bl_schedule_destroy(forward);
  engine->edges_allocated = engine->edge_count;
  if (status == BL_OK && training->other != NULL) {
    status = count_of_order(engine, training->other, op_count, err);
  }
  engine->edges_allocated = engine->device->host_memory ? engine->edges_allocated : engine->edge_count;
  return status;
}

// Number of threads that draw weights. A stage on the host uses the cores that it computes on, so that stages of one
// machine do not compete. With GPUs the processors are idle meanwhile, and the stages of the machine, one per GPU,
// share them.
static uint32_t drawing_threads(const bl_engine_t *engine) {
  const uint32_t own = (uint32_t)engine->job.pipeline.threads, ranks = bl_grid_ranks(&engine->training.grid);
  uint32_t devices = 0;
  bl_error_t ignored;
  if (engine->device->host_memory || bl_device_list(BL_DEVICE_CUDA, NULL, 0, &devices, &ignored) != BL_OK) {
    return own;
  }
  const uint32_t stages = devices > 0 && devices < ranks ? devices : ranks;
  const uint32_t share = (uint32_t)bl_thread_processors() / stages;
  return share > own ? share : own;
}

static bl_status_t load_initial(bl_engine_t *engine, bl_error_t *err) {
  const bl_training_t *training = &engine->training;
  const uint32_t threads = drawing_threads(engine);
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    bl_chunk_t *chunk = engine->chunks[i].chunk;
    const bl_chunk_start_t start = {.job = &engine->job,
                                    .model = &training->model,
                                    .span = training->partition.spans[engine->chunks[i].virtual_stage],
                                    .layer_parts = training->layout.layer_parts,
                                    .device = bl_engine_updating_device(engine),
                                    .threads = threads};
    // The first parameter of a chunk lies at the start of an arena of the chunk (bl_chunk_span_places).
    bl_status_t status = bl_chunk_weights_load(&start, bl_chunk_parameter(chunk, 0).weight, err);
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
    status = bl_chunk_restore(engine->chunks[i].chunk, &checkpoint, bl_engine_updating_device(engine), err);
  }
  engine->applied = checkpoint.state.step;
  bl_checkpoint_close(&checkpoint);
  return status;
}

static bl_status_t load_weights(bl_engine_t *engine, const bl_engine_options_t *options, bl_error_t *err) {
  bool resumes = options->resume != NULL && options->resume[0] != '\0';
  bl_status_t status = resumes ? load_checkpoint(engine, options, err) : load_initial(engine, err);
  status = status == BL_OK ? bl_engine_finish(engine, err) : status; // weights were packed
  for (uint32_t i = 0; i < engine->chunk_count && status == BL_OK; i++) {
    status = bl_chunk_status(engine->chunks[i].chunk, err);
  }
  return status;
}

// Lists what this rank saves of a parameter, or that other ranks save all of it. Returns how many entries were added.
static size_t list_saved(const bl_engine_t *engine, const bl_chunk_parameter_t *p, bl_snapshot_tensor_t *tensors) {
  const bl_layer_parts_t layer_parts = engine->training.layout.layer_parts;
  const bl_slice_t first =
      bl_layer_part_slice(&engine->training.model, &p->parameter, bl_layer_parts_count(layer_parts), 0);
  const bool shared = bl_engine_copies(engine) > 1 && p->parameter.rank > 1;
  const bl_snapshot_tensor_t nothing = {.parameter = p->parameter,
                                        .slice = p->slice,
                                        .tile = shared && first.rows == 1 ? bl_slice_row(&p->parameter, &first)
                                                                          : first.run};
  if (p->range.count == 0 || (!p->cut && layer_parts.rank > 0)) { // the first tensor rank writes what all have
    tensors[0] = nothing;
    return 1;
  }
  size_t count = 0;
  for (uint64_t done = 0, taken; done < p->range.count; done += taken) {
    bl_snapshot_tensor_t *tensor = &tensors[count++];
    *tensor = nothing;
    tensor->slice = bl_slice_range(&p->slice, p->range.first + done, p->range.count - done, &taken);
    tensor->parts[BL_CHECKPOINT_WEIGHT] = p->updated + done;
    tensor->parts[BL_CHECKPOINT_FIRST_MOMENT] = p->first_moment + done;
    tensor->parts[BL_CHECKPOINT_SECOND_MOMENT] = p->second_moment + done;
  }
  return count;
}

// Chunks in the order of their layers, in which all ranks with copies of them write one file.
static const bl_engine_chunk_t *saved_chunk(const bl_engine_t *engine, uint32_t i) {
  const uint32_t depth = bl_schedule_depth(engine->training.schedule);
  const bool back = bl_copies_pipes(bl_grid_copies(&engine->training.grid)) > 1 &&
                    engine->chunks[0].virtual_stage % depth > engine->chunks[1].virtual_stage % depth;
  return &engine->chunks[back ? 1 - i : i];
}

// Reserves memory for a copy of all that this stage saves, if the job writes checkpoints.
static bl_status_t prepare_snapshot(bl_engine_t *engine, bl_error_t *err) {
  if (engine->job.checkpoint.folder == NULL) {
    return BL_OK;
  }
  size_t count = 0;
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    for (uint32_t k = 0; k < bl_chunk_parameter_count(engine->chunks[i].chunk); k++) { // at most one for each run
      const bl_slice_t slice = bl_chunk_parameter(engine->chunks[i].chunk, k).slice;
      count += slice.rows > 1 ? 1 : slice.groups;
    }
  }
  bl_snapshot_tensor_t *tensors = calloc(count + 1, sizeof *tensors);
  if (tensors == NULL) {
    return no_memory(err);
  }
  count = 0;
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    const bl_chunk_t *chunk = saved_chunk(engine, i)->chunk;
    for (uint32_t k = 0; k < bl_chunk_parameter_count(chunk); k++) {
      const bl_chunk_parameter_t p = bl_chunk_parameter(chunk, k);
      count += p.owned ? list_saved(engine, &p, &tensors[count]) : 0;
    }
  }
  const bool writes_head = engine->training.layout.layer_parts.rank == 0 && saved_chunk(engine, 0)->copy == 0;
  bl_status_t status =
      bl_snapshot_create(tensors, count, writes_head, bl_engine_updating_device(engine), &engine->snapshot, err);
  free(tensors);
  if (status == BL_OK) {
    status = bl__engine_reserve(engine, BL_MEMORY_CHECKPOINT, BL_ARENA_STAGING, bl_snapshot_bytes(engine->snapshot),
                                &engine->snapshot_memory, err);
  }
  if (status == BL_OK) {
    bl_snapshot_use_memory(engine->snapshot, engine->snapshot_memory.base);
  }
  return status;
}

static bl_status_t make_twins(void *context, bl_arena_t *twins, size_t *count, bl_error_t *err) {
  bl_engine_t *engine = context;
  bl_status_t status = bl_engine_allocate_edge_twins(engine, err);
  if (status == BL_OK) {
    const bl_arena_t made[] = {engine->edge_twins, engine->tied_twins, engine->weight_twins, engine->gradient_twins};
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++) {
      twins[*count] = made[i];
      *count += made[i].bytes > 0;
    }
  }
  return status;
}

// The most that is posted between two copies at once, each way: the weights of one, and the gradients of what the other
// updates.
static uint32_t copies_in_flight(const bl_engine_t *engine) {
  return 2 * engine->shared_count;
}

static bl_status_t create_transport(bl_engine_t *engine, const bl_engine_options_t *options, bl_error_t *err) {
  const bl_grid_t *grid = &engine->training.grid;
  const bool shares = bl_engine_copies(engine) > 1;
  bl_arena_t arenas[BL_TRANSPORT_MAX_ARENAS];
  size_t arena_count = 0;
  if (engine->tensor_group != NULL && engine->device->host_memory) {
    arenas[arena_count++] = engine->exchange_buffers; // BL_EXCHANGE_BUFFERS_ARENA
  }
  arenas[arena_count++] = engine->edges;
  if (shares || bl__engine_exchanges_tied(engine)) {
    arenas[arena_count++] = engine->gradients;
  }
  if (shares && !bl_engine_shares_masters(engine)) {
    arenas[arena_count++] = engine->weights;
  }
  const uint32_t pieces = 4 * BL_GROUP_WINDOWS * bl_layer_parts_here(engine->training.layout.layer_parts);
  bl_transport_options_t transport = {.stage = (int32_t)engine->rank,
                                      .replica_stages = grid->data > 1 ? grid->stages : 0,
                                      .tensor_ranks = grid->tensor,
                                      .unix_path = options->unix_path,
                                      .tcp_host = options->tcp_host,
                                      .tcp_advertise = options->tcp_advertise,
                                      .arenas = arenas,
                                      .arena_count = arena_count,
                                      .device = engine->device->host_memory ? NULL : engine->device,
                                      .make_twins = make_twins,
                                      .context = engine,
                                      .tls = options->tls,
                                      .plaintext_ok = options->plaintext_ok,
                                      .nccl = engine->nccl,
                                      .block_memory = &engine->block_memory,
                                      .thread = options->transfer,
                                      .max_in_flight =
                                          2 * bl_engine_units(engine) + 16 + copies_in_flight(engine) + pieces};
  return bl_transport_create(&transport, &engine->transport, err);
}

// A vote is one message.
static bl_status_t check_squares(const bl_engine_t *engine, bl_error_t *err) {
  const bl_grid_t *grid = &engine->training.grid;
  char rank_name[BL_GRID_NAME_BYTES];
  return engine->square_count <= MOST_SQUARES
             ? BL_OK
             : bl_error_set(
                   err, BL_INVALID,
                   "parallel.data_parts: %u parts of the gradient and %u of a layer (parallel.tensor_parts) are "
                   "%u sums of squares on %s, at most %u: fewer parts, or more ranks that share them",
                   grid->data_parts, grid->tensor_parts, engine->square_count, bl_engine_name(engine, rank_name),
                   MOST_SQUARES);
}

// Plans everything that determines the size of memory.
static bl_status_t make_plans(bl_engine_t *engine, size_t *op_count, bl_error_t *err) {
  bl_status_t status = BL_OK;
  if (engine->training.grid.tensor > 1) {
    status = bl_tensor_group_create(engine, &engine->tensor_group, err);
  }
  if (status == BL_OK) {
    status = create_chunks(engine, err);
  }
  status = status == BL_OK ? check_squares(engine, err) : status;
  return status == BL_OK ? count_buffers(engine, op_count, err) : status;
}

bl_status_t bl_engine_create(const bl_engine_options_t *options, bl_engine_t **engine, bl_error_t *err) {
  bl_engine_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return no_memory(err);
  }
  size_t op_count = 0;
  uint64_t since_ns = bl_clock_now_ns();
  bl_status_t status = read_job(made, options, err);
  end_phase(made, BL_START_JOB, &since_ns);
  status = status == BL_OK ? open_device(made, options, err) : status;
  end_phase(made, BL_START_DEVICE, &since_ns);
  status = status == BL_OK ? create_compute(made, err) : status;
  end_phase(made, BL_START_HANDLES, &since_ns);
  status = status == BL_OK ? start_nccl(made, options, err) : status;
  end_phase(made, BL_START_NCCL, &since_ns);
  status = status == BL_OK ? make_plans(made, &op_count, err) : status;
  end_phase(made, BL_START_PLANS, &since_ns);
  if (status == BL_OK) {
    status = bl__engine_reserve_all(made, err);
  }
  if (status == BL_OK) {
    bl__engine_hand_out(made);
    bl_tensor_group_place(made->tensor_group);
    status = bl__engine_list_shared(made, err);
  }
  end_phase(made, BL_START_MEMORY, &since_ns);
  status = status == BL_OK ? bl__engine_warm(made, err) : status;
  end_phase(made, BL_START_WARM, &since_ns);
  status = status == BL_OK ? load_weights(made, options, err) : status;
  end_phase(made, BL_START_WEIGHTS, &since_ns);
  status = status == BL_OK ? prepare_snapshot(made, err) : status;
  end_phase(made, BL_START_MEMORY, &since_ns);
  if (status == BL_OK) {
    status = share_cores(made, options, err);
  }
  if (status == BL_OK) {
    status = create_transport(made, options, err);
  }
  if (status == BL_OK &&
      bl_trace_create(op_count * TRACE_EVENTS_PER_OPERATION + TRACE_EVENTS_PER_STEP, &made->trace) != BL_OK) {
    status = no_memory(err);
  }
  if (status == BL_OK && made->stream != NULL) {
    status = bl_timeline_create(made->device, made->stream, 2 * op_count + TRACE_EVENTS_PER_STEP, &made->timeline, err);
  }
  if (status != BL_OK) {
    bl_engine_destroy(made);
    return status;
  }
  end_phase(made, BL_START_REST, &since_ns);
  *engine = made;
  return BL_OK;
}

const char *bl_engine_start_text(const bl_engine_t *engine, char text[BL_START_TEXT]) {
  static const char *const names[BL_START_PHASES] = {"job",    "device",  "handles", "NCCL", "plans",
                                                     "memory", "warm-up", "weights", "rest"};
  uint64_t total_ns = 0;
  for (int i = 0; i < BL_START_PHASES; i++) {
    total_ns += engine->start_ns[i];
  }
  size_t used = (size_t)snprintf(text, BL_START_TEXT, "%.3f s", (double)total_ns / BL_NS_PER_S);
  bool first = true;
  for (int i = 0; i < BL_START_PHASES; i++) {
    if (engine->start_ns[i] >= BL_NS_PER_MS && used < BL_START_TEXT) {
      used += (size_t)snprintf(text + used, BL_START_TEXT - used, "%s %s %.3f", first ? ":" : ",", names[i],
                               (double)engine->start_ns[i] / BL_NS_PER_S);
      first = false;
    }
  }
  return text;
}

void bl_engine_destroy(bl_engine_t *engine) {
  if (engine == NULL) {
    return;
  }
  if (engine->compute != NULL && engine->finished != NULL) { // memory that is about to be freed must not be in use
    bl_error_t ignored;
    if (bl_ops_finish(engine->ops, engine->compute, engine->device, engine->finished, bl_clock_now_ns() + DRAIN_NS,
                      &ignored) != BL_OK) {
      bl_log(BL_LOG_WARNING, "the device did not come to rest: %s", ignored.text);
    }
  }
  bl_timeline_destroy(engine->timeline);
  bl_trace_destroy(engine->trace);
  bl_core_tokens_detach(engine->core_tokens);
  if (engine->transport != NULL) {
    bl_transport_destroy(engine->transport); // before the arenas from which it sends
  }
  bl_tensor_group_destroy(engine->tensor_group);
  bl_nccl_engine_destroy(engine->nccl);
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    bl_chunk_destroy(engine->chunks[i].chunk);
  }
  bl_host_optimizer_destroy(engine->host);
  free(engine->shared);
  bl__engine_free_events(engine);
  free(engine->chunks);
  free(engine->blocks);
  free(engine->pages);
  free(engine->page_gradients);
  free(engine->leaving);
  if (engine->compute != NULL) {
    engine->ops->destroy(engine->compute);
  }
  bl_snapshot_destroy(engine->snapshot);
  bl__engine_release_all(engine);
  bl_device_event_destroy(engine->device, engine->finished);
  bl_device_stream_destroy(engine->device, engine->copies);
  bl_device_close(engine->device);
  bl_training_cleanup(&engine->training);
  bl_job_cleanup(&engine->job);
  free(engine);
}

bl_engine_chunk_t *bl_engine_find_chunk(const bl_engine_t *engine, uint32_t virtual_stage) {
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    if (engine->chunks[i].virtual_stage == virtual_stage) {
      return &engine->chunks[i];
    }
  }
  return NULL;
}

bl_chunk_t *bl_engine_chunk(const bl_engine_t *engine, uint32_t virtual_stage) {
  bl_engine_chunk_t *found = bl_engine_find_chunk(engine, virtual_stage);
  return found != NULL ? found->chunk : NULL;
}

uint32_t bl_engine_peers(const bl_engine_t *engine, uint32_t *peers, uint32_t capacity) {
  uint32_t count = 0;
  for (uint32_t peer = 0; peer < bl_grid_ranks(&engine->training.grid); peer++) {
    if (bl_training_exchange(&engine->training, engine->rank, peer)) {
      if (count < capacity) {
        peers[count] = peer;
      }
      count++;
    }
  }
  return count;
}

void bl_engine_note_paths(bl_engine_t *engine) {
  bl_transport_path_t paths[BL_TRANSPORT_MAX_PEERS];
  const size_t count = bl_transport_paths(engine->transport, paths, BL_TRANSPORT_MAX_PEERS);
  int near = 1;
  engine->has_twins = engine->edge_twins.base != NULL;
  engine->direct_count = 0;
  for (size_t i = 0; i < count && i < BL_TRANSPORT_MAX_PEERS; i++) {
    near += bl_path_is_unix(paths[i].path);
    if (bl_transport_is_direct(engine->transport, paths[i].peer)) {
      engine->direct[engine->direct_count++] = (uint32_t)paths[i].peer;
    }
  }
  engine->few_processors = bl_thread_processors() < 2 * near;
}

bool bl_engine_is_direct(const bl_engine_t *engine, uint32_t rank) {
  bool reached = !engine->has_twins;
  for (uint32_t i = 0; i < engine->direct_count && !reached; i++) {
    reached = engine->direct[i] == rank;
  }
  return !engine->device->host_memory && reached;
}
