// SPDX-License-Identifier: Apache-2.0
// The gradients of a run: cleared before the first backward of a chunk, complete after the last operation.
#include "executor/execution.h"

#include "executor/replicas.h"
#include "executor/tensor_group.h"
#include "sys/clock.h"

#include <math.h>

void bl__gradients_clear(bl_engine_chunk_t *chunk) {
  bl_chunk_begin_step(chunk->chunk);
  chunk->begun = true;
}

bl_status_t bl__gradients_begin(bl__execution_t *execution, bl_op_t op, bl_error_t *err) {
  bl_engine_chunk_t *chunk = bl_engine_find_chunk(execution->engine, op.virtual_stage);
  if (chunk->begun) {
    return BL_OK;
  }
  bl_status_t status = bl_replicas_wait_weights(execution->engine, chunk, &execution->stall, err);
  if (status == BL_OK) {
    status = bl_replicas_wait_weights_sent(execution->engine, chunk, &execution->stall, err);
  }
  if (status == BL_OK) {
    bl__gradients_clear(chunk);
  }
  return status;
}

// Requests the squares of all gradients. They are in engine->squares when all work has ended.
static void ask_squares(bl__execution_t *execution) {
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

void bl__gradients_collect(bl__execution_t *execution) {
  bl_vote_t *vote = execution->vote;
  for (uint32_t i = 0; i < vote->square_count; i++) {
    vote->squares[i] = execution->engine->squares[i];
    vote->finite = vote->finite && isfinite(vote->squares[i]);
  }
}

// Adds the two parts of a tied gradient, on one stage or two. Both holders get the same bits.
static bl_status_t join_tied(bl__execution_t *execution, bl_error_t *err) {
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

bl_status_t bl__gradients_finish(bl__execution_t *execution, bl_error_t *err) {
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
