// SPDX-License-Identifier: Apache-2.0
#include "executor/executor.h"

#include "base/random.h"
#include "data/batch.h"
#include "executor/edges.h"
#include "executor/kv_cache.h"
#include "executor/parked.h"
#include "executor/replicas.h"
#include "executor/tensor_group.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <math.h>
#include <string.h>

// One run in progress.
typedef struct {
  bl_engine_t *engine;
  const bl_run_t *run;
  bl_run_progress_t *progress;
  bl_vote_t *vote;
  bl_stall_t stall;
  bl_edges_t edges;
  bl_parked_t parked;
  bool has_core;             // if stages share cores; kept after an operation until the next wait
  bool computes;             // waits inside an operation keep the core, but for those of tensor groups
  uint64_t core_inside_ns;   // for which the operation in progress waited for a core that it had given up
  uint32_t core_micro_batch; // micro-batch that it computes on the core
} execution_t;

static const bl_chunk_span_t *span_of(const execution_t *execution, bl_op_t op) {
  return &execution->engine->training.partition.spans[op.virtual_stage];
}

// ---- data

static uint32_t slices_of(const execution_t *execution) {
  return execution->engine->training.schedule->slices;
}

// Tokens of a sequence in one block.
static uint32_t tokens_of(const execution_t *execution) {
  return execution->engine->training.model.seq / slices_of(execution);
}

static uint32_t unit_of(const execution_t *execution, bl_op_t op) {
  return bl_schedule_unit(execution->engine->training.schedule, op.micro_batch, op.slice);
}

// Reads the context for a drawn token: row 0 of the batch; zeros after it and in other rows. For a slice, the tokens in
// it.
static bl_status_t read_context(execution_t *execution, bl_op_t op, int32_t *tokens, bl_error_t *err) {
  const bl_run_t *run = execution->run;
  const bl_model_t *model = &execution->engine->training.model;
  if (run->token_count == 0 || run->token_count > model->seq) {
    return bl_error_set(err, BL_INVALID, "a context has 1 to %u tokens, this one has %u", model->seq, run->token_count);
  }
  const uint32_t count = tokens_of(execution), first = op.slice * count;
  memset(tokens, 0, (size_t)execution->engine->job.train.micro_batch * count * sizeof(int32_t));
  for (uint32_t i = 0; i < run->token_count; i++) {
    if (run->tokens[i] >= model->vocab) {
      return bl_error_set(err, BL_INVALID, "token %u of the context is %u, the vocabulary has %u", i, run->tokens[i],
                          model->vocab);
    }
    if (i >= first && i - first < count) {
      tokens[i - first] = (int32_t)run->tokens[i];
    }
  }
  return BL_OK;
}

static bl_status_t read_batch(execution_t *execution, bl_op_t op, bl_batch_t batch, bl_error_t *err) {
  const bl_dataset_t *dataset = &execution->engine->training.dataset;
  batch.count = tokens_of(execution);
  batch.first = op.slice * batch.count;
  const uint32_t micro_batch =
      op.micro_batch + bl_engine_first_micro_batch(execution->engine, execution->run->plan->schedule->micro_batches);
  return execution->run->id.kind == BL_RUN_TRAIN
             ? bl_batch_read(dataset, execution->run->id.step, micro_batch, &batch, err)
             : bl_batch_read_validation(dataset, execution->run->first_window, micro_batch, &batch, err);
}

// Returns the tokens or labels of a block in `all`.
static int32_t *batch_of(const execution_t *execution, int32_t *all, bl_op_t op) {
  const bl_engine_t *engine = execution->engine;
  const uint64_t size = (uint64_t)engine->job.train.micro_batch * tokens_of(execution);
  return all + unit_of(execution, op) % (engine->batch_count * slices_of(execution)) * size;
}

// Whether F has read the tokens of this micro-batch in this run, and they are still in their buffer.
static bool has_tokens(const execution_t *execution, bl_op_t op) {
  return op.type != BL_OP_F && execution->engine->batch_count > 1;
}

// Reads tokens for the chunk with the embedding; NULL for others.
static bl_status_t read_tokens(execution_t *execution, bl_op_t op, const int32_t **tokens, bl_error_t *err) {
  *tokens = NULL;
  if (!span_of(execution, op)->embedding) {
    return BL_OK;
  }
  int32_t *inputs = batch_of(execution, execution->engine->tokens, op);
  *tokens = inputs;
  if (execution->run->id.kind == BL_RUN_GENERATE) {
    return read_context(execution, op, inputs, err);
  }
  return has_tokens(execution, op) ? BL_OK : read_batch(execution, op, (bl_batch_t){.inputs = inputs}, err);
}

// Reads labels for the chunk with the head; NULL for others.
static bl_status_t read_labels(execution_t *execution, bl_op_t op, const int32_t **labels, bl_error_t *err) {
  *labels = NULL;
  if (!span_of(execution, op)->head) {
    return BL_OK;
  }
  int32_t *read = batch_of(execution, execution->engine->labels, op);
  *labels = read;
  return read_batch(execution, op, (bl_batch_t){.labels = read}, err);
}

// ---- operations

// The pipe of the plan whose last chunk, with the head, is on this stage; the number of pipes: none.
static uint32_t head_pipe(const execution_t *execution) {
  const bl_schedule_t *plan = execution->run->plan->schedule;
  uint32_t pipe = 0;
  while (pipe < plan->pipes &&
         plan->stage_of[(pipe + 1) * bl_schedule_depth(plan) - 1] != execution->engine->coords.stage) {
    pipe++;
  }
  return pipe;
}

// Collects what the head has written, after all work has ended.
static void collect_losses(execution_t *execution) {
  bl_vote_t *vote = execution->vote;
  const bl_schedule_t *schedule = execution->engine->training.schedule;
  const uint32_t pipe = head_pipe(execution), begin = pipe * vote->loss_count, // each pipe has as many micro-batches
      first = begin + bl_engine_first_micro_batch(execution->engine, execution->run->plan->schedule->micro_batches);
  const bl_chunk_t *chunk = bl_engine_chunk(execution->engine, (pipe + 1) * bl_schedule_depth(schedule) - 1);
  for (uint32_t i = 0; i < vote->loss_count; i++) {
    const bl_chunk_loss_t *losses = &execution->engine->losses[(size_t)(begin + i) * slices_of(execution)];
    bool bad = false;
    for (uint32_t slice = 0; slice < slices_of(execution); slice++) {
      bad = bad || losses[slice].first_bad_row >= 0;
    }
    vote->losses[i] = bl_chunk_loss_mean(chunk, losses);
    if (bad || !isfinite(vote->losses[i])) {
      vote->finite = false;
      vote->nonfinite_micro_batch =
          vote->nonfinite_micro_batch < 0 ? (int32_t)(first + i) : vote->nonfinite_micro_batch;
    }
  }
}

// Computes what a forward-only run needs from the last hidden state.
static bl_status_t look_at_head(execution_t *execution, bl_chunk_t *chunk, const bl_planned_op_t *op, const void *out,
                                bl_error_t *err) {
  const bl_run_t *run = execution->run;
  if (run->id.kind == BL_RUN_VALIDATE) {
    const int32_t *labels;
    bl_status_t status = read_labels(execution, op->op, &labels, err);
    if (status == BL_OK) {
      bl_chunk_loss(chunk, labels, out, &execution->engine->losses[unit_of(execution, op->op)]);
    }
    return status;
  }
  const uint32_t row = run->token_count - 1;
  if (row / tokens_of(execution) != op->op.slice) {
    return BL_OK;
  }
  double uniform = bl_random_uniform(run->draw_seed, 0);
  execution->vote->generated_token =
      bl_chunk_draw(chunk, out, row % tokens_of(execution), (float)run->temperature, uniform);
  execution->vote->finite = execution->vote->generated_token >= 0;
  return BL_OK;
}

// NULL: the forward keeps nothing.
static void *slot_of(const bl_engine_t *engine, const bl_planned_op_t *op) {
  return op->slot == BL_NONE ? NULL : bl_engine_slot(engine, op->slot);
}

static bl_status_t forward(execution_t *execution, const bl_planned_op_t *op, bl_error_t *err) {
  bl_engine_t *engine = execution->engine;
  bl_chunk_t *chunk = bl_engine_chunk(engine, op->op.virtual_stage);
  const int32_t *tokens;
  bl_status_t status = read_tokens(execution, op->op, &tokens, err);
  if (status != BL_OK) {
    return status;
  }
  void *out = bl_engine_edge(engine, op->output);
  bl_parked_made(&execution->parked, op);
  bl_chunk_forward(chunk, tokens, bl_engine_edge(engine, op->input), slot_of(engine, op), out);
  if (execution->run->id.kind != BL_RUN_TRAIN && span_of(execution, op->op)->head) {
    return look_at_head(execution, chunk, op, out, err);
  }
  return bl_edges_send(&execution->edges, op, err);
}

// The backwards of a micro-batch end with its first slice.
static bool ends_micro_batch(bl_op_t op) {
  return op.slice == 0;
}

// Called after the last micro-batch of a part of the gradient. Both pipes have the same number of them.
static bl_status_t fold(execution_t *execution, bl_op_t op, bool head, bl_error_t *err) {
  const bl_schedule_t *plan = execution->run->plan->schedule;
  const uint32_t parts = bl_grid_copy_parts(&execution->engine->training.grid),
                 size = plan->micro_batches / (parts * plan->pipes);
  if (parts == 1 || !ends_micro_batch(op) || (op.micro_batch + 1u) % size != 0) {
    return BL_OK;
  }
  const uint32_t part = op.micro_batch / size - bl_schedule_pipe(plan, op.virtual_stage) * parts;
  return bl_chunk_fold(bl_engine_chunk(execution->engine, op.virtual_stage), head, bl_fold_merges(part),
                       part + 1 == parts, err);
}

static bl_status_t backward_input(execution_t *execution, const bl_planned_op_t *op, bl_error_t *err) {
  bl_engine_t *engine = execution->engine;
  const int32_t *labels;
  bl_status_t status = read_labels(execution, op->op, &labels, err);
  if (status != BL_OK) {
    return status;
  }
  bl_chunk_backward_input(bl_engine_chunk(engine, op->op.virtual_stage), labels, bl_engine_edge(engine, op->input),
                          slot_of(engine, op), bl_engine_edge(engine, op->output), true,
                          &engine->losses[unit_of(execution, op->op)]);
  status = bl_edges_send(&execution->edges, op, err);
  return status == BL_OK ? fold(execution, op->op, true, err) : status;
}

static bl_status_t backward_weight(execution_t *execution, const bl_planned_op_t *op, bl_error_t *err) {
  bl_engine_t *engine = execution->engine;
  const int32_t *tokens;
  bl_status_t status = read_tokens(execution, op->op, &tokens, err);
  const bl_schedule_t *plan = execution->run->plan->schedule;
  // Of the micro-batches of the chunk.
  const uint32_t end = plan->micro_batches / plan->pipes * (bl_schedule_pipe(plan, op->op.virtual_stage) + 1);
  const bool last = ends_micro_batch(op->op) && op->op.micro_batch + 1u == end;
  if (status == BL_OK && last) {
    bl_chunk_expect_last(bl_engine_chunk(engine, op->op.virtual_stage));
  }
  if (status == BL_OK) {
    bl_chunk_backward_weight(bl_engine_chunk(engine, op->op.virtual_stage), tokens, bl_engine_edge(engine, op->input),
                             slot_of(engine, op), bl_engine_edge(engine, op->output));
    status = fold(execution, op->op, false, err);
  }
  if (status == BL_OK && last) {
    status = bl_replicas_send_gradients(engine, bl_engine_find_chunk(engine, op->op.virtual_stage), err);
  }
  return status;
}

// Needs only the kept input: it restores the same bits, whatever the reason why the block is missing.
static void recompute(const execution_t *execution, const bl_planned_op_t *op) {
  bl_engine_t *engine = execution->engine;
  if (execution->run->plan->schedule->forward_slots) { // dropped by the plan, not by pipeline.recompute
    execution->vote->counters.dropped++;
    execution->vote->counters.recomputed++;
  }
  bl_chunk_recompute(bl_engine_chunk(engine, op->op.virtual_stage), bl_engine_edge(engine, op->input),
                     slot_of(engine, op));
}

static bl_status_t compute(execution_t *execution, const bl_planned_op_t *op, bl_error_t *err) {
  if (bl_op_type_computes((bl_op_type_t)op->op.type)) {
    bl_kv_cache_use(execution->engine, execution->run->plan, op->op);
  }
  switch (op->op.type) {
  case BL_OP_F:
    return forward(execution, op, err);
  case BL_OP_I:
    return backward_input(execution, op, err);
  case BL_OP_W:
    return backward_weight(execution, op, err);
  case BL_OP_B: { // the gradient is sent before W, so that the previous stage does not wait for W
    bl_status_t status = backward_input(execution, op, err);
    return status == BL_OK ? backward_weight(execution, op, err) : status;
  }
  case BL_OP_R:
    recompute(execution, op);
    return BL_OK;
  case BL_OP_E:
    return bl_parked_evict(&execution->parked, op, err);
  case BL_OP_L:
    return bl_parked_load(&execution->parked, op, err);
  default:
    return bl_error_set(err, BL_INTERNAL, "an operation that bl_executor_plan_create should have refused");
  }
}

static bool takes_slot(const bl_planned_op_t *op) {
  return op->slot != BL_NONE && (op->op.type == BL_OP_F || op->op.type == BL_OP_R || op->op.type == BL_OP_L);
}

static void clear_gradients(bl_engine_chunk_t *chunk) {
  bl_chunk_begin_step(chunk->chunk);
  chunk->begun = true;
}

// Clears the gradients of a chunk before its first backward, if weights were in their place until now.
static bl_status_t begin_backward(execution_t *execution, bl_op_t op, bl_error_t *err) {
  bl_engine_chunk_t *chunk = bl_engine_find_chunk(execution->engine, op.virtual_stage);
  if (chunk->begun) {
    return BL_OK;
  }
  bl_status_t status = bl_replicas_wait_weights(execution->engine, chunk, &execution->stall, err);
  if (status == BL_OK) {
    status = bl_replicas_wait_weights_sent(execution->engine, chunk, &execution->stall, err);
  }
  if (status == BL_OK) {
    clear_gradients(chunk);
  }
  return status;
}

// Waits until everything that the operation reads has arrived, and what it writes is free.
static bl_status_t wait_ready(execution_t *execution, size_t index, const bl_planned_op_t *op, bl_error_t *err) {
  bl_status_t status = bl_edges_post(&execution->edges, index, err);
  if (status == BL_OK && bl_op_type_starts_backward((bl_op_type_t)op->op.type)) {
    status = begin_backward(execution, op->op, err);
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
  const execution_t *execution = context;
  return atomic_load_explicit(&execution->progress->cancelled, memory_order_relaxed);
}

static void give_core(execution_t *execution) {
  if (execution->has_core) {
    bl_core_tokens_release(execution->engine->core_tokens);
    execution->has_core = false;
  }
}

// Called before every wait. Until then the stage has kept the core of its last operation: without one, its sends and
// checksums would compete with the operation of another stage on the same processor.
static void before_wait(void *context) {
  execution_t *execution = context;
  if (!execution->computes) {
    give_core(execution);
  }
}

// Takes a core to compute on, if stages share cores. A wait inside an operation is one of many and is not traced.
static bl_status_t take_core(execution_t *execution, uint32_t micro_batch, bool inside, bl_error_t *err) {
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
  execution_t *execution;
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

static void count_slots(execution_t *execution, const bl_planned_op_t *op) {
  bl_stage_counters_t *counters = &execution->vote->counters;
  if (takes_slot(op)) {
    uint32_t in_use = ++execution->stall.slots_in_use;
    counters->peak_slots = in_use > counters->peak_slots ? in_use : counters->peak_slots;
  }
  atomic_store_explicit(&execution->progress->slots, execution->stall.slots_in_use, memory_order_relaxed);
}

static bl_status_t run_operation(execution_t *execution, size_t index, bl_error_t *err) {
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
  uint64_t start_ns = bl_clock_now_ns(), stalled_ns = execution->stall.total_ns;
  execution->core_inside_ns = 0;
  bl_timeline_t *timeline = computes ? engine->timeline : NULL;
  status = bl_timeline_start(timeline, err);
  execution->computes = computes;
  if (status == BL_OK) {
    status = compute(execution, op, err);
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
  bl_op_format_slice(op->op, slices_of(execution) > 1, cell);
  if (timeline != NULL) { // the time in which the CPU queued it does not matter
    status = status == BL_OK
                 ? bl_timeline_stop(timeline, cell, (int32_t)op->op.micro_batch, execution->stall.slots_in_use, err)
                 : status;
  } else {
    // E and L trace their waits themselves.
    const uint64_t waited_ns = computes ? execution->stall.total_ns - stalled_ns - execution->core_inside_ns : 0;
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

// Requests the squares of all gradients. They are in engine->squares when all work has ended.
static void ask_squares(execution_t *execution) {
  bl_engine_t *engine = execution->engine;
  bl_vote_t *vote = execution->vote;
  for (uint32_t c = 0; c < engine->chunk_count; c++) {
    bl_chunk_t *chunk = engine->chunks[c].chunk;
    for (uint32_t k = 0; k < bl_chunk_parameter_count(chunk); k++) {
      const bl_chunk_parameter_t parameter = bl_chunk_parameter(chunk, k);
      const bl_shard_shares_t shares = bl_chunk_shares(chunk, k);
      if (!parameter.owned || (!parameter.cut && engine->coords.tensor > 0)) {
        continue;
      }
      bl_chunk_ask_squares(chunk, k, &engine->squares[vote->square_count]);
      for (uint32_t i = 0; i < shares.count; i++) {
        vote->parameter_indices[vote->square_count++] =
            bl_square_number(&engine->training.grid, parameter.parameter.index, parameter.part, shares.first + i);
      }
    }
    bl_chunk_make_squares(chunk);
  }
}

static void collect_squares(execution_t *execution) {
  bl_vote_t *vote = execution->vote;
  for (uint32_t i = 0; i < vote->square_count; i++) {
    vote->squares[i] = execution->engine->squares[i];
    vote->finite = vote->finite && isfinite(vote->squares[i]);
  }
}

// Adds the two parts of a tied gradient, on one stage or two. Both holders get the same bits.
static bl_status_t join_tied(execution_t *execution, bl_error_t *err) {
  bl_engine_t *engine = execution->engine;
  if (engine->tied_partner != NULL) { // the first join changes its part, but the second join needs that part unchanged
    bl_status_t status =
        bl_device_copy(engine->device, engine->stream, engine->tied_part, bl_chunk_tied_gradient(engine->tied),
                       bl_chunk_tied_elements(engine->tied) * sizeof(float), err);
    if (status != BL_OK) {
      return status;
    }
    bl_chunk_join_tied_gradient(engine->tied, bl_chunk_tied_gradient(engine->tied_partner));
    bl_chunk_join_tied_gradient(engine->tied_partner, engine->tied_part);
    return BL_OK;
  }
  if (engine->tied != NULL) {
    bl_status_t status = bl_edges_exchange_tied(&execution->edges, err);
    if (status == BL_OK) {
      bl_chunk_join_tied_gradient(engine->tied, engine->tied_part);
    }
    return status;
  }
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    if (bl_chunk_has_tied_gradient(engine->chunks[i].chunk)) {
      bl_chunk_join_tied_gradient(engine->chunks[i].chunk, NULL);
    }
  }
  return BL_OK;
}

static bl_status_t finish_gradients(execution_t *execution, bl_error_t *err) {
  bl_engine_t *engine = execution->engine;
  uint64_t start_ns = bl_clock_now_ns(), stalled_ns = execution->stall.total_ns;
  // Peers may need sends that the device has not reached before they can finish theirs.
  bl_status_t status = engine->shared_count > 0 ? bl_edges_finish(&execution->edges, err) : BL_OK;
  if (status == BL_OK) {
    status = bl_replicas_reduce(engine, &execution->stall, err);
  }
  if (status == BL_OK) { // of the device's time, the additions of a reduction count as waits
    status = bl_timeline_start(engine->timeline, err);
  }
  if (status == BL_OK) {
    status = join_tied(execution, err);
  }
  for (uint32_t i = 0; i < engine->chunk_count && status == BL_OK; i++) {
    bl_chunk_sum_norms(engine->chunks[i].chunk);
    status = bl_tensor_group_status(engine->tensor_group, err);
  }
  if (status != BL_OK) {
    return status;
  }
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    bl_chunk_land_rest(engine->chunks[i].chunk);
  }
  ask_squares(execution);
  if (engine->timeline == NULL) {
    execution->vote->counters.busy_ns += bl_clock_now_ns() - start_ns - (execution->stall.total_ns - stalled_ns);
  }
  return bl_timeline_stop(engine->timeline, "gradients", -1, execution->stall.slots_in_use, err);
}

// Waits for the device, once per run, and collects the results.
static bl_status_t finish(execution_t *execution, bl_error_t *err) {
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
  collect_losses(execution);
  collect_squares(execution);
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
static void come_to_rest(execution_t *execution) {
  bl_error_t ignored;
  bl_tensor_group_interrupt(execution->engine->tensor_group);
  if (execution->engine->stream != NULL && bl_engine_finish(execution->engine, &ignored) != BL_OK) {
    bl_log(BL_LOG_ERROR, "the device does not come to rest: %s", ignored.text);
  }
}

static void reset_vote(execution_t *execution) {
  const bl_engine_t *engine = execution->engine;
  bl_vote_t *vote = execution->vote;
  const bl_schedule_t *plan = execution->run->plan->schedule;
  bool head = head_pipe(execution) < plan->pipes;
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
  execution_t *execution = context;
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
  execution_t execution = {.engine = engine,
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
  if (status != BL_OK) {
    return status;
  }
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    engine->chunks[i].begun = false;
    if (run->id.kind == BL_RUN_TRAIN && !bl_engine_shares_masters(engine)) { // while the first input is on its way
      clear_gradients(&engine->chunks[i]);
    }
  }
  engine->meanwhile = (bl_engine_meanwhile_t){.give = give, .context = &execution};
  core_rest_t resting = {.execution = &execution};
  const bl_tensor_rest_t rest = {.context = &resting, .begin = begin_rest, .end = end_rest};
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
    status = finish_gradients(&execution, err);
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
