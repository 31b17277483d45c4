// SPDX-License-Identifier: Apache-2.0
#include "executor/replicas.h"

#include "base/bytes.h"
#include "sys/clock.h"

// A peer that is alive but silent for so long is broken. The driver notices dead and stopped ones much earlier.
#define PEER_DEADLINE_NS (3600ull * BL_NS_PER_S)

static int32_t rank_of(const bl_engine_t *engine, uint32_t replica) {
  const bl_seat_t seat = {.stage = engine->stage, .tensor = engine->training.layout.split.rank, .data = replica};
  return (int32_t)bl_grid_rank(&engine->training.grid, seat);
}

static bl_tensor_key_t key_of(uint32_t tensor, bl_direction_t direction) {
  return (bl_tensor_key_t){.boundary = tensor, .direction = direction};
}

static bool is_here(const bl_engine_t *engine, const bl_engine_shared_t *tensor) {
  return tensor->owner == engine->replica;
}

// What replica `from` sends of a gradient that is added here.
static float *received_from(const bl_engine_t *engine, const bl_engine_shared_t *tensor, uint32_t from) {
  const uint64_t room = bl_align_up(tensor->elements, BL_CACHE_LINE_BYTES / sizeof(float));
  return tensor->received + (from < engine->replica ? from : from - 1) * room;
}

typedef bl_status_t (*visit_fn)(bl_engine_t *engine, uint32_t tensor, uint32_t replica, bl_error_t *err);

// For every other replica of every tensor that is updated here.
static bl_status_t for_each_other(bl_engine_t *engine, uint32_t tensor, visit_fn visit, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t r = 0; r < engine->training.grid.data && status == BL_OK; r++) {
    status = r == engine->replica ? BL_OK : visit(engine, tensor, r, err);
  }
  return status;
}

typedef bl_status_t (*hub_wait_fn)(bl_hub_t *hub, int32_t peer, bl_tensor_key_t key, uint64_t deadline_ns,
                                   bl_error_t *err);

static bl_status_t wait_for(bl_engine_t *engine, hub_wait_fn wait, uint32_t replica, bl_tensor_key_t key,
                            bl_error_t *err) {
  return wait(engine->hub, rank_of(engine, replica), key, bl_clock_now_ns() + PEER_DEADLINE_NS, err);
}

// ---- weights

static bl_status_t send_weight(bl_engine_t *engine, uint32_t tensor, uint32_t replica, bl_error_t *err) {
  const bl_engine_shared_t *shared = &engine->shared[tensor];
  return bl_hub_post_send(engine->hub, rank_of(engine, replica), key_of(tensor, BL_GATHER), shared->weight,
                          shared->elements * sizeof(float), err);
}

static bl_status_t post_weight(bl_engine_t *engine, uint32_t tensor, bl_error_t *err) {
  const bl_engine_shared_t *shared = &engine->shared[tensor];
  if (is_here(engine, shared)) {
    return for_each_other(engine, tensor, send_weight, err);
  }
  return bl_hub_post_receive(engine->hub, rank_of(engine, shared->owner), key_of(tensor, BL_GATHER), shared->weight,
                             shared->elements * sizeof(float), err);
}

bl_status_t bl_replicas_begin(bl_engine_t *engine, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    engine->chunks[i].current = engine->shared_count == 0;
    engine->chunks[i].sent = engine->shared_count == 0;
  }
  for (uint32_t i = 0; i < engine->shared_count && status == BL_OK; i++) {
    status = engine->shared[i].weight != NULL ? post_weight(engine, i, err) : BL_OK;
  }
  return status;
}

bl_status_t bl_replicas_wait_weights(bl_engine_t *engine, bl_engine_chunk_t *chunk, bl_stall_t *stall,
                                     bl_error_t *err) {
  bl_status_t status = BL_OK;
  if (chunk->current) {
    return BL_OK;
  }
  const uint64_t start_ns = bl_stall_begin(stall);
  for (uint32_t k = 0; k < chunk->shared_count && status == BL_OK; k++) {
    const uint32_t i = chunk->shared_first + k;
    const bl_engine_shared_t *shared = &engine->shared[i];
    if (shared->weight != NULL && !is_here(engine, shared)) {
      status = wait_for(engine, bl_hub_wait_received, shared->owner, key_of(i, BL_GATHER), err);
    }
  }
  bl_stall_end(stall, "gather of weights", 0, start_ns);
  if (status == BL_OK) {
    bl_chunk_weights_changed(chunk->chunk);
    chunk->current = true;
  }
  return status;
}

// ---- gradients

static bl_status_t offer_room(bl_engine_t *engine, uint32_t tensor, uint32_t replica, bl_error_t *err) {
  const bl_engine_shared_t *shared = &engine->shared[tensor];
  return bl_hub_post_receive(engine->hub, rank_of(engine, replica), key_of(tensor, BL_REDUCE),
                             received_from(engine, shared, replica), shared->elements * sizeof(float), err);
}

static bl_status_t post_gradient(bl_engine_t *engine, uint32_t tensor, bl_error_t *err) {
  const bl_engine_shared_t *shared = &engine->shared[tensor];
  if (is_here(engine, shared)) {
    return for_each_other(engine, tensor, offer_room, err);
  }
  return bl_hub_post_send(engine->hub, rank_of(engine, shared->owner), key_of(tensor, BL_REDUCE), shared->gradient,
                          shared->elements * sizeof(float), err);
}

static float *sum_at(const bl_engine_t *engine, const bl_engine_shared_t *tensor, uint32_t replica) {
  return replica == engine->replica ? tensor->gradient : received_from(engine, tensor, replica);
}

// All have come; the sum ends in this replica's own gradient.
static void add_up(bl_engine_t *engine, const bl_engine_shared_t *tensor) {
  const uint32_t count = engine->training.grid.data;
  for (uint32_t i = 0; i + 1 < count; i++) {
    const bl_fold_pair_t pair = bl_fold_pair(count, i, engine->replica);
    engine->ops->accumulate(engine->compute, tensor->elements, sum_at(engine, tensor, pair.from),
                            sum_at(engine, tensor, pair.to));
  }
}

bl_status_t bl_replicas_send_gradients(bl_engine_t *engine, bl_engine_chunk_t *chunk, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t k = 0; k < chunk->shared_count && !chunk->sent && status == BL_OK; k++) {
    status = post_gradient(engine, chunk->shared_first + k, err);
  }
  chunk->sent = true;
  return status;
}

bl_status_t bl_replicas_reduce(bl_engine_t *engine, bl_stall_t *stall, bl_error_t *err) {
  bl_status_t status = BL_OK;
  if (engine->shared_count == 0) {
    return BL_OK;
  }
  const uint64_t start_ns = bl_stall_begin(stall);
  for (uint32_t i = 0; i < engine->shared_count && status == BL_OK; i++) {
    const bl_engine_shared_t *shared = &engine->shared[i];
    for (uint32_t r = 0; r < engine->training.grid.data && is_here(engine, shared) && status == BL_OK; r++) {
      if (r != engine->replica) {
        status = wait_for(engine, bl_hub_wait_received, r, key_of(i, BL_REDUCE), err);
      }
    }
    if (status == BL_OK && is_here(engine, shared)) {
      add_up(engine, shared);
    }
  }
  bl_stall_end(stall, "reduction of gradients", 0, start_ns);
  return status;
}

// ---- the end

bl_status_t bl_replicas_settle(bl_engine_t *engine, bl_stall_t *stall, bool reduced, bl_error_t *err) {
  bl_status_t status = BL_OK;
  if (engine->shared_count == 0) {
    return BL_OK;
  }
  const uint64_t start_ns = bl_stall_begin(stall);
  for (uint32_t i = 0; i < engine->shared_count && status == BL_OK; i++) {
    const bl_engine_shared_t *shared = &engine->shared[i];
    if (!is_here(engine, shared)) {
      status = reduced ? wait_for(engine, bl_hub_wait_sent, shared->owner, key_of(i, BL_REDUCE), err) : BL_OK;
      continue;
    }
    for (uint32_t r = 0; r < engine->training.grid.data && shared->weight != NULL && status == BL_OK; r++) {
      if (r != engine->replica) {
        status = wait_for(engine, bl_hub_wait_sent, r, key_of(i, BL_GATHER), err);
      }
    }
  }
  bl_stall_end(stall, "send to replicas", 0, start_ns);
  return status;
}
