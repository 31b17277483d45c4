// SPDX-License-Identifier: Apache-2.0
#include "executor/edges.h"

#include <inttypes.h>
#include <stdio.h>

// A peer that is alive but silent for so long is broken. The driver notices dead and stopped ones much earlier.
#define PEER_DEADLINE_NS (3600ull * BL_NS_PER_S)

static bl_tensor_key_t key_of_receive(const bl_planned_receive_t *receive) {
  bool forward = receive->kind == BL_EDGE_X;
  return (bl_tensor_key_t){.boundary = forward ? receive->virtual_stage - 1u : receive->virtual_stage,
                           .direction = forward ? BL_FORWARD : BL_BACKWARD,
                           .micro_batch = receive->micro_batch};
}

static bl_tensor_key_t key_of_send(const bl_planned_op_t *op) {
  bool forward = op->op.verb == BL_VERB_F;
  return (bl_tensor_key_t){.boundary = forward ? op->op.virtual_stage : op->op.virtual_stage - 1u,
                           .direction = forward ? BL_FORWARD : BL_BACKWARD,
                           .micro_batch = op->op.micro_batch};
}

// `what` ends in "from" or "to"; the trace shows it with the peer.
static void end_wait(bl_edges_t *edges, const char *what, uint32_t peer, uint32_t micro_batch, uint64_t start_ns) {
  char name[BL_TRACE_NAME_BYTES];
  snprintf(name, sizeof name, "%s stage %" PRIu32, what, peer);
  bl_stall_end(edges->stall, name, micro_batch, start_ns);
}

// Until what left from `buffer` last has left.
static bl_status_t wait_free(bl_edges_t *edges, uint32_t buffer, bl_error_t *err) {
  bl_edge_send_t *send = &edges->engine->edge_sends[buffer];
  if (!send->pending) {
    return BL_OK;
  }
  uint64_t start_ns = bl_stall_begin(edges->stall);
  bl_status_t status =
      bl_hub_wait_sent(edges->engine->hub, (int32_t)send->peer, send->key, start_ns + PEER_DEADLINE_NS, err);
  end_wait(edges, "send to", send->peer, send->key.micro_batch, start_ns);
  send->pending = status != BL_OK;
  return status;
}

bl_status_t bl_edges_begin(bl_edges_t *edges, uint64_t attempt, bl_error_t *err) {
  for (uint32_t i = 0; i < edges->engine->edge_count; i++) {
    edges->engine->edge_sends[i].pending = false; // bl_hub_begin waits for older transfers
  }
  return bl_hub_begin(edges->engine->hub, attempt, err);
}

bl_status_t bl_edges_post(bl_edges_t *edges, size_t index, bl_error_t *err) {
  const bl_stage_plan_t *plan = edges->plan;
  for (; edges->next_receive < plan->receive_count; edges->next_receive++) {
    const bl_planned_receive_t *receive = &plan->receives[edges->next_receive];
    if (receive->post_at > index) {
      break;
    }
    // A gradient comes back into the buffer whose activation it answers: by the time it arrives that one has left.
    bl_status_t status = receive->kind == BL_EDGE_X ? wait_free(edges, receive->buffer, err) : BL_OK;
    if (status == BL_OK) {
      status = bl_hub_post_receive(edges->engine->hub, (int32_t)receive->from, key_of_receive(receive),
                                   bl_engine_edge(edges->engine, receive->buffer), edges->engine->edge_bytes, err);
    }
    if (status != BL_OK) {
      return status;
    }
  }
  return BL_OK;
}

static bl_status_t wait_received(bl_edges_t *edges, const bl_planned_receive_t *receive, bl_error_t *err) {
  bl_hub_t *hub = edges->engine->hub;
  bl_tensor_key_t key = key_of_receive(receive);
  bool there = bl_hub_received(hub, (int32_t)receive->from, key);
  uint64_t start_ns = there ? bl_clock_now_ns() : bl_stall_begin(edges->stall);
  bl_status_t status = bl_hub_wait_received(hub, (int32_t)receive->from, key, start_ns + PEER_DEADLINE_NS, err);
  if (!there) {
    end_wait(edges, receive->kind == BL_EDGE_X ? "activation from" : "gradient from", receive->from,
             receive->micro_batch, start_ns);
  }
  return status;
}

bl_status_t bl_edges_wait(bl_edges_t *edges, const bl_planned_op_t *op, bl_error_t *err) {
  bl_status_t status = BL_OK;
  if (op->receive != BL_NONE) {
    const bl_planned_receive_t *receive = &edges->plan->receives[op->receive];
    status = wait_received(edges, receive, err);
    if (receive->kind == BL_EDGE_DY) {
      edges->engine->edge_sends[receive->buffer].pending = false; // its activation must have arrived
    }
  }
  if (status == BL_OK && op->op.verb == BL_VERB_F) {
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
  uint32_t buffer = op->op.verb == BL_VERB_F ? op->output : op->input;
  bl_tensor_key_t key = key_of_send(op);
  edges->engine->edge_sends[buffer] = (bl_edge_send_t){.pending = true, .peer = op->send_to, .key = key};
  return bl_hub_post_send(edges->engine->hub, (int32_t)op->send_to, key, bl_engine_edge(edges->engine, buffer),
                          edges->engine->edge_bytes, err);
}

bl_status_t bl_edges_exchange_tied(bl_edges_t *edges, bl_error_t *err) {
  bl_engine_t *engine = edges->engine;
  const bl_model_t *model = &engine->training.model;
  uint64_t bytes = (uint64_t)model->vocab * model->hidden * sizeof(float);
  bl_tensor_key_t key = {.direction = BL_EXCHANGE};
  int32_t peer = (int32_t)engine->tied_peer;
  bl_status_t status = bl_hub_post_receive(engine->hub, peer, key, engine->tied_part, bytes, err);
  if (status == BL_OK) {
    status = bl_hub_post_send(engine->hub, peer, key, bl_chunk_tied_gradient(engine->tied), bytes, err);
  }
  if (status != BL_OK) {
    return status;
  }
  uint64_t start_ns = bl_stall_begin(edges->stall);
  status = bl_hub_wait_received(engine->hub, peer, key, start_ns + PEER_DEADLINE_NS, err);
  if (status == BL_OK) {
    status = bl_hub_wait_sent(engine->hub, peer, key, start_ns + PEER_DEADLINE_NS, err);
  }
  end_wait(edges, "tied gradient from", (uint32_t)peer, 0, start_ns);
  return status;
}
