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
} pass_t;

static const bl_chunk_span_t *span_of(const pass_t *pass, bl_op_t op) {
  return &pass->engine->training.partition.spans[op.virtual_stage];
}

// ---- data

static uint32_t slices_of(const pass_t *pass) {
  return pass->engine->training.schedule->slices;
}

// Tokens of a sequence in one block.
static uint32_t tokens_of(const pass_t *pass) {
  return pass->engine->training.model.seq / slices_of(pass);
}

static uint32_t unit_of(const pass_t *pass, bl_op_t op) {
  return bl_schedule_unit(pass->engine->training.schedule, op.micro_batch, op.slice);
}

// Reads the context for a drawn token: row 0 of the batch; zeros after it and in other rows. For a slice, the tokens in
// it.
static bl_status_t read_context(pass_t *pass, bl_op_t op, int32_t *tokens, bl_error_t *err) {
  const bl_run_t *run = pass->run;
  const bl_model_t *model = &pass->engine->training.model;
  if (run->token_count == 0 || run->token_count > model->seq) {
    return bl_error_set(err, BL_INVALID, "a context has 1 to %u tokens, this one has %u", model->seq, run->token_count);
  }
  const uint32_t count = tokens_of(pass), first = op.slice * count;
  memset(tokens, 0, (size_t)pass->engine->job.train.micro_batch * count * sizeof(int32_t));
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

static bl_status_t read_batch(pass_t *pass, bl_op_t op, bl_batch_t batch, bl_error_t *err) {
  const bl_dataset_t *dataset = &pass->engine->training.dataset;
  batch.count = tokens_of(pass);
  batch.first = op.slice * batch.count;
  const uint32_t micro_batch =
      op.micro_batch + bl_engine_first_micro_batch(pass->engine, pass->run->plan->schedule->micro_batches);
  return pass->run->id.kind == BL_RUN_TRAIN
             ? bl_batch_read(dataset, pass->run->id.step, micro_batch, &batch, err)
             : bl_batch_read_validation(dataset, pass->run->first_window, micro_batch, &batch, err);
}

// Returns the tokens or labels of a block in `all`.
static int32_t *batch_of(const pass_t *pass, int32_t *all, bl_op_t op) {
  const bl_engine_t *engine = pass->engine;
  const uint64_t size = (uint64_t)engine->job.train.micro_batch * tokens_of(pass);
  return all + unit_of(pass, op) % (engine->batch_count * slices_of(pass)) * size;
}

// Whether F has read the tokens of this micro-batch in this run, and they are still in their buffer.
static bool has_tokens(const pass_t *pass, bl_op_t op) {
  return op.type != BL_OP_F && pass->engine->batch_count > 1;
}

// Reads tokens for the chunk with the embedding; NULL for others.
static bl_status_t read_tokens(pass_t *pass, bl_op_t op, const int32_t **tokens, bl_error_t *err) {
  *tokens = NULL;
  if (!span_of(pass, op)->embedding) {
    return BL_OK;
  }
  int32_t *inputs = batch_of(pass, pass->engine->tokens, op);
  *tokens = inputs;
  if (pass->run->id.kind == BL_RUN_GENERATE) {
    return read_context(pass, op, inputs, err);
  }
  return has_tokens(pass, op) ? BL_OK : read_batch(pass, op, (bl_batch_t){.inputs = inputs}, err);
}

// Reads labels for the chunk with the head; NULL for others.
static bl_status_t read_labels(pass_t *pass, bl_op_t op, const int32_t **labels, bl_error_t *err) {
  *labels = NULL;
  if (!span_of(pass, op)->head) {
    return BL_OK;
  }
  int32_t *read = batch_of(pass, pass->engine->labels, op);
  *labels = read;
  return read_batch(pass, op, (bl_batch_t){.labels = read}, err);
}

// ---- operations

// The pipe of the plan whose last chunk, with the head, is on this stage; the number of pipes: none.
static uint32_t head_pipe(const pass_t *pass) {
  const bl_schedule_t *plan = pass->run->plan->schedule;
  uint32_t pipe = 0;
  while (pipe < plan->pipes && plan->stage_of[(pipe + 1) * bl_schedule_depth(plan) - 1] != pass->engine->stage) {
    pipe++;
  }
  return pipe;
}

// Collects what the head has written, after all work has ended.
static void collect_losses(pass_t *pass) {
  bl_vote_t *vote = pass->vote;
  const bl_schedule_t *schedule = pass->engine->training.schedule;
  const uint32_t pipe = head_pipe(pass), begin = pipe * vote->loss_count, // each pipe has as many micro-batches
      first = begin + bl_engine_first_micro_batch(pass->engine, pass->run->plan->schedule->micro_batches);
  const bl_chunk_t *chunk = bl_engine_chunk(pass->engine, (pipe + 1) * bl_schedule_depth(schedule) - 1);
  for (uint32_t i = 0; i < vote->loss_count; i++) {
    const bl_chunk_loss_t *losses = &pass->engine->losses[(size_t)(begin + i) * slices_of(pass)];
    bool bad = false;
    for (uint32_t slice = 0; slice < slices_of(pass); slice++) {
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
static bl_status_t look_at_head(pass_t *pass, bl_chunk_t *chunk, const bl_planned_op_t *op, const void *out,
                                bl_error_t *err) {
  const bl_run_t *run = pass->run;
  if (run->id.kind == BL_RUN_VALIDATE) {
    const int32_t *labels;
    bl_status_t status = read_labels(pass, op->op, &labels, err);
    if (status == BL_OK) {
      bl_chunk_loss(chunk, labels, out, &pass->engine->losses[unit_of(pass, op->op)]);
    }
    return status;
  }
  const uint32_t row = run->token_count - 1;
  if (row / tokens_of(pass) != op->op.slice) {
    return BL_OK;
  }
  double uniform = bl_random_uniform(run->draw_seed, 0);
  pass->vote->token = bl_chunk_draw(chunk, out, row % tokens_of(pass), (float)run->temperature, uniform);
  pass->vote->finite = pass->vote->token >= 0;
  return BL_OK;
}

// NULL: the forward keeps nothing.
static void *slot_of(const bl_engine_t *engine, const bl_planned_op_t *op) {
  return op->slot == BL_NONE ? NULL : bl_engine_slot(engine, op->slot);
}

static bl_status_t forward(pass_t *pass, const bl_planned_op_t *op, bl_error_t *err) {
  bl_engine_t *engine = pass->engine;
  bl_chunk_t *chunk = bl_engine_chunk(engine, op->op.virtual_stage);
  const int32_t *tokens;
  bl_status_t status = read_tokens(pass, op->op, &tokens, err);
  if (status != BL_OK) {
    return status;
  }
  void *out = bl_engine_edge(engine, op->output);
  bl_parked_made(&pass->parked, op);
  bl_chunk_forward(chunk, tokens, bl_engine_edge(engine, op->input), slot_of(engine, op), out);
  if (pass->run->id.kind != BL_RUN_TRAIN && span_of(pass, op->op)->head) {
    return look_at_head(pass, chunk, op, out, err);
  }
  return bl_edges_send(&pass->edges, op, err);
}

// The backwards of a micro-batch end with its first slice.
static bool ends_micro_batch(bl_op_t op) {
  return op.slice == 0;
}

// Called after the last micro-batch of a part of the gradient. Both pipes have the same number of them.
static bl_status_t fold(pass_t *pass, bl_op_t op, bool head, bl_error_t *err) {
  const bl_schedule_t *plan = pass->run->plan->schedule;
  const uint32_t parts = bl_grid_copy_parts(&pass->engine->training.grid),
                 size = plan->micro_batches / (parts * plan->pipes);
  if (parts == 1 || !ends_micro_batch(op) || (op.micro_batch + 1u) % size != 0) {
    return BL_OK;
  }
  const uint32_t part = op.micro_batch / size - bl_schedule_pipe(plan, op.virtual_stage) * parts;
  return bl_chunk_fold(bl_engine_chunk(pass->engine, op.virtual_stage), head, bl_fold_merges(part), part + 1 == parts,
                       err);
}

static bl_status_t backward_input(pass_t *pass, const bl_planned_op_t *op, bl_error_t *err) {
  bl_engine_t *engine = pass->engine;
  const int32_t *labels;
  bl_status_t status = read_labels(pass, op->op, &labels, err);
  if (status != BL_OK) {
    return status;
  }
  bl_chunk_backward_input(bl_engine_chunk(engine, op->op.virtual_stage), labels, bl_engine_edge(engine, op->input),
                          slot_of(engine, op), bl_engine_edge(engine, op->output), true,
                          &engine->losses[unit_of(pass, op->op)]);
  status = bl_edges_send(&pass->edges, op, err);
  return status == BL_OK ? fold(pass, op->op, true, err) : status;
}

static bl_status_t backward_weight(pass_t *pass, const bl_planned_op_t *op, bl_error_t *err) {
  bl_engine_t *engine = pass->engine;
  const int32_t *tokens;
  bl_status_t status = read_tokens(pass, op->op, &tokens, err);
  const bl_schedule_t *plan = pass->run->plan->schedule;
  // Of the micro-batches of the chunk.
  const uint32_t end = plan->micro_batches / plan->pipes * (bl_schedule_pipe(plan, op->op.virtual_stage) + 1);
  const bool last = ends_micro_batch(op->op) && op->op.micro_batch + 1u == end;
  if (status == BL_OK && last) {
    bl_chunk_expect_last(bl_engine_chunk(engine, op->op.virtual_stage));
  }
  if (status == BL_OK) {
    bl_chunk_backward_weight(bl_engine_chunk(engine, op->op.virtual_stage), tokens, bl_engine_edge(engine, op->input),
                             slot_of(engine, op), bl_engine_edge(engine, op->output));
    status = fold(pass, op->op, false, err);
  }
  if (status == BL_OK && last) {
    status = bl_replicas_send_gradients(engine, bl_engine_find_chunk(engine, op->op.virtual_stage), err);
  }
  return status;
}

// Needs only the kept input: it restores the same bits, whatever the reason why the block is missing.
static void recompute(const pass_t *pass, const bl_planned_op_t *op) {
  bl_engine_t *engine = pass->engine;
  if (pass->run->plan->schedule->forward_slots) { // dropped by the plan, not by pipeline.recompute
    pass->vote->counters.dropped++;
    pass->vote->counters.recomputed++;
  }
  bl_chunk_recompute(bl_engine_chunk(engine, op->op.virtual_stage), bl_engine_edge(engine, op->input),
                     slot_of(engine, op));
}

static bl_status_t compute(pass_t *pass, const bl_planned_op_t *op, bl_error_t *err) {
  if (bl_op_type_computes((bl_op_type_t)op->op.type)) {
    bl_kv_cache_use(pass->engine, pass->run->plan, op->op);
  }
  switch (op->op.type) {
  case BL_OP_F:
    return forward(pass, op, err);
  case BL_OP_I:
    return backward_input(pass, op, err);
  case BL_OP_W:
    return backward_weight(pass, op, err);
  case BL_OP_B: { // the gradient is sent before W, so that the previous stage does not wait for W
    bl_status_t status = backward_input(pass, op, err);
    return status == BL_OK ? backward_weight(pass, op, err) : status;
  }
  case BL_OP_R:
    recompute(pass, op);
    return BL_OK;
  case BL_OP_E:
    return bl_parked_evict(&pass->parked, op, err);
  case BL_OP_L:
    return bl_parked_load(&pass->parked, op, err);
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
static bl_status_t begin_backward(pass_t *pass, bl_op_t op, bl_error_t *err) {
  bl_engine_chunk_t *chunk = bl_engine_find_chunk(pass->engine, op.virtual_stage);
  if (chunk->begun) {
    return BL_OK;
  }
  bl_status_t status = bl_replicas_wait_weights(pass->engine, chunk, &pass->stall, err);
  if (status == BL_OK) {
    status = bl_replicas_wait_left(pass->engine, chunk, &pass->stall, err);
  }
  if (status == BL_OK) {
    clear_gradients(chunk);
  }
  return status;
}

// Waits until everything that the operation reads has arrived, and what it writes is free.
static bl_status_t wait_ready(pass_t *pass, size_t index, const bl_planned_op_t *op, bl_error_t *err) {
  bl_status_t status = bl_edges_post(&pass->edges, index, err);
  if (status == BL_OK && bl_op_type_starts_backward((bl_op_type_t)op->op.type)) {
    status = begin_backward(pass, op->op, err);
  }
  if (status == BL_OK) {
    status = bl_parked_reap(&pass->parked, index, err);
  }
  if (status == BL_OK && takes_slot(op)) {
    status = bl_parked_wait_slot(&pass->parked, op->slot, err);
  }
  if (status == BL_OK && bl_op_type_starts_backward((bl_op_type_t)op->op.type)) {
    status = bl_parked_wait_block(&pass->parked, op, err); // while the gradient is being received
  }
  return status == BL_OK ? bl_edges_wait(&pass->edges, op, err) : status;
}

static bool cancelled(void *context) {
  const pass_t *pass = context;
  return atomic_load_explicit(&pass->progress->cancelled, memory_order_relaxed);
}

static void give_core(pass_t *pass) {
  if (pass->has_core) {
    bl_core_tokens_release(pass->engine->core_tokens);
    pass->has_core = false;
  }
}

// Called before every wait. Until then the stage has kept the core of its last operation: without one, its sends and
// checksums would compete with the operation of another stage on the same processor.
static void before_wait(void *context) {
  pass_t *pass = context;
  if (!pass->computes) {
    give_core(pass);
  }
}

// Takes a core to compute on, if stages share cores. A wait inside an operation is one of many and is not traced.
static bl_status_t take_core(pass_t *pass, uint32_t micro_batch, bool inside, bl_error_t *err) {
  if (pass->engine->core_tokens == NULL || (pass->has_core && bl_core_tokens_keep(pass->engine->core_tokens))) {
    pass->core_micro_batch = micro_batch;
    return BL_OK;
  }
  uint64_t start_ns = bl_stall_begin(&pass->stall);
  atomic_store_explicit(&pass->progress->core_micro_batch, micro_batch, memory_order_relaxed);
  atomic_store_explicit(&pass->progress->core_since_ns, start_ns, memory_order_relaxed);
  bool taken = bl_core_tokens_acquire(pass->engine->core_tokens, cancelled, pass);
  pass->has_core = taken;
  pass->core_micro_batch = micro_batch;
  atomic_store_explicit(&pass->progress->core_since_ns, 0, memory_order_relaxed);
  if (inside) {
    const uint64_t before_ns = pass->stall.total_ns;
    bl_stall_count(&pass->stall, start_ns);
    pass->core_inside_ns += pass->stall.total_ns - before_ns;
  } else {
    bl_stall_end(&pass->stall, "core", micro_batch, start_ns);
  }
  return taken ? BL_OK : bl_error_set(err, BL_CANCELLED, "the attempt was aborted");
}

// For waits for a rank of the tensor group, which may need this core itself.
typedef struct core_rest {
  pass_t *pass;
  bool resting;
} core_rest_t;

static void begin_rest(void *context) {
  core_rest_t *rest = context;
  rest->resting = rest->pass->has_core;
  give_core(rest->pass);
}

static bl_status_t end_rest(void *context, bl_error_t *err) {
  core_rest_t *rest = context;
  return rest->resting ? take_core(rest->pass, rest->pass->core_micro_batch, true, err) : BL_OK;
}

static void count_slots(pass_t *pass, const bl_planned_op_t *op) {
  bl_stage_counters_t *counters = &pass->vote->counters;
  if (takes_slot(op)) {
    uint32_t in_use = ++pass->stall.slots_in_use;
    counters->peak_slots = in_use > counters->peak_slots ? in_use : counters->peak_slots;
  }
  atomic_store_explicit(&pass->progress->slots, pass->stall.slots_in_use, memory_order_relaxed);
}

static bl_status_t run_operation(pass_t *pass, size_t index, bl_error_t *err) {
  bl_engine_t *engine = pass->engine;
  const bl_planned_op_t *op = &pass->run->plan->stage.ops[index];
  const bool computes = bl_op_type_computes((bl_op_type_t)op->op.type);
  if (cancelled(pass)) {
    return bl_error_set(err, BL_CANCELLED, "the attempt was aborted");
  }
  bl_status_t status = bl_replicas_give(engine, err);
  if (status == BL_OK) {
    status = wait_ready(pass, index, op, err);
  }
  if (status == BL_OK && computes) {
    status = bl_replicas_wait_weights(engine, bl_engine_find_chunk(engine, op->op.virtual_stage), &pass->stall, err);
  }
  if (status == BL_OK && computes) {
    status = take_core(pass, op->op.micro_batch, false, err);
  }
  if (status != BL_OK) {
    return status;
  }
  count_slots(pass, op);
  uint64_t start_ns = bl_clock_now_ns(), stalled_ns = pass->stall.total_ns;
  pass->core_inside_ns = 0;
  bl_timeline_t *timeline = computes ? engine->timeline : NULL;
  status = bl_timeline_start(timeline, err);
  pass->computes = computes;
  if (status == BL_OK) {
    status = compute(pass, op, err);
  }
  pass->computes = false;
  if (status == BL_OK) {
    status = engine->ops->status(engine->compute, err);
  }
  if (status == BL_OK) {
    status = bl_tensor_group_status(engine->tensor_group, err);
  }
  uint64_t end_ns = bl_clock_now_ns();
  if (op->op.type != BL_OP_E) { // E frees its slot when the block has left
    pass->stall.slots_in_use -= op->releases_slot;
  }
  char cell[BL_OP_TEXT];
  bl_op_format_slice(op->op, slices_of(pass) > 1, cell);
  if (timeline != NULL) { // the time in which the CPU queued it does not matter
    status = status == BL_OK
                 ? bl_timeline_stop(timeline, cell, (int32_t)op->op.micro_batch, pass->stall.slots_in_use, err)
                 : status;
  } else {
    // E and L trace their waits themselves.
    const uint64_t waited_ns = computes ? pass->stall.total_ns - stalled_ns - pass->core_inside_ns : 0;
    bl_trace_add_operation(engine->trace, cell, (int32_t)op->op.micro_batch, pass->stall.slots_in_use, start_ns, end_ns,
                           waited_ns);
  }
  if (computes && timeline == NULL) { // E and L count their own time
    pass->vote->counters.busy_ns += end_ns - start_ns - (pass->stall.total_ns - stalled_ns);
  }
  atomic_store_explicit(&pass->progress->done, (uint32_t)index + 1, memory_order_relaxed);
  return status;
}

// ---- a whole run

// Requests the squares of all gradients. They are in engine->squares when all work has ended.
static void ask_squares(pass_t *pass) {
  bl_engine_t *engine = pass->engine;
  bl_vote_t *vote = pass->vote;
  for (uint32_t c = 0; c < engine->chunk_count; c++) {
    bl_chunk_t *chunk = engine->chunks[c].chunk;
    for (uint32_t k = 0; k < bl_chunk_parameter_count(chunk); k++) {
      const bl_chunk_parameter_t parameter = bl_chunk_parameter(chunk, k);
      const bl_shard_shares_t shares = bl_chunk_shares(chunk, k);
      if (!parameter.owned || (!parameter.cut && engine->training.layout.layer_parts.rank > 0)) {
        continue;
      }
      bl_chunk_ask_squares(chunk, k, &engine->squares[vote->square_count]);
      for (uint32_t i = 0; i < shares.count; i++) {
        vote->parameters[vote->square_count++] =
            bl_square_number(&engine->training.grid, parameter.parameter.index, parameter.part, shares.first + i);
      }
    }
    bl_chunk_make_squares(chunk);
  }
}

static void collect_squares(pass_t *pass) {
  bl_vote_t *vote = pass->vote;
  for (uint32_t i = 0; i < vote->square_count; i++) {
    vote->squares[i] = pass->engine->squares[i];
    vote->finite = vote->finite && isfinite(vote->squares[i]);
  }
}

// Adds the two parts of a tied gradient, on one stage or two. Both holders get the same bits.
static bl_status_t join_tied(pass_t *pass, bl_error_t *err) {
  bl_engine_t *engine = pass->engine;
  if (engine->tied_twin != NULL) { // the first join changes its own part, but the second join needs that part unchanged
    bl_status_t status =
        bl_device_copy(engine->device, engine->stream, engine->tied_part, bl_chunk_tied_gradient(engine->tied),
                       bl_chunk_tied_elements(engine->tied) * sizeof(float), err);
    if (status != BL_OK) {
      return status;
    }
    bl_chunk_join_tied_gradient(engine->tied, bl_chunk_tied_gradient(engine->tied_twin));
    bl_chunk_join_tied_gradient(engine->tied_twin, engine->tied_part);
    return BL_OK;
  }
  if (engine->tied != NULL) {
    bl_status_t status = bl_edges_exchange_tied(&pass->edges, err);
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

static bl_status_t finish_gradients(pass_t *pass, bl_error_t *err) {
  bl_engine_t *engine = pass->engine;
  uint64_t start_ns = bl_clock_now_ns(), stalled_ns = pass->stall.total_ns;
  // Peers may need sends that the device has not reached before they can finish theirs.
  bl_status_t status = engine->shared_count > 0 ? bl_edges_finish(&pass->edges, err) : BL_OK;
  if (status == BL_OK) {
    status = bl_replicas_reduce(engine, &pass->stall, err);
  }
  if (status == BL_OK) { // of the device's time, the additions of a reduction count as waits
    status = bl_timeline_start(engine->timeline, err);
  }
  if (status == BL_OK) {
    status = join_tied(pass, err);
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
  ask_squares(pass);
  if (engine->timeline == NULL) {
    pass->vote->counters.busy_ns += bl_clock_now_ns() - start_ns - (pass->stall.total_ns - stalled_ns);
  }
  return bl_timeline_stop(engine->timeline, "gradients", -1, pass->stall.slots_in_use, err);
}

// Waits for the device, once per run, and collects the results.
static bl_status_t finish(pass_t *pass, bl_error_t *err) {
  bl_engine_t *engine = pass->engine;
  bl_stage_counters_t *counters = &pass->vote->counters;
  bl_status_t status = bl_edges_finish(&pass->edges, err);
  if (status == BL_OK) {
    status = bl_engine_finish(engine, err);
  }
  if (status == BL_OK) {
    status = bl_tensor_group_finish(engine->tensor_group, err);
  }
  if (status == BL_OK) {
    status = bl_parked_judge(&pass->parked, err);
  }
  if (status != BL_OK) {
    return status;
  }
  collect_losses(pass);
  collect_squares(pass);
  counters->stall_ns = pass->stall.total_ns;
  if (engine->timeline != NULL) { // the CPU's own waits do not measure the device
    bl_timeline_sums_t sums;
    status = bl_timeline_read(engine->timeline, engine->trace, &sums, err);
    counters->busy_ns = sums.busy_ns;
    counters->stall_ns = sums.idle_ns;
  }
  return status;
}

// Called after a run that failed. Waits until the device is idle, so that its work does not write during the next run.
static void come_to_rest(pass_t *pass) {
  bl_error_t ignored;
  bl_tensor_group_interrupt(pass->engine->tensor_group);
  if (pass->engine->stream != NULL && bl_engine_finish(pass->engine, &ignored) != BL_OK) {
    bl_log(BL_LOG_ERROR, "the device does not come to rest: %s", ignored.text);
  }
}

static void reset_vote(pass_t *pass) {
  const bl_engine_t *engine = pass->engine;
  bl_vote_t *vote = pass->vote;
  const bl_schedule_t *plan = pass->run->plan->schedule;
  bool head = head_pipe(pass) < plan->pipes;
  uint32_t micro_batches = plan->micro_batches / plan->pipes;
  head = head && engine->training.layout.layer_parts.rank == 0; // all tensor ranks have the same losses
  uint32_t losses = head && pass->run->id.kind != BL_RUN_GENERATE ? micro_batches : 0;
  uint64_t micro_batch_tokens = (uint64_t)engine->job.train.micro_batch * engine->training.model.seq;
  *vote = (bl_vote_t){.step = pass->run->id.step,
                      .attempt = pass->run->id.attempt,
                      .plan_version = pass->run->id.plan_version,
                      .finite = true,
                      .nonfinite_micro_batch = -1,
                      .losses = vote->losses,
                      .loss_count = losses,
                      .parameters = vote->parameters,
                      .squares = vote->squares,
                      .leased_peaks = vote->leased_peaks,
                      .tokens = losses * micro_batch_tokens,
                      .token = -1,
                      .counters = {.own_slots = engine->slots.count}};
  memset(vote->losses, 0, losses * sizeof *vote->losses);
}

// For waits that need something else first (engine.h).
static bl_status_t give(void *context, bool *pending, bl_error_t *err) {
  pass_t *pass = context;
  bl_status_t status = bl_edges_give(&pass->edges, err);
  status = status == BL_OK ? bl_replicas_give(pass->engine, err) : status;
  *pending = pass->edges.held > 0;
  for (uint32_t i = 0; i < pass->engine->chunk_count; i++) {
    *pending = *pending || pass->engine->chunks[i].held;
  }
  return status;
}

bl_status_t bl_executor_run(bl_engine_t *engine, const bl_run_t *run, bl_run_progress_t *progress, bl_vote_t *vote,
                            bl_error_t *err) {
  const bl_stage_plan_t *plan = &run->plan->stage;
  pass_t pass = {.engine = engine,
                 .run = run,
                 .progress = progress,
                 .vote = vote,
                 .stall = {.trace = engine->trace, .wait_since_ns = &progress->wait_since_ns}};
  pass.stall.before = before_wait;
  pass.stall.context = &pass;
  pass.edges = (bl_edges_t){.engine = engine, .plan = plan, .stall = &pass.stall};
  pass.parked = (bl_parked_t){.engine = engine,
                              .stall = &pass.stall,
                              .counters = &vote->counters,
                              .attempt = run->id.attempt,
                              .plan = run->plan};
  reset_vote(&pass);
  bl_trace_clear(engine->trace);
  bl_status_t status = bl_edges_begin(&pass.edges, run->id.attempt, err);
  if (status == BL_OK) {
    status = bl_parked_begin(&pass.parked, err);
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
  engine->meanwhile = (bl_engine_meanwhile_t){.give = give, .context = &pass};
  core_rest_t resting = {.pass = &pass};
  const bl_tensor_rest_t rest = {.context = &resting, .begin = begin_rest, .end = end_rest};
  status = bl_tensor_group_begin(engine->tensor_group, run->id.attempt, &progress->cancelled, &pass.stall, &rest, err);
  if (status == BL_OK) {
    status = bl_replicas_begin(engine, err);
  }
  for (size_t i = 0; i < plan->op_count && status == BL_OK; i++) {
    status = run_operation(&pass, i, err);
  }
  give_core(&pass);
  if (status == BL_OK && run->id.kind == BL_RUN_TRAIN) {
    status = finish_gradients(&pass, err);
  }
  if (status == BL_OK && engine->shadow.bytes > 0) { // the next attempt may begin before peers have ended this one
    status = bl_edges_wait_all_sent(&pass.edges, err);
  }
  if (status == BL_OK) {
    status = bl_replicas_finish(engine, &pass.stall, run->id.kind == BL_RUN_TRAIN, err);
  }
  if (status == BL_OK) {
    status = bl_tensor_group_wait_read(engine->tensor_group, err);
  }
  if (status == BL_OK) {
    status = finish(&pass, err);
  }
  engine->meanwhile = (bl_engine_meanwhile_t){0};
  if (status != BL_OK) {
    bl_parked_abort(&pass.parked);
    come_to_rest(&pass);
    vote->counters.stall_ns = pass.stall.total_ns;
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
