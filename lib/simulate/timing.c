// SPDX-License-Identifier: Apache-2.0
#include "simulate/timing.h"

#include "base/heap.h"
#include "schedule/ir/dependency.h"

#include <math.h>

static bool sooner(const void *none, double a, double b) {
  (void)none;
  return a < b;
}

BL_HEAP(cores, double, const void *, sooner)

static double *end_of(const bl__timing_t *t, bl_op_t op) {
  size_t block = bl_schedule_block(t->schedule, op);
  return op.type == BL_OP_F ? &t->forward_end[block] : &t->backward_end[block];
}

double bl__timing_end(const bl__timing_t *t, bl_op_t op) {
  return *end_of(t, op);
}

double bl__timing_boundary(const bl__timing_t *t, uint32_t from_virtual_stage, uint32_t to_virtual_stage) {
  if (t->schedule->stage_of[from_virtual_stage] == t->schedule->stage_of[to_virtual_stage]) {
    return 0;
  }
  uint32_t lower = from_virtual_stage < to_virtual_stage ? from_virtual_stage : to_virtual_stage;
  return t->machine->boundaries != NULL ? t->machine->boundaries[lower] : t->costs->boundary;
}

// ---- evictions and loads --------------------------------------------------------------------------------------------

// Returns when the next item to take is free. The last `kept` entries are not returned yet. An item that was never used
// is free at 0.
static double free_from(const bl__free_list_t *list, uint32_t kept) {
  return list->count > kept ? list->times[list->head] : 0;
}

static void take(bl__free_list_t *list, uint32_t kept) {
  if (list->count > kept) {
    list->head = (list->head + 1) % list->capacity;
    list->count--;
  }
}

// Inserts an entry before the last `kept`.
static void give(bl__free_list_t *list, uint32_t kept, double time) {
  uint32_t at = list->head + list->count;
  for (uint32_t moved = 0; moved < kept; moved++, at--) {
    list->times[at % list->capacity] = list->times[(at - 1) % list->capacity];
  }
  list->times[at % list->capacity] = time;
  list->count++;
}

static double slot_free(const bl__stage_clock_t *clock) {
  return free_from(&clock->slots, clock->leaving);
}

// All reservations of the stage are free at first.
static double store_slot_free(const bl__stage_clock_t *clock) {
  return free_from(&clock->store_slots, 0);
}

static bool at_host(const bl__timing_t *t, bl_op_t op) {
  return bl_schedule_is_host(t->schedule, op.store);
}

// Returns the time of the compute thread for an E or L, before the copy.
static double call_of(const bl__timing_t *t, uint32_t stage, bl_op_t op) {
  return op.type == BL_OP_E && t->machine->evict_calls != NULL ? t->machine->evict_calls[stage] : 0;
}

// Returns when a stage has done its part of an E or L, and has the slot of an L.
static double reached(const bl__timing_t *t, uint32_t stage, bl_op_t op) {
  const bl__stage_clock_t *clock = &t->clocks[stage];
  return fmax(fmax(clock->free_at, clock->passed), op.type == BL_OP_L ? slot_free(clock) : 0) + call_of(t, stage, op);
}

// Moves the compute thread of a stage past its part of an E.
static void run_call(bl__timing_t *t, uint32_t stage, double seconds) {
  bl__stage_clock_t *clock = &t->clocks[stage];
  const double start = fmax(clock->free_at, clock->passed);
  t->result->stalls[stage][BL_STALL_SLOT] += start - clock->free_at;
  t->result->busy[stage] += seconds;
  clock->free_at = start + seconds;
}

double bl__timing_transfer_ready(const bl__timing_t *t, uint32_t stage, bl_op_t op) {
  const bl__stage_clock_t *clock = &t->clocks[stage];
  const double here = reached(t, stage, op);
  if (t->store_free == NULL || !at_host(t, op)) {
    return fmax(here, clock->path_free);
  }
  return fmax(fmax(here, clock->asked), op.type == BL_OP_E ? store_slot_free(clock) : 0);
}

bl__passage_t bl__lane_pass(bl__lane_t *lane, double asks, double hold) {
  double start = fmax(asks, lane->tensors_free), beside = fmax(0, lane->copies_free - start);
  double end = start + hold + fmin(hold, beside); // half as fast until one of both has passed
  lane->tensors_free = end;
  lane->copies_free = fmax(lane->copies_free, start) + hold;
  return (bl__passage_t){start, end};
}

// Times a copy between nodes, from `start` on, which holds the lanes of both NICs. Moves `start` to when it gets them.
static double copy_far(bl__timing_t *t, uint32_t stage, bl_op_t op, double *start) {
  const bl_network_t *network = t->machine->network;
  uint32_t from = network->nics[op.type == BL_OP_E ? stage : op.store],
           to = network->nics[op.type == BL_OP_E ? op.store : stage];
  *start = fmax(*start, fmax(t->out[from].copies_free, t->in[to].copies_free));
  double took = network->far_paths[stage];
  t->out[from].copies_free = t->in[to].copies_free = *start + fmax(0, took - network->latency);
  return *start + took;
}

static double path_of(const bl__timing_t *t, uint32_t stage, bl_op_t op) {
  const bl_machine_t *machine = t->machine;
  if (at_host(t, op) && machine->host_paths != NULL) {
    return machine->host_paths[stage];
  }
  if (machine->copies != NULL && op.store < t->schedule->stages) {
    return machine->copies[(size_t)stage * t->schedule->stages + op.store];
  }
  return machine->paths != NULL ? machine->paths[stage] : t->costs->path;
}

// Returns how much later than its turn on the link a block has arrived.
static double tail_of(const bl__timing_t *t, uint32_t stage, bl_op_t op) {
  return at_host(t, op) && t->machine->host_tails != NULL ? t->machine->host_tails[stage] : 0;
}

// E and L start when the operation before them has ended and the path is free.
static void run_transfer(bl__timing_t *t, bl_op_ref_t at, bl_op_t op) {
  bl__stage_clock_t *clock = &t->clocks[at.stage];
  const bl_machine_t *machine = t->machine;
  const bool of_device = op.store < t->schedule->stages;
  const bool known = op.store < bl_schedule_stores(t->schedule);
  const double call = call_of(t, at.stage, op), asked = reached(t, at.stage, op),
               asks = bl__timing_transfer_ready(t, at.stage, op);
  if (call > 0) {
    run_call(t, at.stage, call);
  }
  double start = fmax(asks, clock->path_free);
  double *store =
      t->store_free != NULL && known ? &t->store_free[bl__timing_way(t->schedule, machine, at.stage, op.store)] : NULL;
  start = store != NULL ? fmax(start, *store) : start;
  double end;
  if (machine->network != NULL && of_device && machine->network->nodes[at.stage] != machine->network->nodes[op.store]) {
    end = copy_far(t, at.stage, op, &start);
  } else {
    end = start + path_of(t, at.stage, op);
  }
  clock->path_free = end;
  const double there = end + tail_of(t, at.stage, op);
  if (at_host(t, op)) {
    clock->asked = asks;
    if (op.type == BL_OP_L) {
      give(&clock->store_slots, 0, there);
    } else {
      take(&clock->store_slots, 0);
    }
  }
  if (store != NULL) {
    *store = end;
  }
  t->result->spans[at.stage][at.index] = (bl_span_t){start, end};
  t->result->asked[at.stage][at.index] = asked;
  if (op.type == BL_OP_L) {
    clock->passed = fmax(clock->passed, slot_free(clock));
    take(&clock->slots, clock->leaving);
    t->backward_end[bl_schedule_block(t->schedule, op)] = there;
  } else {
    give(&clock->slots, 0, there);
    clock->leaving = t->schedule->transfers == BL_TRANSFER_OVERLAP ? clock->leaving + 1 : 0;
  }
}

// ---- computing operations -------------------------------------------------------------------------------------------

// Moves `start` to the later of both times, and counts the wait.
static void wait_for(double *start, bl__waits_t *waits, double until, bl_stall_cause_t why) {
  if (until > *start) {
    waits->of[why] += until - *start;
    waits->last = why;
    *start = until;
  }
}

// Returns how long the output of another virtual stage was delayed by NICs.
static double late_of(const bl__timing_t *t, bl_op_t needed) {
  return t->late != NULL ? t->late[bl__timing_late_index(t->schedule, needed)] : 0;
}

// Returns whether the operation takes a slot. An F whose block is recomputed takes none, unless it uses one while it
// runs.
static bool takes_slot(const bl__timing_t *t, bl_op_t op) {
  const bool writes = op.type == BL_OP_F && t->recomputed != NULL &&
                      (t->recomputed[bl_schedule_block(t->schedule, op)] == 0 || t->schedule->forward_slots);
  return writes || (op.type == BL_OP_R && t->recomputed != NULL);
}

// Takes and returns slots for a computing operation that ends at `end`.
static void change_slots(const bl__timing_t *t, bl__stage_clock_t *clock, bl_op_t op, double end) {
  if (t->recomputed == NULL) {
    return;
  }
  const bool takes = takes_slot(t, op);
  if (takes) {
    take(&clock->slots, clock->leaving);
  }
  const bool made_again = op.type == BL_OP_F && t->recomputed[bl_schedule_block(t->schedule, op)] != 0;
  if (bl_op_type_ends_block((bl_op_type_t)op.type) || (takes && (made_again || t->schedule->forward_only))) {
    give(&clock->slots, clock->leaving, end);
  }
  clock->leaving = 0;
}

// In the order in which a stage waits, so that waits have the causes that stages report: for a load before it to get its
// slot, for its own slot, its block, its tensor, its weights.
double bl__timing_ready(const bl__timing_t *t, uint32_t stage, bl_op_t op, bl__waits_t *waits) {
  const bl__stage_clock_t *clock = &t->clocks[stage];
  bl_op_t needed;
  double start = clock->free_at;
  *waits = (bl__waits_t){.last = BL_STALL_END};
  if (t->recomputed != NULL) {
    wait_for(&start, waits, clock->passed, BL_STALL_SLOT);
  }
  if (op.type == BL_OP_F || op.type == BL_OP_R) {
    wait_for(&start, waits, takes_slot(t, op) ? slot_free(clock) : 0, BL_STALL_SLOT);
  }
  if (bl_op_type_starts_backward((bl_op_type_t)op.type)) {
    wait_for(&start, waits, *end_of(t, op), BL_STALL_LOAD);
  }
  if (bl__op_dependency(t->schedule, op, &needed)) {
    double sent = *end_of(t, needed) + bl__timing_boundary(t, needed.virtual_stage, op.virtual_stage);
    wait_for(&start, waits, sent, op.type == BL_OP_F ? BL_STALL_ACTIVATION : BL_STALL_GRADIENT);
    wait_for(&start, waits, sent + late_of(t, needed), BL_STALL_NIC);
  }
  if (t->gathered != NULL) {
    wait_for(&start, waits, t->gathered[op.virtual_stage], BL_STALL_GATHER);
  }
  return start;
}

// Returns when a stage returns the core of an operation that ends at `end`: when it next waits, or runs an operation. The
// evicts before that take it as long as their calls, and a load waits if its slot is not free.
static double core_until(const bl__timing_t *t, bl_op_ref_t at, double end) {
  const bl_op_list_t *list = &t->schedule->lists[at.stage];
  uint32_t loads = 0;
  for (size_t i = at.index + 1; i < list->count && !bl_op_type_computes((bl_op_type_t)list->ops[i].type); i++) {
    if (list->ops[i].type == BL_OP_L && (loads++ > 0 || slot_free(&t->clocks[at.stage]) > end)) {
      break;
    }
    end += call_of(t, at.stage, list->ops[i]);
  }
  return end;
}

static void run_compute(bl__timing_t *t, bl_op_ref_t at, bl_op_t op) {
  bl__stage_clock_t *clock = &t->clocks[at.stage];
  bl_simulation_t *r = t->result;
  bl__waits_t waits;
  double ready = bl__timing_ready(t, at.stage, op, &waits), start = ready;
  if (t->core_free != NULL && t->core_free[0] > ready) {
    start = t->core_free[0] + t->machine->handover;
  }
  double cost = bl_costs_slice(t->costs, (bl_op_type_t)op.type, op.virtual_stage, op.slice), share = 1;
  if (op.type == BL_OP_B && t->machine->early_gradient && cost > 0) {
    share = bl_costs_slice(t->costs, BL_OP_I, op.virtual_stage, op.slice) / cost;
  }
  cost = t->machine->times != NULL ? t->machine->times[at.stage][at.index] : cost;
  double end = start + cost;
  if (op.type == BL_OP_F || bl_op_type_starts_backward((bl_op_type_t)op.type)) {
    *end_of(t, op) = share < 1 ? start + share * cost : end;
  }
  for (int cause = 0; cause < BL_STALL_CAUSES; cause++) {
    r->stalls[at.stage][cause] += waits.of[cause];
  }
  r->stalls[at.stage][BL_STALL_CORE] += start - ready;
  change_slots(t, clock, op, end);
  if (!clock->started) {
    clock->started = true;
    r->start[at.stage] = start;
  }
  r->spans[at.stage][at.index] = (bl_span_t){start, end};
  r->causes[at.stage][at.index] = (uint8_t)waits.last;
  r->end[at.stage] = clock->free_at = end;
  r->busy[at.stage] += cost;
  if (t->left != NULL && --t->left[op.virtual_stage] == 0) {
    clock->reduced = fmax(clock->reduced, end) + t->machine->reductions[op.virtual_stage];
  }
  if (t->core_free != NULL) {
    cores_put(NULL, t->core_free, t->machine->cores, 0, core_until(t, at, end)); // replaces the earliest
  }
}

void bl__timing_run(bl__timing_t *t, bl_op_ref_t at) {
  bl_op_t op = t->schedule->lists[at.stage].ops[at.index];
  if (bl_op_type_computes((bl_op_type_t)op.type)) {
    run_compute(t, at, op);
  } else {
    run_transfer(t, at, op);
  }
}
