// SPDX-License-Identifier: Apache-2.0
#include "executor/edges.h"

#include <inttypes.h>
#include <stdio.h>

// A peer that is alive but silent for this long is broken. The driver notices dead and stopped peers much earlier.
#define PEER_DEADLINE_NS (3600ull * BL_NS_PER_S)

static bl_tensor_key_t key_of_receive(const bl_planned_receive_t *receive) {
  bool forward = receive->kind == BL_EDGE_X;
  return (bl_tensor_key_t){.boundary = forward ? receive->virtual_stage - 1u : receive->virtual_stage,
                           .direction = forward ? BL_FORWARD : BL_BACKWARD,
                           .micro_batch = receive->micro_batch,
                           .piece = receive->slice};
}

static bl_tensor_key_t key_of_send(const bl_planned_op_t *op) {
  bool forward = op->op.type == BL_OP_F;
  return (bl_tensor_key_t){.boundary = forward ? op->op.virtual_stage : op->op.virtual_stage - 1u,
                           .direction = forward ? BL_FORWARD : BL_BACKWARD,
                           .micro_batch = op->op.micro_batch,
                           .piece = op->op.slice};
}

// `what` ends in "from" or "to". The trace shows it followed by the peer.
static void end_wait(bl_edges_t *edges, const char *what, uint32_t peer, uint32_t micro_batch, uint64_t start_ns) {
  char name[BL_TRACE_NAME_BYTES];
  snprintf(name, sizeof name, "%s stage %" PRIu32, what, bl_grid_coords(&edges->engine->training.grid, peer).stage);
  bl_stall_end(edges->stall, name, micro_batch, start_ns);
}

// ---- what the device still uses

static bool staged(const bl_edges_t *edges, uint32_t peer) {
  return !edges->engine->device->host_memory && !bl_engine_is_direct(edges->engine, peer);
}

static bl_status_t give(bl_edges_t *edges, uint32_t buffer, bl_error_t *err) {
  bl_engine_t *engine = edges->engine;
  bl_edge_state_t *edge = &engine->edge_states[buffer];
  edge->held = false;
  edges->held--;
  const void *from = edge->direct ? bl_engine_edge(engine, buffer) : bl_engine_edge_twin(engine, buffer);
  return bl_transport_post_send(engine->transport, (int32_t)edge->peer, edge->key, from, edge->bytes, err);
}

static bl_status_t offer(bl_edges_t *edges, uint32_t buffer, bl_error_t *err) {
  bl_engine_t *engine = edges->engine;
  bl_edge_state_t *edge = &engine->edge_states[buffer];
  edge->wanted = false;
  edges->held--;
  return bl_transport_post_receive(engine->transport, (int32_t)edge->wanted_from, edge->wanted_key,
                                   bl_engine_edge(engine, buffer), engine->edge_bytes, err);
}

bl_status_t bl_edges_give(bl_edges_t *edges, bl_error_t *err) {
  const bl_engine_t *engine = edges->engine;
  bl_status_t status = BL_OK;
  for (uint32_t i = 0; i < engine->edge_count && edges->held > 0 && status == BL_OK; i++) {
    const bl_edge_state_t *edge = &engine->edge_states[i];
    bool there = false;
    if (edge->held) {
      status = bl_device_event_query(engine->device, edge->copied_out, &there, err);
      if (status == BL_OK && there) {
        status = give(edges, i, err);
      }
    }
    if (status == BL_OK && edge->wanted) {
      status = bl_device_event_query(engine->device, edge->taken, &there, err);
      if (status == BL_OK && there) {
        status = offer(edges, i, err);
      }
    }
  }
  return status;
}

// Sends the content of the buffer, directly or from its twin, after the work queued so far.
static bl_status_t let_out(bl_edges_t *edges, uint32_t buffer, bl_error_t *err) {
  bl_engine_t *engine = edges->engine;
  bl_edge_state_t *edge = &engine->edge_states[buffer];
  bl_device_stream_t *last = engine->stream;
  bl_status_t status = BL_OK;
  if (!edge->direct) {
    last = engine->copies;
    status = bl_device_event_record(engine->device, edge->ready, engine->stream, err);
    if (status == BL_OK) {
      status = bl_device_stream_wait_event(engine->device, engine->copies, edge->ready, err);
    }
    if (status == BL_OK) {
      status = bl_device_copy(engine->device, engine->copies, bl_engine_edge_twin(engine, buffer),
                              bl_engine_edge(engine, buffer), edge->bytes, err);
    }
  }
  if (status == BL_OK) {
    status = bl_device_event_record(engine->device, edge->copied_out, last, err);
  }
  edge->held = status == BL_OK;
  edges->held += edge->held;
  return status;
}

// Copies what the twin received into the buffer, before the work that is queued next.
static bl_status_t copy_in(bl_edges_t *edges, uint32_t buffer, bl_error_t *err) {
  bl_engine_t *engine = edges->engine;
  bl_status_t status = bl_device_copy(engine->device, engine->stream, bl_engine_edge(engine, buffer),
                                      bl_engine_edge_twin(engine, buffer), engine->edge_bytes, err);
  return status == BL_OK
             ? bl_device_event_record(engine->device, engine->edge_states[buffer].taken, engine->stream, err)
             : status;
}

// ---- one buffer

static bl_status_t wait_sent(bl_edges_t *edges, bl_edge_state_t *edge, uint64_t deadline_ns, bl_error_t *err) {
  if (edge->held) {
    bl_status_t status = bl_engine_wait(edges->engine, edge->copied_out, deadline_ns, err);
    if (status == BL_OK && edge->held) {
      status = give(edges, (uint32_t)(edge - edges->engine->edge_states), err);
    }
    if (status != BL_OK) {
      return status;
    }
  }
  return bl_engine_wait_transport(edges->engine, bl_transport_wait_sent, (int32_t)edge->peer, edge->key, deadline_ns,
                                  err);
}

// Waits until the last send from `buffer` has ended.
static bl_status_t wait_free(bl_edges_t *edges, uint32_t buffer, bl_error_t *err) {
  bl_edge_state_t *edge = &edges->engine->edge_states[buffer];
  if (!edge->pending) {
    return BL_OK;
  }
  const bool there = !edge->held && bl_transport_sent(edges->engine->transport, (int32_t)edge->peer, edge->key);
  uint64_t start_ns = there ? bl_clock_now_ns() : bl_stall_begin(edges->stall);
  bl_status_t status = wait_sent(edges, edge, start_ns + PEER_DEADLINE_NS, err);
  if (!there) {
    end_wait(edges, "send to", edge->peer, edge->key.micro_batch, start_ns);
  }
  edge->pending = status != BL_OK;
  return status;
}

static bl_status_t post_receive(bl_edges_t *edges, const bl_planned_receive_t *receive, bl_error_t *err) {
  bl_engine_t *engine = edges->engine;
  bl_edge_state_t *edge = &engine->edge_states[receive->buffer];
  const uint32_t from = bl_engine_rank_of(engine, receive->from);
  bl_status_t status = BL_OK;
  if (bl_engine_is_direct(engine, from)) {
    status = bl_device_event_record(engine->device, edge->taken, engine->stream, err);
    edge->wanted = status == BL_OK;
    edges->held += edge->wanted;
    edge->wanted_from = from;
    edge->wanted_key = key_of_receive(receive);
    return status;
  }
  if (staged(edges, from)) { // what the twin received before must have been copied
    status = bl_engine_wait(engine, edge->taken, bl_clock_now_ns() + PEER_DEADLINE_NS, err);
  }
  return status == BL_OK
             ? bl_transport_post_receive(engine->transport, (int32_t)from, key_of_receive(receive),
                                         bl_engine_edge_twin(engine, receive->buffer), engine->edge_bytes, err)
             : status;
}

// ---- the run

bl_status_t bl_edges_begin(bl_edges_t *edges, uint64_t attempt, bl_error_t *err) {
  bl_engine_t *engine = edges->engine;
  bl_engine_note_paths(engine);
  for (uint32_t i = 0; i < engine->edge_count; i++) {
    engine->edge_states[i].pending = false; // bl_transport_begin waits for older transfers
    engine->edge_states[i].held = false;    // the previous run waited for the device
    engine->edge_states[i].wanted = false;
  }
  return bl_transport_begin(engine->transport, attempt, err);
}

bl_status_t bl_edges_post(bl_edges_t *edges, size_t index, bl_error_t *err) {
  const bl_stage_plan_t *plan = edges->plan;
  bl_status_t status = bl_edges_give(edges, err);
  for (; edges->next_receive < plan->receive_count && status == BL_OK; edges->next_receive++) {
    const bl_planned_receive_t *receive = &plan->receives[edges->next_receive];
    if (receive->post_at > index) {
      break;
    }
    // A gradient is received into the buffer of the activation that it belongs to. When it arrives, that activation has
    // been sent.
    status = receive->kind == BL_EDGE_X ? wait_free(edges, receive->buffer, err) : BL_OK;
    if (status == BL_OK) {
      status = post_receive(edges, receive, err);
    }
    if (status != BL_OK) {
      return status;
    }
  }
  return status;
}

// The tensor cannot arrive before the transport may write the buffer.
static bl_status_t wait_offered(bl_edges_t *edges, uint32_t buffer, uint64_t deadline_ns, bl_error_t *err) {
  const bl_edge_state_t *edge = &edges->engine->edge_states[buffer];
  if (!edge->wanted) {
    return BL_OK;
  }
  bl_status_t status = bl_engine_wait(edges->engine, edge->taken, deadline_ns, err);
  return status == BL_OK && edge->wanted ? offer(edges, buffer, err) : status;
}

static bl_status_t wait_received(bl_edges_t *edges, const bl_planned_receive_t *receive, bl_error_t *err) {
  bl_engine_t *engine = edges->engine;
  bl_tensor_key_t key = key_of_receive(receive);
  const uint32_t from = bl_engine_rank_of(engine, receive->from);
  bool there =
      !engine->edge_states[receive->buffer].wanted && bl_transport_received(engine->transport, (int32_t)from, key);
  uint64_t start_ns = there ? bl_clock_now_ns() : bl_stall_begin(edges->stall);
  uint64_t deadline_ns = start_ns + PEER_DEADLINE_NS;
  bl_status_t status = wait_offered(edges, receive->buffer, deadline_ns, err);
  if (status == BL_OK) {
    status = bl_engine_wait_transport(edges->engine, bl_transport_wait_received, (int32_t)from, key, deadline_ns, err);
  }
  if (!there) {
    end_wait(edges, receive->kind == BL_EDGE_X ? "activation from" : "gradient from", from, receive->micro_batch,
             start_ns);
  }
  return status == BL_OK && staged(edges, from) ? copy_in(edges, receive->buffer, err) : status;
}

bl_status_t bl_edges_wait(bl_edges_t *edges, const bl_planned_op_t *op, bl_error_t *err) {
  bl_status_t status = BL_OK;
  if (op->receive != BL_NONE) {
    const bl_planned_receive_t *receive = &edges->plan->receives[op->receive];
    status = wait_received(edges, receive, err);
    if (receive->kind == BL_EDGE_DY) {
      edges->engine->edge_states[receive->buffer].pending = false; // its activation must have arrived at the peer
    }
  }
  if (status == BL_OK && op->op.type == BL_OP_F) {
    status = wait_free(edges, op->output, err);
    if (status == BL_OK && op->receive == BL_NONE) {
      status = wait_free(edges, op->input, err); // the embedding writes it
    }
  }
  return status;
}

bl_status_t bl_edges_send(bl_edges_t *edges, const bl_planned_op_t *op, bl_error_t *err) {
  if (op->send_to == BL_NONE) {
    return BL_OK;
  }
  bl_engine_t *engine = edges->engine;
  uint32_t buffer = op->op.type == BL_OP_F ? op->output : op->input;
  bl_edge_state_t *edge = &engine->edge_states[buffer];
  edge->pending = true;
  edge->peer = bl_engine_rank_of(engine, op->send_to);
  edge->bytes = engine->edge_bytes;
  edge->key = key_of_send(op);
  edge->direct = bl_engine_is_direct(engine, edge->peer);
  if (!engine->device->host_memory) {
    return let_out(edges, buffer, err);
  }
  return bl_transport_post_send(engine->transport, (int32_t)edge->peer, edge->key, bl_engine_edge(engine, buffer),
                                edge->bytes, err);
}

bl_status_t bl_edges_finish(bl_edges_t *edges, bl_error_t *err) {
  bl_engine_t *engine = edges->engine;
  bl_status_t status = BL_OK;
  for (uint32_t i = 0; i < engine->edge_count && edges->held > 0 && status == BL_OK; i++) {
    bl_edge_state_t *edge = &engine->edge_states[i];
    if (edge->held) {
      status = bl_engine_wait(edges->engine, edge->copied_out, bl_clock_now_ns() + PEER_DEADLINE_NS, err);
      status = status == BL_OK && edge->held ? give(edges, i, err) : status;
    }
  }
  return status;
}

bl_status_t bl_edges_wait_all_sent(bl_edges_t *edges, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t i = 0; i < edges->engine->edge_count && status == BL_OK; i++) {
    status = wait_free(edges, i, err);
  }
  return status;
}

// ---- tied gradients

// The ranges that are exchanged, at most one for each part of the layers. Both ends have the same.
typedef struct tied {
  bl_shard_range_t ranges[BL_LAYER_PARTS_MAX];
  uint32_t count;
} tied_t;

static bl_tensor_key_t tied_key(uint32_t range) {
  return (bl_tensor_key_t){.direction = BL_TIED, .micro_batch = range};
}

static bl_status_t post_tied(bl_engine_t *engine, const tied_t *tied, const float *ours, float *theirs,
                             bl_error_t *err) {
  const int32_t peer = (int32_t)engine->tied_peer;
  bl_status_t status = BL_OK;
  for (uint32_t i = 0; i < tied->count && status == BL_OK; i++) {
    const bl_shard_range_t range = tied->ranges[i];
    const uint64_t bytes = range.count * sizeof(float);
    status = bl_transport_post_receive(engine->transport, peer, tied_key(i), theirs + range.first, bytes, err);
    if (status == BL_OK) {
      status = bl_transport_post_send(engine->transport, peer, tied_key(i), ours + range.first, bytes, err);
    }
  }
  return status;
}

// Exchanges memory that the transport can reach.
static bl_status_t exchange(bl_edges_t *edges, const tied_t *tied, const float *ours, float *theirs, bl_error_t *err) {
  bl_engine_t *engine = edges->engine;
  const int32_t peer = (int32_t)engine->tied_peer;
  bl_status_t status = post_tied(engine, tied, ours, theirs, err);
  if (status != BL_OK) {
    return status;
  }
  uint64_t start_ns = bl_stall_begin(edges->stall);
  for (uint32_t i = 0; i < tied->count && status == BL_OK; i++) {
    status = bl_transport_wait_received(engine->transport, peer, tied_key(i), start_ns + PEER_DEADLINE_NS, err);
    if (status == BL_OK) {
      status = bl_transport_wait_sent(engine->transport, peer, tied_key(i), start_ns + PEER_DEADLINE_NS, err);
    }
  }
  end_wait(edges, "tied gradient from", (uint32_t)peer, 0, start_ns);
  return status;
}

static bl_status_t copy_tied(const bl_engine_t *engine, const tied_t *tied, float *to, const float *from,
                             bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint32_t i = 0; i < tied->count && status == BL_OK; i++) {
    const bl_shard_range_t range = tied->ranges[i];
    status = bl_device_copy(engine->device, engine->stream, to + range.first, from + range.first,
                            range.count * sizeof(float), err);
  }
  return status;
}

// Leaves out the parts of which this replica updates nothing.
static tied_t list_tied(const bl_engine_t *engine) {
  tied_t tied = {0};
  bl_shard_range_t ranges[BL_LAYER_PARTS_MAX];
  const uint32_t count = bl_chunk_tied_ranges(engine->tied, ranges);
  for (uint32_t i = 0; i < count; i++) {
    if (ranges[i].count > 0) {
      tied.ranges[tied.count++] = ranges[i];
    }
  }
  return tied;
}

bl_status_t bl_edges_exchange_tied(bl_edges_t *edges, bl_error_t *err) {
  bl_engine_t *engine = edges->engine;
  const tied_t tied = list_tied(engine);
  float *gradient = bl_chunk_tied_gradient(engine->tied);
  if (engine->device->host_memory) {
    return exchange(edges, &tied, gradient, engine->tied_part, err);
  }
  if (bl_engine_is_direct(engine, engine->tied_peer)) {
    bl_status_t gone = bl_edges_finish(edges, err);
    gone = gone == BL_OK ? bl_engine_finish(engine, err) : gone;
    return gone == BL_OK ? exchange(edges, &tied, gradient, engine->tied_part, err) : gone;
  }
  float *ours = (float *)(void *)engine->tied_twins.base, *theirs = ours + bl_chunk_tied_elements(engine->tied);
  bl_status_t status = copy_tied(engine, &tied, ours, gradient, err);
  if (status == BL_OK) {
    status = bl_edges_finish(edges, err); // the peer needs these sends first
  }
  if (status == BL_OK) {
    status = bl_engine_finish(engine, err);
  }
  if (status == BL_OK) {
    status = exchange(edges, &tied, ours, theirs, err);
  }
  return status == BL_OK ? copy_tied(engine, &tied, engine->tied_part, theirs, err) : status;
}
