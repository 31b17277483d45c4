// SPDX-License-Identifier: Apache-2.0
// Bounded-buffer simulation: do the planned receives and buffers let every stage finish its list?
#include "schedule/ir/stage_plan.h"

#include "schedule/ir/work_list.h"

#include <stdio.h>
#include <stdlib.h>

enum { SENT = 1, POSTED = 2, ARRIVED = 3 };

// One message, identified by its kind and the block of the receiving chunk.
typedef struct message {
  uint8_t state;
  uint32_t sender_buffer;
} message_t;

typedef struct simulation {
  const bl_schedule_t *schedule;
  const bl_stage_plan_t *plans;
  message_t *messages[2];   // [kind][blocks]
  uint32_t *next_op;        // [stages]
  uint32_t *next_receive;   // [stages]
  uint32_t **pending_sends; // [stages][edges] sends that have not left the buffer
  bl__work_list_t work;
} simulation_t;

static message_t *message_of(simulation_t *p, bl_edge_kind_t kind, bl_op_t receiver) {
  return &p->messages[kind][bl_schedule_block(p->schedule, receiver)];
}

// Marks a message as sent or posted. Once it is both, it has arrived and its sender's buffer is idle.
static void mark(simulation_t *p, bl_edge_kind_t kind, bl_op_t receiver, uint8_t what) {
  message_t *message = message_of(p, kind, receiver);
  message->state |= what;
  if (message->state == ARRIVED) {
    uint32_t to = p->schedule->stage_of[receiver.virtual_stage];
    uint32_t sender = receiver.virtual_stage + (kind == BL_EDGE_X ? -1u : 1u);
    uint32_t from = p->schedule->stage_of[sender];
    p->pending_sends[from][message->sender_buffer]--;
    (void)bl__work_list_add(&p->work, to);
    (void)bl__work_list_add(&p->work, from);
  }
}

static bl_op_t receiver_of(const bl_planned_receive_t *receive) {
  return (bl_op_t){
      .virtual_stage = receive->virtual_stage, .micro_batch = receive->micro_batch, .slice = receive->slice};
}

// Posts, in order, the receives that may be posted now. Returns whether it posted any.
static bool post(simulation_t *p, uint32_t stage) {
  const bl_stage_plan_t *plan = &p->plans[stage];
  bool moved = false;
  while (p->next_receive[stage] < plan->receive_count) {
    const bl_planned_receive_t *receive = &plan->receives[p->next_receive[stage]];
    bool busy = receive->kind == BL_EDGE_X && p->pending_sends[stage][receive->buffer] > 0;
    if (receive->post_at > p->next_op[stage] || busy) {
      break;
    }
    p->next_receive[stage]++;
    mark(p, receive->kind, receiver_of(receive), POSTED);
    moved = true;
  }
  return moved;
}

// Returns what keeps the next operation of `stage` from running, or NULL if it can run.
static const char *obstacle(simulation_t *p, uint32_t stage, const bl_planned_op_t *op) {
  if (op->receive != BL_NONE) {
    const bl_planned_receive_t *receive = &p->plans[stage].receives[op->receive];
    uint8_t state = message_of(p, receive->kind, receiver_of(receive))->state;
    if (state != ARRIVED) {
      return state & POSTED ? "a message that is not sent" : "a receive that cannot be posted";
    }
  }
  if (op->op.type == BL_OP_F && p->pending_sends[stage][op->output] > 0) {
    return "a buffer whose send is unfinished";
  }
  return NULL;
}

static void run(simulation_t *p, uint32_t stage) {
  const bl_stage_plan_t *plan = &p->plans[stage];
  for (bool moved = true; moved;) {
    moved = post(p, stage);
    if (p->next_op[stage] == plan->op_count) {
      continue;
    }
    const bl_planned_op_t *op = &plan->ops[p->next_op[stage]];
    if (obstacle(p, stage, op) != NULL) {
      continue;
    }
    p->next_op[stage]++;
    moved = true;
    if (op->send_to != BL_NONE) {
      bool forward = op->op.type == BL_OP_F;
      bl_edge_kind_t kind = forward ? BL_EDGE_X : BL_EDGE_DY;
      bl_op_t receiver = op->op;
      receiver.virtual_stage = (uint16_t)(receiver.virtual_stage + (forward ? 1 : -1));
      uint32_t buffer = forward ? op->output : op->input;
      message_of(p, kind, receiver)->sender_buffer = buffer;
      p->pending_sends[stage][buffer]++;
      mark(p, kind, receiver, SENT);
    }
  }
}

static bl_status_t explain(simulation_t *p, bl_error_t *err) {
  char text[BL_ERROR_TEXT_BYTES] = "", cell[BL_OP_TEXT];
  size_t used = 0;
  for (uint32_t s = 0; s < p->schedule->stages && used < sizeof text; s++) {
    if (p->next_op[s] < p->plans[s].op_count) {
      const bl_planned_op_t *op = &p->plans[s].ops[p->next_op[s]];
      used += (size_t)snprintf(text + used, sizeof text - used, "%sstage %u: %s waits for %s", used > 0 ? "; " : "", s,
                               bl_op_format(op->op, cell), obstacle(p, s, op));
    }
  }
  return bl_error_set(err, BL_INTERNAL, "schedule %s waits for ever with its planned buffers: %s", p->schedule->name,
                      text);
}

static bool all_done(const simulation_t *p) {
  for (uint32_t s = 0; s < p->schedule->stages; s++) {
    if (p->next_op[s] < p->plans[s].op_count || p->next_receive[s] < p->plans[s].receive_count) {
      return false;
    }
  }
  return true;
}

static bool allocate(simulation_t *p) {
  size_t blocks = bl_schedule_block_count(p->schedule), stages = p->schedule->stages, edges = 0;
  for (size_t s = 0; s < stages; s++) {
    edges += p->plans[s].edges;
  }
  p->messages[0] = calloc(2 * blocks, sizeof(message_t));
  p->next_op = calloc(2 * stages, sizeof(uint32_t));
  p->pending_sends = calloc(stages, sizeof p->pending_sends[0]);
  uint32_t *pending = calloc(edges + 1, sizeof *pending);
  if (p->messages[0] == NULL || p->next_op == NULL || p->pending_sends == NULL || pending == NULL) {
    free(pending);
    return false;
  }
  p->messages[1] = p->messages[0] + blocks;
  p->next_receive = p->next_op + stages;
  for (size_t s = 0, used = 0; s < stages; s++) {
    p->pending_sends[s] = pending + used;
    used += p->plans[s].edges;
  }
  return bl__work_list_init(&p->work, p->schedule->stages);
}

bl_status_t bl_plan_check_deadlock(const bl_schedule_t *schedule, const bl_stage_plan_t *plans, bl_error_t *err) {
  simulation_t p = {.schedule = schedule, .plans = plans};
  bl_status_t status = BL_OK;
  if (!allocate(&p)) {
    status = bl_error_set(err, BL_EXHAUSTED, "out of memory for the bounded-buffer simulation");
  } else {
    uint32_t stage;
    while (bl__work_list_take(&p.work, &stage)) {
      run(&p, stage);
    }
    if (!all_done(&p)) {
      status = explain(&p, err);
    }
  }
  if (p.pending_sends != NULL) {
    free(p.pending_sends[0]);
  }
  free(p.pending_sends);
  bl__work_list_cleanup(&p.work);
  free(p.next_op);
  free(p.messages[0]);
  return status;
}
