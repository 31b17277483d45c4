// SPDX-License-Identifier: Apache-2.0
// What an operation computes: it reads tokens or labels, runs a chunk, and passes its result on.
#include "executor/execution.h"

#include "base/random.h"
#include "data/batch.h"
#include "executor/kv_cache.h"
#include "executor/replicas.h"

#include <math.h>
#include <string.h>

static const bl_chunk_span_t *span_of(const bl__execution_t *execution, bl_op_t op) {
  return &execution->engine->training.partition.spans[op.virtual_stage];
}

// ---- data

// Tokens of a sequence in one block.
static uint32_t tokens_of(const bl__execution_t *execution) {
  return execution->engine->training.model.seq / bl__execution_slices(execution);
}

static uint32_t unit_of(const bl__execution_t *execution, bl_op_t op) {
  return bl_schedule_unit(execution->engine->training.schedule, op.micro_batch, op.slice);
}

// Reads the context for a drawn token: row 0 of the batch; zeros after it and in other rows. For a slice, the tokens in
// it.
static bl_status_t read_context(bl__execution_t *execution, bl_op_t op, int32_t *tokens, bl_error_t *err) {
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

static bl_status_t read_batch(bl__execution_t *execution, bl_op_t op, bl_batch_t batch, bl_error_t *err) {
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
static int32_t *batch_of(const bl__execution_t *execution, int32_t *all, bl_op_t op) {
  const bl_engine_t *engine = execution->engine;
  const uint64_t size = (uint64_t)engine->job.train.micro_batch * tokens_of(execution);
  return all + unit_of(execution, op) % (engine->batch_count * bl__execution_slices(execution)) * size;
}

// Whether F has read the tokens of this micro-batch in this run, and they are still in their buffer.
static bool has_tokens(const bl__execution_t *execution, bl_op_t op) {
  return op.type != BL_OP_F && execution->engine->batch_count > 1;
}

// Reads tokens for the chunk with the embedding; NULL for others.
static bl_status_t read_tokens(bl__execution_t *execution, bl_op_t op, const int32_t **tokens, bl_error_t *err) {
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
static bl_status_t read_labels(bl__execution_t *execution, bl_op_t op, const int32_t **labels, bl_error_t *err) {
  *labels = NULL;
  if (!span_of(execution, op)->head) {
    return BL_OK;
  }
  int32_t *read = batch_of(execution, execution->engine->labels, op);
  *labels = read;
  return read_batch(execution, op, (bl_batch_t){.labels = read}, err);
}

// ---- operations

uint32_t bl__execution_head_pipe(const bl__execution_t *execution) {
  const bl_schedule_t *plan = execution->run->plan->schedule;
  uint32_t pipe = 0;
  while (pipe < plan->pipes &&
         plan->stage_of[(pipe + 1) * bl_schedule_depth(plan) - 1] != execution->engine->coords.stage) {
    pipe++;
  }
  return pipe;
}

// Returns the chunk with the head; NULL: another stage has it.
static bl_chunk_t *head_chunk(const bl__execution_t *execution) {
  const bl_engine_t *engine = execution->engine;
  const uint32_t pipe = bl__execution_head_pipe(execution), depth = bl_schedule_depth(engine->training.schedule);
  return pipe < execution->run->plan->schedule->pipes ? bl_engine_chunk(engine, (pipe + 1) * depth - 1) : NULL;
}

bl_status_t bl__execution_count_labels(const bl__execution_t *execution, bl_error_t *err) {
  const bl_dataset_t *dataset = &execution->engine->training.dataset;
  const bl_run_id_t *run = &execution->run->id;
  bl_chunk_t *chunk = head_chunk(execution);
  uint64_t counted;
  if (!dataset->masked || run->kind == BL_RUN_GENERATE || chunk == NULL) {
    return BL_OK;
  }
  if (run->kind == BL_RUN_VALIDATE) {
    const bl_status_t status = bl_dataset_count_validation_labels(dataset, &counted, err);
    bl_chunk_set_counted(chunk, counted, bl_dataset_validation_micro_batches(dataset));
    return status;
  }
  const bl_status_t status = bl_dataset_count_labels(dataset, run->step - 1, &counted, err);
  bl_chunk_set_counted(chunk, counted, dataset->sampler.micro_batches);
  return status;
}

void bl__execution_collect_losses(bl__execution_t *execution) {
  bl_vote_t *vote = execution->vote;
  const uint32_t pipe = bl__execution_head_pipe(execution),
                 begin = pipe * vote->loss_count, // each pipe has as many micro-batches
      first = begin + bl_engine_first_micro_batch(execution->engine, execution->run->plan->schedule->micro_batches);
  const bl_chunk_t *chunk = head_chunk(execution);
  for (uint32_t i = 0; i < vote->loss_count; i++) {
    const bl_chunk_loss_t *losses = &execution->engine->losses[(size_t)(begin + i) * bl__execution_slices(execution)];
    bool bad = false;
    for (uint32_t slice = 0; slice < bl__execution_slices(execution); slice++) {
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
static bl_status_t look_at_head(bl__execution_t *execution, bl_chunk_t *chunk, const bl_planned_op_t *op,
                                const void *out, bl_error_t *err) {
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

static bl_status_t forward(bl__execution_t *execution, const bl_planned_op_t *op, bl_error_t *err) {
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
static bl_status_t fold(bl__execution_t *execution, bl_op_t op, bool head, bl_error_t *err) {
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

static bl_status_t backward_input(bl__execution_t *execution, const bl_planned_op_t *op, bl_error_t *err) {
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

static bl_status_t backward_weight(bl__execution_t *execution, const bl_planned_op_t *op, bl_error_t *err) {
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
static void recompute(const bl__execution_t *execution, const bl_planned_op_t *op) {
  bl_engine_t *engine = execution->engine;
  if (execution->run->plan->schedule->forward_slots) { // dropped by the plan, not by pipeline.recompute
    execution->vote->counters.dropped++;
    execution->vote->counters.recomputed++;
  }
  bl_chunk_recompute(bl_engine_chunk(engine, op->op.virtual_stage), bl_engine_edge(engine, op->input),
                     slot_of(engine, op));
}

bl_status_t bl__execution_compute(bl__execution_t *execution, const bl_planned_op_t *op, bl_error_t *err) {
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
