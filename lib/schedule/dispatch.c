// SPDX-License-Identifier: Apache-2.0
#include "schedule/dispatch.h"

#include "base/minmax.h"
#include "schedule/dependency.h"
#include "schedule/peaks.h"
#include "schedule/portfolio.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NO_OP UINT32_MAX

// A stage is looked at when it becomes free or when something it may wait for has ended.
typedef struct event {
  double time;
  uint32_t stage;
} event_t;

// The operations of one verb on one chunk, in base order.
typedef struct queue {
  uint32_t *places; // indices into the base list
  uint32_t count, next;
  bl_verb_t verb;
} queue_t;

typedef struct device {
  const bl_op_list_t *base;
  uint8_t *done; // [base->count]
  uint32_t head; // first that is not done
  queue_t *queues;
  uint32_t queue_count;
  uint32_t held, limit;
  uint32_t filled, slots; // of those, from I on
  double free_at;
} device_t;

typedef struct dispatcher {
  const bl_schedule_t *base;
  const bl_costs_t *costs;
  bl__dispatch_rule_t rule;
  bl_schedule_t *made;
  device_t *devices;
  double *forward_end, *backward_end; // [blocks]; infinite until started
  event_t *heap;
  size_t heap_count, heap_capacity;
  double t_end;
} dispatcher_t;

static bool event_before(event_t a, event_t b) {
  return a.time < b.time || (a.time == b.time && a.stage < b.stage);
}

static bl_status_t push(dispatcher_t *d, double time, uint32_t stage) {
  if (d->heap_count == d->heap_capacity) {
    size_t capacity = d->heap_capacity == 0 ? 256 : 2 * d->heap_capacity;
    event_t *heap = realloc(d->heap, capacity * sizeof *heap);
    if (heap == NULL) {
      return BL_EXHAUSTED;
    }
    d->heap = heap;
    d->heap_capacity = capacity;
  }
  size_t at = d->heap_count++;
  event_t event = {time, stage};
  for (; at > 0 && event_before(event, d->heap[(at - 1) / 2]); at = (at - 1) / 2) {
    d->heap[at] = d->heap[(at - 1) / 2];
  }
  d->heap[at] = event;
  return BL_OK;
}

static event_t pop(dispatcher_t *d) {
  event_t top = d->heap[0], last = d->heap[--d->heap_count];
  size_t at = 0;
  for (size_t child = 1; child < d->heap_count; child = 2 * at + 1) {
    child += child + 1 < d->heap_count && event_before(d->heap[child + 1], d->heap[child]);
    if (!event_before(d->heap[child], last)) {
      break;
    }
    d->heap[at] = d->heap[child];
    at = child;
  }
  d->heap[at] = last;
  return top;
}

static double *end_of(dispatcher_t *d, bl_op_t op) {
  size_t block = bl_schedule_block(d->base, op);
  return op.verb == BL_VERB_F ? &d->forward_end[block] : &d->backward_end[block];
}

// When the operation's dependencies have ended; infinite if one has not started.
static double ready_at(dispatcher_t *d, uint32_t stage, bl_op_t op) {
  bl_op_t needed;
  double ready = 0;
  if (bl__op_dependency(d->base, op, &needed)) {
    double latency = d->base->stage_of[needed.virtual_stage] != stage ? d->costs->boundary : 0;
    ready = *end_of(d, needed) + latency;
  }
  size_t block = bl_schedule_block(d->base, op);
  if (bl_verb_starts_backward((bl_verb_t)op.verb)) {
    ready = bl_max_f64(ready, d->forward_end[block]);
  } else if (op.verb == BL_VERB_W) {
    ready = bl_max_f64(ready, d->backward_end[block]);
  }
  return ready;
}

// Time by which an operation may start before what it needs from another stage arrives: that of the R before a backward.
static double lead_of(const dispatcher_t *d, uint32_t stage, bl_op_t op) {
  if (!d->rule.again.on || !bl_verb_starts_backward((bl_verb_t)op.verb)) {
    return 0;
  }
  const bl_op_list_t *list = &d->made->lists[stage];
  bl_op_t last = list->count > 0 ? list->ops[list->count - 1] : op;
  bool fresh = last.verb == BL_VERB_F && bl_schedule_block(d->base, last) == bl_schedule_block(d->base, op);
  bool kept = bl__chunk_kept(d->base, d->rule.again, op.virtual_stage);
  return fresh || kept ? 0 : bl_costs_op(d->costs, BL_VERB_R, op.virtual_stage);
}

// Does the operation take a slot?
static bool fills(const dispatcher_t *d, bl_op_t op) {
  return bl__chunk_kept(d->base, d->rule.again, op.virtual_stage) ? op.verb == BL_VERB_F
                                                                  : bl_verb_starts_backward((bl_verb_t)op.verb);
}

// Whether the base order from the device's head up to `place` still fits when the operation there has run before it.
static bool fits_before(const dispatcher_t *d, const device_t *device, uint32_t place) {
  bl_verb_t verb = (bl_verb_t)device->base->ops[place].verb;
  uint32_t held = device->held + (verb == BL_VERB_F), filled = device->filled + fills(d, device->base->ops[place]);
  if (held > device->limit || filled > device->slots) {
    return false;
  }
  filled -= verb == BL_VERB_B;
  for (uint32_t i = device->head; i < place; i++) {
    if (!device->done[i]) {
      bl_verb_t passed = (bl_verb_t)device->base->ops[i].verb;
      held += passed == BL_VERB_F;
      filled += fills(d, device->base->ops[i]);
      if (held > device->limit || filled > device->slots) {
        return false;
      }
      held -= bl_verb_ends_block(passed);
      filled -= bl_verb_ends_block(passed);
    }
  }
  return true;
}

// May the operation at `place` overtake what stands before it? Only an F, and where slots are limited an I, takes memory
// earlier by that.
static bool may_overtake(const dispatcher_t *d, const device_t *device, uint32_t place) {
  if (place == device->head) {
    return true;
  }
  if (d->rule.window == 0 || place - device->head > d->rule.window) {
    return false;
  }
  bl_verb_t verb = (bl_verb_t)device->base->ops[place].verb;
  bool takes = verb == BL_VERB_F || (d->rule.again.slots > 0 && bl_verb_starts_backward(verb));
  return !takes || fits_before(d, device, place);
}

static int rank_of(const dispatcher_t *d, bl_verb_t verb) {
  static const int ranks[BL__PREFERENCES][4] = {
      // F, B, I, W
      {0, 0, 0, 0},
      {1, 0, 0, 1},
      {1, 0, 0, 2},
      {0, 1, 1, 2},
  };
  return ranks[d->rule.preference][verb];
}

// The place of the operation to start at `now`, or NO_OP to wait for the next event.
static uint32_t choose(dispatcher_t *d, uint32_t stage, double now) {
  device_t *device = &d->devices[stage];
  uint32_t best = NO_OP;
  int best_rank = 0;
  double next_ready = INFINITY; // of an operation other than W that is not ready yet
  for (uint32_t q = 0; q < device->queue_count; q++) {
    const queue_t *queue = &device->queues[q];
    if (queue->next == queue->count) {
      continue;
    }
    uint32_t place = queue->places[queue->next];
    bl_op_t op = device->base->ops[place];
    double ready = ready_at(d, stage, op) - lead_of(d, stage, op);
    if (isinf(ready) || !may_overtake(d, device, place)) {
      continue;
    }
    if (ready > now) {
      next_ready = queue->verb != BL_VERB_W ? bl_min_f64(next_ready, ready) : next_ready;
      continue;
    }
    int rank = rank_of(d, queue->verb);
    if (best == NO_OP || rank < best_rank || (rank == best_rank && place < best)) {
      best = place;
      best_rank = rank;
    }
  }
  if (best != NO_OP && device->base->ops[best].verb == BL_VERB_W) {
    double cost = bl_costs_op(d->costs, BL_VERB_W, device->base->ops[best].virtual_stage);
    if (next_ready < now + cost * (1 - d->rule.patience)) {
      return NO_OP;
    }
  }
  return best;
}

static bl_status_t start(dispatcher_t *d, uint32_t stage, uint32_t place, double now) {
  device_t *device = &d->devices[stage];
  bl_op_t op = device->base->ops[place];
  double end = now + lead_of(d, stage, op) + bl_costs_op(d->costs, (bl_verb_t)op.verb, op.virtual_stage);
  device->free_at = end;
  device->done[place] = 1;
  while (device->head < device->base->count && device->done[device->head]) {
    device->head++;
  }
  for (uint32_t q = 0; q < device->queue_count; q++) {
    queue_t *queue = &device->queues[q];
    queue->next += queue->next < queue->count && queue->places[queue->next] == place;
  }
  device->held += op.verb == BL_VERB_F;
  device->held -= bl_verb_ends_block((bl_verb_t)op.verb);
  device->filled += fills(d, op);
  device->filled -= bl_verb_ends_block((bl_verb_t)op.verb);
  d->t_end = bl_max_f64(d->t_end, end);
  bl_status_t status = bl_schedule_append(d->made, stage, op);
  if (status == BL_OK) {
    status = push(d, end, stage);
  }
  uint32_t waiting = BL_STAGES_MAX; // the stage that may wait for this operation
  if (op.verb == BL_VERB_F) {
    *end_of(d, op) = end;
    waiting = bl_schedule_is_last(d->base, op.virtual_stage) ? waiting : d->base->stage_of[op.virtual_stage + 1];
  } else if (bl_verb_starts_backward((bl_verb_t)op.verb)) {
    *end_of(d, op) = end;
    waiting = bl_schedule_is_first(d->base, op.virtual_stage) ? waiting : d->base->stage_of[op.virtual_stage - 1];
  }
  if (status == BL_OK && waiting < BL_STAGES_MAX && waiting != stage) {
    status = push(d, end + d->costs->boundary, waiting);
    if (status == BL_OK && d->rule.again.on && op.verb != BL_VERB_F) {
      double lead = bl_costs_op(d->costs, BL_VERB_R, op.virtual_stage - 1u);
      status = push(d, bl_max_f64(now, end + d->costs->boundary - lead), waiting);
    }
  }
  return status;
}

// Sorts the base list of a stage into queues, one per verb and chunk.
static bl_status_t fill_queues(dispatcher_t *d, uint32_t stage) {
  device_t *device = &d->devices[stage];
  const bl_op_list_t *base = device->base;
  uint32_t virtual_stages = d->base->virtual_stages;
  uint32_t *counts = calloc((size_t)4 * virtual_stages, sizeof *counts); // by virtual stage and verb, then queue
  bl_status_t status = BL_EXHAUSTED;
  if (counts == NULL) {
    return status;
  }
  for (size_t i = 0; i < base->count; i++) {
    counts[4 * base->ops[i].virtual_stage + base->ops[i].verb]++;
  }
  for (uint32_t k = 0; k < 4 * virtual_stages; k++) {
    device->queue_count += counts[k] > 0;
  }
  device->queues = calloc(device->queue_count + 1, sizeof device->queues[0]);
  uint32_t *places = malloc((base->count + 1) * sizeof *places);
  if (device->queues == NULL || places == NULL) {
    free(places);
    goto free_counts;
  }
  device->queues[0].places = places;
  for (uint32_t k = 0, q = 0; k < 4 * virtual_stages; k++) {
    if (counts[k] > 0) {
      device->queues[q].places = places;
      device->queues[q].verb = (bl_verb_t)(k % 4);
      places += counts[k];
      counts[k] = q++;
    }
  }
  for (uint32_t i = 0; i < base->count; i++) {
    queue_t *queue = &device->queues[counts[4 * base->ops[i].virtual_stage + base->ops[i].verb]];
    queue->places[queue->count++] = i;
  }
  status = BL_OK;
free_counts:
  free(counts);
  return status;
}

static bl_status_t prepare(dispatcher_t *d, const uint32_t *limits) {
  size_t blocks = bl_schedule_block_count(d->base);
  d->devices = calloc(d->base->stages, sizeof d->devices[0]);
  d->forward_end = malloc(blocks * sizeof d->forward_end[0]);
  d->backward_end = malloc(blocks * sizeof d->backward_end[0]);
  if (d->devices == NULL || d->forward_end == NULL || d->backward_end == NULL) {
    return BL_EXHAUSTED;
  }
  for (size_t b = 0; b < blocks; b++) {
    d->forward_end[b] = d->backward_end[b] = INFINITY;
  }
  bl_status_t status = BL_OK;
  for (uint32_t s = 0; s < d->base->stages && status == BL_OK; s++) {
    device_t *device = &d->devices[s];
    device->base = &d->base->lists[s];
    device->limit = limits[s];
    device->slots = d->rule.again.slots > 0 ? d->rule.again.slots : UINT32_MAX;
    device->done = calloc(device->base->count + 1, 1);
    status = device->done != NULL ? fill_queues(d, s) : BL_EXHAUSTED;
    if (status == BL_OK) {
      status = push(d, 0, s);
    }
  }
  return status;
}

bl_status_t bl__dispatch(const bl_schedule_t *base, const bl_costs_t *costs, const uint32_t *limits,
                         bl__dispatch_rule_t rule, bl_schedule_t *made, double *t_end) {
  dispatcher_t d = {.base = base, .costs = costs, .rule = rule, .made = made};
  bl_status_t status = prepare(&d, limits);
  for (uint32_t s = 0; s < base->stages; s++) {
    made->lists[s].count = 0;
  }
  while (status == BL_OK && d.heap_count > 0) {
    event_t event = pop(&d);
    if (event.time < d.devices[event.stage].free_at) {
      continue; // busy: its own event comes when it is free
    }
    uint32_t place = choose(&d, event.stage, event.time);
    if (place != NO_OP) {
      status = start(&d, event.stage, place, event.time);
    }
  }
  for (uint32_t s = 0; s < base->stages && status == BL_OK; s++) {
    if (made->lists[s].count != base->lists[s].count) {
      status = BL_INTERNAL; // the base order cannot run within its limits
    }
  }
  for (uint32_t s = 0; d.devices != NULL && s < base->stages; s++) {
    if (d.devices[s].queues != NULL) {
      free(d.devices[s].queues[0].places);
    }
    free(d.devices[s].queues);
    free(d.devices[s].done);
  }
  free(d.heap);
  free(d.backward_end);
  free(d.forward_end);
  free(d.devices);
  if (status == BL_OK) {
    *t_end = d.t_end;
  }
  return status;
}

bl_status_t bl__dispatch_end(const bl_schedule_t *schedule, const bl_costs_t *costs, bl__again_t again, double *t_end) {
  uint32_t *limits = malloc(schedule->stages * sizeof *limits);
  bl_schedule_t *made = NULL;
  bl_status_t status = limits != NULL ? bl_schedule_peak_slots(schedule, limits) : BL_EXHAUSTED;
  if (status == BL_OK) {
    status = bl_schedule_create_like(schedule, &made, NULL);
  }
  if (status == BL_OK) {
    bl__dispatch_rule_t as_it_is = {BL__PREFER_BASE_ORDER, 1, 0, again};
    status = bl__dispatch(schedule, costs, limits, as_it_is, made, t_end);
  }
  bl_schedule_destroy(made);
  free(limits);
  return status;
}
