// SPDX-License-Identifier: Apache-2.0
#include "executor/execution.h"

#include "executor/replicas.h"
#include "executor/tensor_group.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <string.h>

static bool takes_slot(const bl_planned_op_t *op) {
  return op->slot != BL_NONE && (op->op.type == BL_OP_F || op->op.type == BL_OP_R || op->op.type == BL_OP_L);
}

// Waits until everything that the operation reads has arrived, and what it writes is free.
static bl_status_t wait_ready(bl__execution_t *execution, size_t index, const bl_planned_op_t *op, bl_error_t *err) {
  bl_status_t status = bl_edges_post(&execution->edges, index, err);
  if (status == BL_OK && bl_op_type_starts_backward((bl_op_type_t)op->op.type)) {
    status = bl__gradients_begin(execution, op->op, err);
  }
  if (status == BL_OK) {
    status = bl_parked_reap(&execution->parked, index, err);
  }
  if (status == BL_OK && takes_slot(op)) {
    status = bl_parked_wait_slot(&execution->parked, op->slot, err);
  }
  if (status == BL_OK && bl_op_type_starts_backward((bl_op_type_t)op->op.type)) {
    status = bl_parked_wait_block(&execution->parked, op, err); // while the gradient is being received
  }
  return status == BL_OK ? bl_edges_wait(&execution->edges, op, err) : status;
}

static bool cancelled(void *context) {
  const bl__execution_t *execution = context;
  return atomic_load_explicit(&execution->progress->cancelled, memory_order_relaxed);
}

static void give_core(bl__execution_t *execution) {
  if (execution->has_core) {
    bl_core_tokens_release(execution->engine->core_tokens);
    execution->has_core = false;
  }
}

// Called before every wait. Until then the stage has kept the core of its last operation: without one, its sends and
// checksums would compete with the operation of another stage on the same processor.
static void before_wait(void *context) {
  bl__execution_t *execution = context;
  if (!execution->computes) {
    give_core(execution);
  }
}

// Takes a core to compute on, if stages share cores. A wait inside an operation is one of many and is not traced.
static bl_status_t take_core(bl__execution_t *execution, uint32_t micro_batch, bool inside, bl_error_t *err) {
  if (execution->engine->core_tokens == NULL ||
      (execution->has_core && bl_core_tokens_keep(execution->engine->core_tokens))) {
    execution->core_micro_batch = micro_batch;
    return BL_OK;
  }
  uint64_t start_ns = bl_stall_begin(&execution->stall);
  atomic_store_explicit(&execution->progress->core_micro_batch, micro_batch, memory_order_relaxed);
  atomic_store_explicit(&execution->progress->core_since_ns, start_ns, memory_order_relaxed);
  bool taken = bl_core_tokens_acquire(execution->engine->core_tokens, cancelled, execution);
  execution->has_core = taken;
  execution->core_micro_batch = micro_batch;
  atomic_store_explicit(&execution->progress->core_since_ns, 0, memory_order_relaxed);
  if (inside) {
    const uint64_t before_ns = execution->stall.total_ns;
    bl_stall_count(&execution->stall, start_ns);
    execution->core_inside_ns += execution->stall.total_ns - before_ns;
  } else {
    bl_stall_end(&execution->stall, "core", micro_batch, start_ns);
  }
  return taken ? BL_OK : bl_error_set(err, BL_CANCELLED, "the attempt was aborted");
}

// For waits for a rank of the tensor group, which may need this core itself.
typedef struct core_rest {
  bl__execution_t *execution;
  bool resting;
} core_rest_t;

static void begin_rest(void *context) {
  core_rest_t *rest = context;
  rest->resting = rest->execution->has_core;
  give_core(rest->execution);
}

static bl_status_t end_rest(void *context, bl_error_t *err) {
  core_rest_t *rest = context;
  return rest->resting ? take_core(rest->execution, rest->execution->core_micro_batch, true, err) : BL_OK;
}

static bool is_needed(void *context, uint32_t rank) {
  const core_rest_t *rest = context;
  return rest->execution->has_core && !bl_core_tokens_holds(rest->execution->engine->core_tokens, rank);
}

static void count_slots(bl__execution_t *execution, const bl_planned_op_t *op) {
  bl_stage_counters_t *counters = &execution->vote->counters;
  if (takes_slot(op)) {
    uint32_t in_use = ++execution->stall.slots_in_use;
    counters->peak_slots = in_use > counters->peak_slots ? in_use : counters->peak_slots;
  }
  atomic_store_explicit(&execution->progress->slots, execution->stall.slots_in_use, memory_order_relaxed);
}

static bl_status_t run_operation(bl__execution_t *execution, size_t index, bl_error_t *err) {
  bl_engine_t *engine = execution->engine;
  const bl_planned_op_t *op = &execution->run->plan->stage.ops[index];
  const bool computes = bl_op_type_computes((bl_op_type_t)op->op.type);
  if (cancelled(execution)) {
    return bl_error_set(err, BL_CANCELLED, "the attempt was aborted");
  }
  bl_status_t status = bl_replicas_give(engine, err);
  if (status == BL_OK) {
    status = wait_ready(execution, index, op, err);
  }
  if (status == BL_OK && computes) {
    status =
        bl_replicas_wait_weights(engine, bl_engine_find_chunk(engine, op->op.virtual_stage), &execution->stall, err);
  }
  if (status == BL_OK && computes) {
    status = take_core(execution, op->op.micro_batch, false, err);
  }
  if (status != BL_OK) {
    return status;
  }
  count_slots(execution, op);
  const uint64_t start_ns = bl_clock_now_ns(), stalled_ns = execution->stall.total_ns,
                 core_ns = execution->core_inside_ns;
  bl_timeline_t *timeline = computes ? engine->timeline : NULL;
  status = bl_timeline_start(timeline, err);
  execution->computes = computes;
  if (status == BL_OK) {
    status = bl__execution_compute(execution, op, err);
  }
  execution->computes = false;
  if (status == BL_OK) {
    status = engine->ops->status(engine->compute, err);
  }
  if (status == BL_OK) {
    status = bl_tensor_group_status(engine->tensor_group, err);
  }
  uint64_t end_ns = bl_clock_now_ns();
  if (op->op.type != BL_OP_E) { // E frees its slot when the block has left
    execution->stall.slots_in_use -= op->releases_slot;
  }
  char cell[BL_OP_TEXT];
  bl_op_format_slice(op->op, bl__execution_slices(execution) > 1, cell);
  if (timeline != NULL) { // the time in which the CPU queued it does not matter
    status = status == BL_OK
                 ? bl_timeline_stop(timeline, cell, (int32_t)op->op.micro_batch, execution->stall.slots_in_use, err)
                 : status;
  } else {
    // E and L trace their waits themselves.
    const uint64_t waited_ns =
        computes ? execution->stall.total_ns - stalled_ns - (execution->core_inside_ns - core_ns) : 0;
    bl_trace_add_operation(engine->trace, cell, (int32_t)op->op.micro_batch, execution->stall.slots_in_use, start_ns,
                           end_ns, waited_ns);
  }
  if (computes && timeline == NULL) { // E and L count their own time
    execution->vote->counters.busy_ns += end_ns - start_ns - (execution->stall.total_ns - stalled_ns);
  }
  atomic_store_explicit(&execution->progress->done, (uint32_t)index + 1, memory_order_relaxed);
  return status;
}

// ---- a whole run

// Waits for the device, once per run, and collects the results.
static bl_status_t finish(bl__execution_t *execution, bl_error_t *err) {
  bl_engine_t *engine = execution->engine;
  bl_stage_counters_t *counters = &execution->vote->counters;
  bl_status_t status = bl_edges_finish(&execution->edges, err);
  if (status == BL_OK) {
    status = bl_engine_finish(engine, err);
  }
  if (status == BL_OK) {
    status = bl_tensor_group_finish(engine->tensor_group, err);
  }
  if (status == BL_OK) {
    status = bl_parked_judge(&execution->parked, err);
  }
  if (status != BL_OK) {
    return status;
  }
  bl__execution_collect_losses(execution);
  bl__gradients_collect(execution);
  counters->stall_ns = execution->stall.total_ns;
  if (engine->timeline != NULL) { // the CPU's own waits do not measure the device
    bl_timeline_sums_t sums;
    status = bl_timeline_read(engine->timeline, engine->trace, &sums, err);
    counters->busy_ns = sums.busy_ns;
    counters->stall_ns = sums.idle_ns;
  }
  return status;
}

// Called after a run that failed. Waits until the device is idle, so that its work does not write during the next run.
static void come_to_rest(bl__execution_t *execution) {
  bl_error_t ignored;
  bl_tensor_group_interrupt(execution->engine->tensor_group);
  if (execution->engine->stream != NULL && bl_engine_finish(execution->engine, &ignored) != BL_OK) {
    bl_log(BL_LOG_ERROR, "the device does not come to rest: %s", ignored.text);
  }
}

static void reset_vote(bl__execution_t *execution) {
  const bl_engine_t *engine = execution->engine;
  bl_vote_t *vote = execution->vote;
  const bl_schedule_t *plan = execution->run->plan->schedule;
  bool head = bl__execution_head_pipe(execution) < plan->pipes;
  uint32_t micro_batches = plan->micro_batches / plan->pipes;
  head = head && engine->training.layout.layer_parts.rank == 0; // all tensor ranks have the same losses
  uint32_t losses = head && execution->run->id.kind != BL_RUN_GENERATE ? micro_batches : 0;
  uint64_t micro_batch_tokens = (uint64_t)engine->job.train.micro_batch * engine->training.model.seq;
  *vote = (bl_vote_t){.step = execution->run->id.step,
                      .attempt = execution->run->id.attempt,
                      .plan_version = execution->run->id.plan_version,
                      .finite = true,
                      .nonfinite_micro_batch = -1,
                      .losses = vote->losses,
                      .loss_count = losses,
                      .parameter_indices = vote->parameter_indices,
                      .squares = vote->squares,
                      .leased_peaks = vote->leased_peaks,
                      .token_count = losses * micro_batch_tokens,
                      .generated_token = -1,
                      .counters = {.own_slots = engine->slots.count}};
  memset(vote->losses, 0, losses * sizeof *vote->losses);
}

// For waits that need something else first (engine.h).
static bl_status_t give(void *context, bool *pending, bl_error_t *err) {
  bl__execution_t *execution = context;
  bl_status_t status = bl_edges_give(&execution->edges, err);
  status = status == BL_OK ? bl_replicas_give(execution->engine, err) : status;
  *pending = execution->edges.held > 0;
  for (uint32_t i = 0; i < execution->engine->chunk_count; i++) {
    *pending = *pending || execution->engine->chunks[i].held;
  }
  return status;
}

bl_status_t bl_executor_run(bl_engine_t *engine, const bl_run_t *run, bl_run_progress_t *progress, bl_vote_t *vote,
                            bl_error_t *err) {
  const bl_stage_plan_t *plan = &run->plan->stage;
  bl__execution_t execution = {.engine = engine,
                               .run = run,
                               .progress = progress,
                               .vote = vote,
                               .stall = {.trace = engine->trace, .wait_since_ns = &progress->wait_since_ns}};
  execution.stall.before = before_wait;
  execution.stall.context = &execution;
  execution.edges = (bl_edges_t){.engine = engine, .plan = plan, .stall = &execution.stall};
  execution.parked = (bl_parked_t){.engine = engine,
                                   .stall = &execution.stall,
                                   .counters = &vote->counters,
                                   .attempt = run->id.attempt,
                                   .plan = run->plan};
  reset_vote(&execution);
  bl_trace_clear(engine->trace);
  bl_status_t status = bl_edges_begin(&execution.edges, run->id.attempt, err);
  if (status == BL_OK) {
    status = bl_parked_begin(&execution.parked, err);
  }
  if (status == BL_OK) {
    status = bl_timeline_begin(engine->timeline, err);
  }
  if (status == BL_OK) {
    status = bl__execution_count_labels(&execution, err);
  }
  if (status != BL_OK) {
    return status;
  }
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    engine->chunks[i].begun = false;
    if (run->id.kind == BL_RUN_TRAIN && !bl_engine_shares_masters(engine)) { // while the first input is on its way
      bl__gradients_clear(&engine->chunks[i]);
    }
  }
  engine->meanwhile = (bl_engine_meanwhile_t){.give = give, .context = &execution};
  core_rest_t resting = {.execution = &execution};
  const bl_tensor_rest_t rest = {.context = &resting, .begin = begin_rest, .end = end_rest, .needed = is_needed};
  status =
      bl_tensor_group_begin(engine->tensor_group, run->id.attempt, &progress->cancelled, &execution.stall, &rest, err);
  if (status == BL_OK) {
    status = bl_replicas_begin(engine, err);
  }
  for (size_t i = 0; i < plan->op_count && status == BL_OK; i++) {
    status = run_operation(&execution, i, err);
  }
  give_core(&execution);
  if (status == BL_OK && run->id.kind == BL_RUN_TRAIN) {
    status = bl__gradients_finish(&execution, err);
  }
  if (status == BL_OK && engine->shadow.bytes > 0) { // the next attempt may begin before peers have ended this one
    status = bl_edges_wait_all_sent(&execution.edges, err);
  }
  if (status == BL_OK) {
    status = bl_replicas_finish(engine, &execution.stall, run->id.kind == BL_RUN_TRAIN, err);
  }
  if (status == BL_OK) {
    status = bl_tensor_group_wait_read(engine->tensor_group, err);
  }
  if (status == BL_OK) {
    status = finish(&execution, err);
  }
  engine->meanwhile = (bl_engine_meanwhile_t){0};
  engine->core_inside_ns = execution.core_inside_ns;
  engine->waited_inside_ns = execution.stall.inside_ns - execution.core_inside_ns;
  if (status != BL_OK) {
    bl_parked_abort(&execution.parked);
    come_to_rest(&execution);
    vote->counters.stall_ns = execution.stall.total_ns;
  }
  vote->counters.peak_slot_bytes = vote->counters.peak_slots * engine->slot_bytes;
  return status;
}

void bl_executor_interrupt(bl_engine_t *engine, bl_run_progress_t *progress) {
  // First, so that a run that is just beginning on the transport or the parking sees it.
  atomic_store(&progress->cancelled, true);
  bl_transport_abort(engine->transport);
  bl_tensor_group_interrupt(engine->tensor_group);
  if (engine->parking != NULL) {
    engine->parking->ops->interrupt(engine->parking);
  }
}

bl_status_t bl_executor_update(bl_engine_t *engine, uint64_t step, double scale, double learning_rate,
                               bl_error_t *err) {
  bl_adamw_settings_t settings = {.beta1 = engine->job.train.beta1,
                                  .beta2 = engine->job.train.beta2,
                                  .epsilon = engine->job.train.eps,
                                  .weight_decay = engine->job.train.weight_decay,
                                  .decay =
                                      engine->job.train.decay == BL_JOB_DECAY_ALL ? BL_DECAY_ALL : BL_DECAY_MATRICES};
  bl_adamw_step_t update = {.step = step, .rate = learning_rate, .gradient_scale = scale};
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    bl_chunk_update(engine->chunks[i].chunk, &settings, &update);
  }
  bl_status_t status = bl_engine_finish(engine, err);
  for (uint32_t i = 0; i < engine->chunk_count && status == BL_OK; i++) {
    status = bl_chunk_status(engine->chunks[i].chunk, err);
  }
  return status;
}
