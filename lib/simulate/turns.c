// SPDX-License-Identifier: Apache-2.0
#include "simulate/timing.h"

#include "base/heap.h"
#include "schedule/ir/dependency.h"

#include <math.h>
#include <stdlib.h>

enum { RAN_FORWARD = 1, RAN_BACKWARD = 2 };

// Order of requests with equal times: tensors in flight first, then stages by number.
typedef enum asker { ASKER_LANE_IN, ASKER_LANE_OUT, ASKER_STAGE } asker_t;

typedef struct request {
  double asks; // time of the request
  asker_t asker;
  uint32_t stage; // that runs the operation, or sends the tensor
  bl_op_t op;     // for a tensor: operation that produced it
  double through; // for a tensor: when it has left its sender
} request_t;

typedef struct turns {
  bl__timing_t *timing;
  request_t *heap; // the earliest request is first
  size_t count;
  uint8_t *ran;   // [blocks] bits RAN_*
  uint32_t *next; // [stages] index of its next operation
  bool *waits;    // [stages] whether it waits for an operation of another stage
} turns_t;

static bool before(const turns_t *turns, request_t a, request_t b) {
  (void)turns;
  if (a.asks != b.asks) {
    return a.asks < b.asks;
  }
  if (a.asker != b.asker) {
    return a.asker < b.asker;
  }
  if (a.stage != b.stage || a.asker == ASKER_STAGE) {
    return a.stage < b.stage;
  }
  return a.op.virtual_stage != b.op.virtual_stage ? a.op.virtual_stage < b.op.virtual_stage
                                                  : a.op.micro_batch < b.op.micro_batch;
}

BL_HEAP(requests, request_t, const turns_t *, before)

static void push(turns_t *u, request_t request) {
  requests_push(u, u->heap, &u->count, request);
}

// Makes the request of the stage's next operation, if the end of its dependency is known.
static void ask(turns_t *u, uint32_t stage) {
  const bl__timing_t *t = u->timing;
  const bl_op_list_t *list = &t->schedule->lists[stage];
  u->waits[stage] = false;
  if (u->next[stage] == list->count) {
    return;
  }
  bl_op_t op = list->ops[u->next[stage]], needed;
  bl__waits_t waits;
  double asks = -INFINITY; // a copy that shares neither store nor NICs changes only clocks of its own stage
  if (bl_op_type_computes((bl_op_type_t)op.type)) {
    if (bl__op_dependency(t->schedule, op, &needed)) {
      uint8_t ran = u->ran[bl_schedule_block(t->schedule, needed)];
      u->waits[stage] = (ran & (needed.type == BL_OP_F ? RAN_FORWARD : RAN_BACKWARD)) == 0;
    }
    if (u->waits[stage]) {
      return;
    }
    asks = bl__timing_ready(t, stage, op, &waits);
  } else if (t->store_free != NULL || t->out != NULL) {
    asks = bl__timing_transfer_ready(t, stage, op);
  }
  push(u, (request_t){.asks = asks, .asker = ASKER_STAGE, .stage = stage});
}

// Finds the virtual stage that needs the output of `op`; false: there is none.
static bool receiver_of(const bl_schedule_t *schedule, bl_op_t op, uint32_t *virtual_stage) {
  const bool forward = op.type == BL_OP_F;
  *virtual_stage = forward ? op.virtual_stage + 1u : op.virtual_stage - 1u;
  return forward
             ? !bl_schedule_is_last(schedule, op.virtual_stage)
             : bl_op_type_starts_backward((bl_op_type_t)op.type) && !bl_schedule_is_first(schedule, op.virtual_stage);
}

// Marks the output of `op` as delivered, or its arrival as known.
static void deliver(turns_t *u, bl_op_t op) {
  const bl_schedule_t *schedule = u->timing->schedule;
  uint32_t to;
  u->ran[bl_schedule_block(schedule, op)] |= op.type == BL_OP_F ? RAN_FORWARD : RAN_BACKWARD;
  if (receiver_of(schedule, op, &to) && u->waits[schedule->stage_of[to]]) {
    ask(u, schedule->stage_of[to]);
  }
}

static bool between_nodes(const bl__timing_t *t, uint32_t stage, bl_op_t op, uint32_t *receiver) {
  uint32_t to;
  const bl_network_t *network = t->machine->network;
  if (network == NULL || !receiver_of(t->schedule, op, &to)) {
    return false;
  }
  *receiver = t->schedule->stage_of[to];
  return network->nodes[stage] != network->nodes[*receiver];
}

static void run_stage(turns_t *u, uint32_t stage) {
  bl__timing_t *t = u->timing;
  uint32_t index = u->next[stage]++, receiver;
  bl_op_t op = t->schedule->lists[stage].ops[index];
  bl__timing_run(t, (bl_op_ref_t){.stage = stage, .index = index});
  if (op.type == BL_OP_F || bl_op_type_starts_backward((bl_op_type_t)op.type)) {
    if (between_nodes(t, stage, op, &receiver)) {
      push(u, (request_t){.asks = bl__timing_end(t, op), .asker = ASKER_LANE_OUT, .stage = stage, .op = op});
    } else {
      deliver(u, op);
    }
  }
  ask(u, stage);
}

// A tensor passes the NIC of its sender and then that of its receiver, where it arrives as soon as it begins to leave.
static void run_tensor(turns_t *u, request_t request) {
  bl__timing_t *t = u->timing;
  const bl_network_t *network = t->machine->network;
  const bool forward = request.op.type == BL_OP_F;
  const uint32_t from = request.op.virtual_stage, to = forward ? from + 1 : from - 1;
  const double hold = fmax(0, bl__timing_boundary(t, from, to) - network->latency);
  if (request.asker == ASKER_LANE_OUT) {
    bl__passage_t out = bl__lane_pass(&t->out[network->nics[request.stage]], request.asks, hold);
    push(u,
         (request_t){
             .asks = out.start, .asker = ASKER_LANE_IN, .stage = request.stage, .op = request.op, .through = out.end});
    return;
  }
  bl__passage_t in = bl__lane_pass(&t->in[network->nics[t->schedule->stage_of[to]]], request.asks, hold);
  double late = fmax(in.end, request.through) - hold - bl__timing_end(t, request.op);
  t->late[bl__timing_late_index(t->schedule, request.op)] = fmax(0, late);
  deliver(u, request.op);
}

bl_status_t bl__turns_run(bl__timing_t *t, size_t count) {
  const size_t stages = t->schedule->stages;
  turns_t u = {.timing = t,
               .heap = malloc((stages + (t->out != NULL ? count : 0)) * sizeof *u.heap),
               .ran = calloc(bl_schedule_block_count(t->schedule), 1),
               .next = calloc(stages, sizeof *u.next),
               .waits = calloc(stages, sizeof *u.waits)};
  bl_status_t status = u.heap != NULL && u.ran != NULL && u.next != NULL && u.waits != NULL ? BL_OK : BL_EXHAUSTED;
  for (uint32_t s = 0; s < stages && status == BL_OK; s++) {
    ask(&u, s);
  }
  while (status == BL_OK && u.count > 0) {
    request_t first = requests_pop(&u, u.heap, &u.count);
    if (first.asker == ASKER_STAGE) {
      run_stage(&u, first.stage);
    } else {
      run_tensor(&u, first);
    }
  }
  free(u.waits);
  free(u.next);
  free(u.ran);
  free(u.heap);
  return status;
}
