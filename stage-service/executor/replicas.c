// SPDX-License-Identifier: Apache-2.0
#include "executor/replicas.h"

#include "base/bytes.h"
#include "sys/clock.h"

// A peer that is alive but silent for this long is broken. The driver notices dead and stopped peers much earlier.
#define PEER_DEADLINE_NS (3600ull * BL_NS_PER_S)

static bl_tensor_key_t key_of(const bl_engine_t *engine, const bl_engine_shared_t *tensor, bl_direction_t direction) {
  const uint32_t depth = bl_schedule_depth(engine->training.schedule);
  return (bl_tensor_key_t){.boundary = engine->chunks[tensor->chunk].virtual_stage % depth,
                           .direction = direction,
                           .micro_batch = tensor->number};
}

// The number of this rank's copy of the tensor.
static uint32_t copy_of(const bl_engine_t *engine, const bl_engine_shared_t *tensor) {
  return engine->chunks[tensor->chunk].copy;
}

static bool is_here(const bl_engine_t *engine, const bl_engine_shared_t *tensor) {
  return tensor->owner == copy_of(engine, tensor);
}

static int32_t rank_of(const bl_engine_t *engine, const bl_engine_shared_t *tensor, uint32_t copy) {
  return (int32_t)bl_engine_copy_rank(engine, &engine->chunks[tensor->chunk], copy);
}

// The memory for what copy `from` sends of a gradient that is summed here.
static float *received_from(const bl_engine_t *engine, const bl_engine_shared_t *tensor, uint32_t from) {
  const uint64_t room = bl_align_up(tensor->elements, BL_CACHE_LINE_BYTES / sizeof(float));
  return tensor->received + (from < copy_of(engine, tensor) ? from : from - 1) * room;
}

typedef bl_status_t (*visit_fn)(bl_engine_t *engine, const bl_engine_shared_t *tensor, uint32_t copy, bl_error_t *err);

// Calls `visit` for every other copy of a tensor.
static bl_status_t for_each_other(bl_engine_t *engine, const bl_engine_shared_t *tensor, visit_fn visit,
                                  bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t c = 0; c < bl_engine_copies(engine) && status == BL_OK; c++) {
    status = c == copy_of(engine, tensor) ? BL_OK : visit(engine, tensor, c, err);
  }
  return status;
}

typedef bl_status_t (*transport_wait_fn)(bl_transport_t *transport, int32_t peer, bl_tensor_key_t key,
                                         uint64_t deadline_ns, bl_error_t *err);

static bl_status_t wait_for(bl_engine_t *engine, transport_wait_fn wait, const bl_engine_shared_t *tensor,
                            uint32_t copy, bl_direction_t direction, bl_error_t *err) {
  return wait(engine->transport, rank_of(engine, tensor, copy), key_of(engine, tensor, direction),
              bl_clock_now_ns() + PEER_DEADLINE_NS, err);
}

// ---- weights

static bl_status_t send_weight(bl_engine_t *engine, const bl_engine_shared_t *tensor, uint32_t copy, bl_error_t *err) {
  return bl_transport_post_send(engine->transport, rank_of(engine, tensor, copy), key_of(engine, tensor, BL_GATHER),
                                tensor->weight, tensor->elements * sizeof(float), err);
}

static bl_status_t post_weight(bl_engine_t *engine, const bl_engine_shared_t *tensor, bl_error_t *err) {
  if (is_here(engine, tensor)) {
    return for_each_other(engine, tensor, send_weight, err);
  }
  return bl_transport_post_receive(engine->transport, rank_of(engine, tensor, tensor->owner),
                                   key_of(engine, tensor, BL_GATHER), tensor->weight, tensor->elements * sizeof(float),
                                   err);
}

bl_status_t bl_replicas_begin(bl_engine_t *engine, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    engine->chunks[i].current = engine->shared_count == 0;
    engine->chunks[i].sent = engine->shared_count == 0;
  }
  for (uint32_t i = 0; i < engine->shared_count && status == BL_OK; i++) {
    status = engine->shared[i].weight != NULL ? post_weight(engine, &engine->shared[i], err) : BL_OK;
  }
  return status;
}

static bl_status_t receive_weights(bl_engine_t *engine, const bl_engine_chunk_t *chunk, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t k = 0; k < chunk->shared_count && status == BL_OK; k++) {
    const bl_engine_shared_t *tensor = &engine->shared[chunk->shared_first + k];
    if (tensor->weight != NULL && !is_here(engine, tensor)) {
      status = wait_for(engine, bl_transport_wait_received, tensor, tensor->owner, BL_GATHER, err);
    }
  }
  return status;
}

bl_status_t bl_replicas_wait_weights(bl_engine_t *engine, bl_engine_chunk_t *chunk, bl_stall_t *stall,
                                     bl_error_t *err) {
  if (chunk->current) {
    return BL_OK;
  }
  const uint64_t start_ns = bl_stall_begin(stall);
  bl_status_t status = receive_weights(engine, chunk, err);
  bl_stall_end(stall, "gather of weights", 0, start_ns);
  if (status == BL_OK) {
    bl_chunk_weights_changed(chunk->chunk);
    chunk->current = true;
  }
  return status;
}

// ---- gradients

static bl_status_t offer_room(bl_engine_t *engine, const bl_engine_shared_t *tensor, uint32_t copy, bl_error_t *err) {
  return bl_transport_post_receive(engine->transport, rank_of(engine, tensor, copy), key_of(engine, tensor, BL_REDUCE),
                                   received_from(engine, tensor, copy), tensor->elements * sizeof(float), err);
}

static bl_status_t post_gradient(bl_engine_t *engine, const bl_engine_shared_t *tensor, bl_error_t *err) {
  if (is_here(engine, tensor)) {
    return for_each_other(engine, tensor, offer_room, err);
  }
  return bl_transport_post_send(engine->transport, rank_of(engine, tensor, tensor->owner),
                                key_of(engine, tensor, BL_REDUCE), tensor->gradient, tensor->elements * sizeof(float),
                                err);
}

static float *sum_at(const bl_engine_t *engine, const bl_engine_shared_t *tensor, uint32_t copy) {
  return copy == copy_of(engine, tensor) ? tensor->gradient : received_from(engine, tensor, copy);
}

// All addends have arrived. Leaves the sum in this copy's own gradient.
static void add_up(bl_engine_t *engine, const bl_engine_shared_t *tensor) {
  const uint32_t count = bl_engine_copies(engine);
  for (uint32_t i = 0; i + 1 < count; i++) {
    const bl_fold_pair_t pair = bl_fold_pair(count, i, copy_of(engine, tensor));
    engine->ops->accumulate(engine->compute, tensor->elements, sum_at(engine, tensor, pair.from),
                            sum_at(engine, tensor, pair.to));
  }
}

bl_status_t bl_replicas_send_gradients(bl_engine_t *engine, bl_engine_chunk_t *chunk, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t k = 0; k < chunk->shared_count && !chunk->sent && status == BL_OK; k++) {
    status = post_gradient(engine, &engine->shared[chunk->shared_first + k], err);
  }
  chunk->sent = true;
  return status;
}

static bl_status_t wait_gradient(bl_engine_t *engine, const bl_engine_shared_t *tensor, uint32_t copy,
                                 bl_error_t *err) {
  return wait_for(engine, bl_transport_wait_received, tensor, copy, BL_REDUCE, err);
}

bl_status_t bl_replicas_reduce(bl_engine_t *engine, bl_stall_t *stall, bl_error_t *err) {
  bl_status_t status = BL_OK;
  if (engine->shared_count == 0) {
    return BL_OK;
  }
  const uint64_t start_ns = bl_stall_begin(stall);
  for (uint32_t i = 0; i < engine->shared_count && status == BL_OK; i++) {
    const bl_engine_shared_t *tensor = &engine->shared[i];
    if (is_here(engine, tensor)) {
      status = for_each_other(engine, tensor, wait_gradient, err);
    }
    if (status == BL_OK && is_here(engine, tensor)) {
      add_up(engine, tensor);
    }
  }
  bl_stall_end(stall, "reduction of gradients", 0, start_ns);
  return status;
}

// ---- the end

static bl_status_t wait_weight_sent(bl_engine_t *engine, const bl_engine_shared_t *tensor, uint32_t copy,
                                    bl_error_t *err) {
  return wait_for(engine, bl_transport_wait_sent, tensor, copy, BL_GATHER, err);
}

bl_status_t bl_replicas_settle(bl_engine_t *engine, bl_stall_t *stall, bool reduced, bl_error_t *err) {
  bl_status_t status = BL_OK;
  if (engine->shared_count == 0) {
    return BL_OK;
  }
  const uint64_t start_ns = bl_stall_begin(stall);
  for (uint32_t i = 0; i < engine->chunk_count && status == BL_OK; i++) { // forward-only runs leave out the second pipe
    status = engine->chunks[i].current ? BL_OK : receive_weights(engine, &engine->chunks[i], err);
  }
  for (uint32_t i = 0; i < engine->shared_count && status == BL_OK; i++) {
    const bl_engine_shared_t *tensor = &engine->shared[i];
    if (!is_here(engine, tensor)) {
      status = reduced ? wait_for(engine, bl_transport_wait_sent, tensor, tensor->owner, BL_REDUCE, err) : BL_OK;
    } else if (tensor->weight != NULL) {
      status = for_each_other(engine, tensor, wait_weight_sent, err);
    }
  }
  bl_stall_end(stall, "send to copies", 0, start_ns);
  return status;
}
