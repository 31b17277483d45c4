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
                           .micro_batch = tensor->number,
                           .piece = tensor->owner};
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
  const uint64_t padded = bl_align_up(tensor->elements, BL_CACHE_LINE_BYTES / sizeof(float));
  return tensor->received + (from < copy_of(engine, tensor) ? from : from - 1) * padded;
}

// ---- memory of a device

static void *twin_of(const bl_engine_t *engine, const void *address) {
  const uint8_t *at = address;
  if (at >= engine->weights.base && at < engine->weights.base + engine->weights.bytes) {
    return engine->weight_twins.base + (at - engine->weights.base);
  }
  const uint64_t offset = (uint64_t)(at - engine->gradients.base);
  const uint64_t sums_bytes = engine->received_at - engine->sums_at; // have no twins
  return engine->gradient_twins.base + (offset < engine->received_at ? offset : offset - sums_bytes);
}

static bool staged(const bl_engine_t *engine, int32_t rank) {
  return !engine->device->host_memory && !bl_engine_is_direct(engine, (uint32_t)rank);
}

// The memory that the transport uses for a tensor of this rank.
static void *reached(const bl_engine_t *engine, int32_t rank, float *tensor) {
  return staged(engine, rank) ? twin_of(engine, tensor) : tensor;
}

// Copies a tensor to its twin, if this rank needs it there, after the work queued so far.
static bl_status_t copy_out(bl_engine_t *engine, int32_t rank, const float *from, uint64_t elements, bl_error_t *err) {
  return staged(engine, rank) ? bl_device_copy(engine->device, engine->stream, twin_of(engine, from), from,
                                               elements * sizeof(float), err)
                              : BL_OK;
}

// Copies what was received from its twin, before the work that is queued next.
static bl_status_t copy_in(bl_engine_t *engine, int32_t rank, float *to, uint64_t elements, bl_error_t *err) {
  return staged(engine, rank)
             ? bl_device_copy(engine->device, engine->stream, to, twin_of(engine, to), elements * sizeof(float), err)
             : BL_OK;
}

static bl_status_t wait_for_device(bl_engine_t *engine, const bl_engine_chunk_t *chunk, bl_error_t *err) {
  return bl_engine_wait(engine, chunk->computed, bl_clock_now_ns() + PEER_DEADLINE_NS, err);
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

static bl_status_t wait_for(bl_engine_t *engine, bl_engine_transport_wait_fn wait, const bl_engine_shared_t *tensor,
                            uint32_t copy, bl_direction_t direction, bl_error_t *err) {
  return bl_engine_wait_transport(engine, wait, rank_of(engine, tensor, copy), key_of(engine, tensor, direction),
                                  bl_clock_now_ns() + PEER_DEADLINE_NS, err);
}

static bl_status_t post_send(bl_engine_t *engine, const bl_engine_shared_t *tensor, uint32_t copy,
                             bl_direction_t direction, float *from, bl_error_t *err) {
  const int32_t rank = rank_of(engine, tensor, copy);
  return bl_transport_post_send(engine->transport, rank, key_of(engine, tensor, direction), reached(engine, rank, from),
                                tensor->elements * sizeof(float), err);
}

static bl_status_t post_receive(bl_engine_t *engine, const bl_engine_shared_t *tensor, uint32_t copy,
                                bl_direction_t direction, float *to, bl_error_t *err) {
  const int32_t rank = rank_of(engine, tensor, copy);
  return bl_transport_post_receive(engine->transport, rank, key_of(engine, tensor, direction),
                                   reached(engine, rank, to), tensor->elements * sizeof(float), err);
}

static bl_status_t receive(bl_engine_t *engine, const bl_engine_shared_t *tensor, uint32_t copy,
                           bl_direction_t direction, float *to, bl_error_t *err) {
  bl_status_t status = wait_for(engine, bl_transport_wait_received, tensor, copy, direction, err);
  return status == BL_OK ? copy_in(engine, rank_of(engine, tensor, copy), to, tensor->elements, err) : status;
}

// ---- weights

static bl_status_t copy_weight_out(bl_engine_t *engine, const bl_engine_shared_t *tensor, uint32_t copy,
                                   bl_error_t *err) {
  return copy_out(engine, rank_of(engine, tensor, copy), tensor->weight, tensor->elements, err);
}

// Between runs the device has no work that uses weights, so only copies to twins, and to where weights are sent from,
// must be waited for.
static bl_status_t copy_weights_out(bl_engine_t *engine, bl_error_t *err) {
  bl_status_t status = BL_OK;
  bool any = engine->shared_count > 0 && bl_engine_shares_masters(engine);
  for (uint32_t i = 0; i < engine->shared_count && status == BL_OK; i++) {
    const bl_engine_shared_t *tensor = &engine->shared[i];
    for (uint32_t c = 0; c < bl_engine_copies(engine); c++) {
      any = any || (c != copy_of(engine, tensor) && staged(engine, rank_of(engine, tensor, c)));
    }
    if (tensor->weight != NULL && is_here(engine, tensor)) {
      status = for_each_other(engine, tensor, copy_weight_out, err);
    }
  }
  return any && status == BL_OK ? bl_engine_finish(engine, err) : status;
}

static bl_status_t send_weight(bl_engine_t *engine, const bl_engine_shared_t *tensor, uint32_t copy, bl_error_t *err) {
  return post_send(engine, tensor, copy, BL_GATHER, tensor->weight, err);
}

static bl_status_t post_weight(bl_engine_t *engine, const bl_engine_shared_t *tensor, bl_error_t *err) {
  return is_here(engine, tensor) ? for_each_other(engine, tensor, send_weight, err)
                                 : post_receive(engine, tensor, tensor->owner, BL_GATHER, tensor->weight, err);
}

bl_status_t bl_replicas_begin(bl_engine_t *engine, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t i = 0; i < engine->chunk_count && status == BL_OK; i++) {
    bl_chunk_show_weights(engine->chunks[i].chunk);
    status = bl_chunk_status(engine->chunks[i].chunk, err);
    engine->chunks[i].current = engine->shared_count == 0;
    engine->chunks[i].sent_weights = engine->shared_count == 0;
    engine->chunks[i].sent = engine->shared_count == 0;
    engine->chunks[i].held = false;
  }
  if (status == BL_OK && !engine->device->host_memory) {
    status = copy_weights_out(engine, err);
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
      status = receive(engine, tensor, tensor->owner, BL_GATHER, tensor->weight, err);
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
    status = bl_chunk_status(chunk->chunk, err);
  }
  return status;
}

static bl_status_t wait_weight_sent(bl_engine_t *engine, const bl_engine_shared_t *tensor, uint32_t copy,
                                    bl_error_t *err) {
  return wait_for(engine, bl_transport_wait_sent, tensor, copy, BL_GATHER, err);
}

static bl_status_t wait_weights_sent(bl_engine_t *engine, bl_engine_chunk_t *chunk, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t k = 0; k < chunk->shared_count && !chunk->sent_weights && status == BL_OK; k++) {
    const bl_engine_shared_t *tensor = &engine->shared[chunk->shared_first + k];
    if (tensor->weight != NULL && is_here(engine, tensor)) {
      status = for_each_other(engine, tensor, wait_weight_sent, err);
    }
  }
  chunk->sent_weights = chunk->sent_weights || status == BL_OK;
  return status;
}

bl_status_t bl_replicas_wait_weights_sent(bl_engine_t *engine, bl_engine_chunk_t *chunk, bl_stall_t *stall,
                                          bl_error_t *err) {
  if (chunk->sent_weights) {
    return BL_OK;
  }
  const uint64_t start_ns = bl_stall_begin(stall);
  bl_status_t status = wait_weights_sent(engine, chunk, err);
  bl_stall_end(stall, "gather of weights", 0, start_ns);
  return status;
}

// ---- gradients

static bl_status_t receive_share(bl_engine_t *engine, const bl_engine_shared_t *tensor, uint32_t copy,
                                 bl_error_t *err) {
  return post_receive(engine, tensor, copy, BL_REDUCE, received_from(engine, tensor, copy), err);
}

typedef bl_status_t (*tensor_fn)(bl_engine_t *engine, const bl_engine_shared_t *tensor, bl_error_t *err);

static bl_status_t for_each_tensor(bl_engine_t *engine, const bl_engine_chunk_t *chunk, tensor_fn call,
                                   bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t k = 0; k < chunk->shared_count && status == BL_OK; k++) {
    status = call(engine, &engine->shared[chunk->shared_first + k], err);
  }
  return status;
}

static bl_status_t receive_gradient(bl_engine_t *engine, const bl_engine_shared_t *tensor, bl_error_t *err) {
  return is_here(engine, tensor) ? for_each_other(engine, tensor, receive_share, err) : BL_OK;
}

static bl_status_t copy_gradient_out(bl_engine_t *engine, const bl_engine_shared_t *tensor, bl_error_t *err) {
  return is_here(engine, tensor)
             ? BL_OK
             : copy_out(engine, rank_of(engine, tensor, tensor->owner), tensor->gradient, tensor->elements, err);
}

static bl_status_t send_gradient(bl_engine_t *engine, const bl_engine_shared_t *tensor, bl_error_t *err) {
  return is_here(engine, tensor) ? BL_OK : post_send(engine, tensor, tensor->owner, BL_REDUCE, tensor->gradient, err);
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

// The transport may send them once the device has computed them.
static bl_status_t hold_gradients(bl_engine_t *engine, bl_engine_chunk_t *chunk, bl_error_t *err) {
  bl_status_t status = for_each_tensor(engine, chunk, copy_gradient_out, err);
  status = status == BL_OK ? bl_device_event_record(engine->device, chunk->computed, engine->stream, err) : status;
  chunk->held = status == BL_OK;
  return status;
}

static bl_status_t give_gradients(bl_engine_t *engine, bl_engine_chunk_t *chunk, bl_error_t *err) {
  chunk->held = false;
  return for_each_tensor(engine, chunk, send_gradient, err);
}

bl_status_t bl_replicas_send_gradients(bl_engine_t *engine, bl_engine_chunk_t *chunk, bl_error_t *err) {
  if (chunk->sent) {
    return BL_OK;
  }
  chunk->sent = true;
  bl_status_t status = for_each_tensor(engine, chunk, receive_gradient, err);
  if (status != BL_OK) {
    return status;
  }
  return engine->device->host_memory ? give_gradients(engine, chunk, err) : hold_gradients(engine, chunk, err);
}

bl_status_t bl_replicas_give(bl_engine_t *engine, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t i = 0; i < engine->chunk_count && status == BL_OK; i++) {
    bool computed = false;
    if (engine->chunks[i].held) {
      status = bl_device_event_query(engine->device, engine->chunks[i].computed, &computed, err);
    }
    if (status == BL_OK && computed) {
      status = give_gradients(engine, &engine->chunks[i], err);
    }
  }
  return status;
}

// Gives the transport everything that it has not been given.
static bl_status_t give_rest(bl_engine_t *engine, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t i = 0; i < engine->chunk_count && status == BL_OK; i++) {
    if (engine->chunks[i].held) {
      status = wait_for_device(engine, &engine->chunks[i], err); // which may give them
      status = status == BL_OK && engine->chunks[i].held ? give_gradients(engine, &engine->chunks[i], err) : status;
    }
  }
  return status;
}

static bl_status_t wait_gradient(bl_engine_t *engine, const bl_engine_shared_t *tensor, uint32_t copy,
                                 bl_error_t *err) {
  return receive(engine, tensor, copy, BL_REDUCE, received_from(engine, tensor, copy), err);
}

bl_status_t bl_replicas_reduce(bl_engine_t *engine, bl_stall_t *stall, bl_error_t *err) {
  bl_status_t status = BL_OK;
  if (engine->shared_count == 0) {
    return BL_OK;
  }
  const uint64_t start_ns = bl_stall_begin(stall);
  status = give_rest(engine, err);
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

bl_status_t bl_replicas_finish(bl_engine_t *engine, bl_stall_t *stall, bool reduced, bl_error_t *err) {
  bl_status_t status = BL_OK;
  if (engine->shared_count == 0) {
    return BL_OK;
  }
  const uint64_t start_ns = bl_stall_begin(stall);
  for (uint32_t i = 0; i < engine->chunk_count && status == BL_OK; i++) { // forward-only runs leave out the second pipe
    status = engine->chunks[i].current ? BL_OK : receive_weights(engine, &engine->chunks[i], err);
  }
  for (uint32_t i = 0; i < engine->chunk_count && status == BL_OK; i++) {
    status = wait_weights_sent(engine, &engine->chunks[i], err);
  }
  for (uint32_t i = 0; i < engine->shared_count && reduced && status == BL_OK; i++) {
    const bl_engine_shared_t *tensor = &engine->shared[i];
    status = is_here(engine, tensor) ? BL_OK
                                     : wait_for(engine, bl_transport_wait_sent, tensor, tensor->owner, BL_REDUCE, err);
  }
  bl_stall_end(stall, "send to copies", 0, start_ns);
  return status;
}
