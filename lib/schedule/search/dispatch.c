// SPDX-License-Identifier: Apache-2.0
#include "schedule/search/dispatch.h"

#include "base/minmax.h"
#include "schedule/search/op_classes.h"
#include "schedule/search/tournament_tree.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

// Effect of an operation on memory, one byte for each position of a base list; 0: it has run.
enum { PENDING = 1, TAKES = 2, FILLS = 4, FREES = 8 };

typedef enum overtakes { UNKNOWN, MAY, MAY_NOT } overtakes_t;

// One operation of a queue.
typedef struct entry {
  uint32_t place; // index into the base list
  // Indices of ends (op_classes.h): what it needs elsewhere, what of its block, and its own end.
  uint32_t needs, own, end;
} entry_t;

// The operations of one type on one chunk, in base order.
typedef struct queue {
  const bl__op_class_t *op_class;
  const entry_t *at, *end; // the next entry, and the end of the queue
  uint32_t first, count;   // its range in all entries
  uint32_t feeds[2];       // queues whose operations need those of this queue, or NONE
  uint32_t stage;
  bl_op_type_t type;
  overtakes_t overtakes; // whether the next operation may overtake; valid until an operation of the stage starts
  double ready;          // when everything that the next operation needs has ended; infinite while unknown
} queue_t;

typedef struct device {
  const bl_op_list_t *base;
  uint8_t *left; // [base->count] effects of the operations that have not run
  uint32_t head; // position of the first that has not run
  uint32_t first_queue, queue_count;
  uint32_t held, limit;   // blocks from F on
  uint32_t filled, slots; // blocks that fill slots of recomputation: from I on, or from F on if their chunk keeps them
  double free_at;
  double work, work_left;
} device_t;

struct bl__dispatcher {
  const bl_schedule_t *base;
  bl__recompute_options_t recompute;
  bl__dispatch_rule_t rule;
  bl__op_class_t *classes;
  device_t *devices;
  queue_t *queues;
  uint32_t queue_count;
  entry_t *entries;
  uint8_t *effects, *left; // [operations] of all devices
  double *ends;
  bl__tournament_tree_t wake; // when to look at a stage: when it is free, or when its next operation may start
  double t_end;
};

// Returns whether the base order from the head up to `place` still fits if the operation at `place` runs first.
static bool fits_before(const device_t *device, uint32_t place) {
  uint8_t effect = device->left[place];
  uint32_t held = device->held + ((effect & TAKES) != 0), filled = device->filled + ((effect & FILLS) != 0);
  if (held > device->limit || filled > device->slots) {
    return false;
  }
  filled -= device->base->ops[place].type == BL_OP_B;
  for (uint32_t i = device->head; i < place; i++) {
    effect = device->left[i];
    held += (effect & TAKES) != 0;
    filled += (effect & FILLS) != 0;
    if (held > device->limit || filled > device->slots) {
      return false;
    }
    held -= (effect & FREES) != 0;
    filled -= (effect & FREES) != 0;
  }
  return true;
}

// Returns whether the next operation of the queue may overtake those before it. Only an F takes memory earlier by that,
// and also a backward if slots are limited.
static bool may_overtake(const bl__dispatcher_t *d, const device_t *device, queue_t *queue) {
  uint32_t place = queue->at->place;
  if (place == device->head) {
    return true;
  }
  if (queue->overtakes == UNKNOWN) {
    bool takes = queue->type == BL_OP_F || (d->recompute.slots > 0 && bl_op_type_starts_backward(queue->type));
    bool may = place - device->head <= d->rule.window && (!takes || fits_before(device, place));
    queue->overtakes = may ? MAY : MAY_NOT;
  }
  return queue->overtakes == MAY;
}

// Returns by how much the next operation of the queue may start before its input from another stage arrives: the time
// of the R before a backward.
static double lead_of(const bl__dispatcher_t *d, const bl_schedule_t *made, const queue_t *queue) {
  if (queue->op_class->recompute == 0) {
    return 0;
  }
  const bl_op_list_t *list = &made->lists[queue->stage];
  bl_op_t last = list->count > 0 ? list->ops[list->count - 1] : (bl_op_t){.type = BL_OP_W};
  bl_op_t op = d->base->lists[queue->stage].ops[queue->at->place];
  bool fresh = last.type == BL_OP_F && bl_schedule_block(d->base, last) == bl_schedule_block(d->base, op);
  return fresh ? 0 : queue->op_class->recompute;
}

static int rank_of(const bl__dispatcher_t *d, bl_op_type_t type) {
  static const int ranks[BL__PREFERENCES][BL__OP_CLASS_TYPES] = {
      // F, B, I, W
      {0, 0, 0, 0},
      {1, 0, 0, 1},
      {1, 0, 0, 2},
      {0, 1, 1, 2},
  };
  return ranks[d->rule.preference][type];
}

// Returns the queue whose next operation starts at `now`, or NONE; then *wake is when to look at the stage next.
static uint32_t choose(bl__dispatcher_t *d, const bl_schedule_t *made, const device_t *device, double now,
                       double *wake) {
  uint32_t best = NONE;
  int best_rank = 0;
  bool waits = d->rule.patience < 1;
  double next_ready = INFINITY; // of an operation other than W that is not ready yet
  *wake = INFINITY;
  for (uint32_t q = device->first_queue; q < device->first_queue + device->queue_count; q++) {
    queue_t *queue = &d->queues[q];
    if (isinf(queue->ready)) {
      continue;
    }
    double ready = queue->ready - lead_of(d, made, queue);
    if (ready > now) {
      *wake = bl_min_f64(*wake, ready);
      if (waits && queue->type != BL_OP_W && ready < next_ready && may_overtake(d, device, queue)) {
        next_ready = ready;
      }
      continue;
    }
    int rank = rank_of(d, queue->type);
    if (best != NONE && (rank > best_rank || (rank == best_rank && queue->at->place > d->queues[best].at->place))) {
      continue;
    }
    if (may_overtake(d, device, queue)) {
      best = q;
      best_rank = rank;
    }
  }
  if (waits && best != NONE && d->queues[best].type == BL_OP_W &&
      next_ready < now + d->queues[best].op_class->cost * (1 - d->rule.patience)) {
    return NONE;
  }
  return best;
}

static void look_up(const bl__dispatcher_t *d, queue_t *queue) {
  queue->ready = queue->at == queue->end
                     ? INFINITY
                     : bl_max_f64(d->ends[queue->at->needs] + queue->op_class->latency, d->ends[queue->at->own]);
}

// Updates the queues of other stages that wait for the operation whose end is ends[end] and which started at `now`:
// sets when they are ready, and wakes their stages then.
static void feed(bl__dispatcher_t *d, const bl_schedule_t *made, const queue_t *from, uint32_t end, double now) {
  for (int k = 0; k < 2 && from->feeds[k] != NONE; k++) {
    queue_t *queue = &d->queues[from->feeds[k]];
    if (queue->stage == from->stage || queue->at == queue->end || queue->at->needs != end) {
      continue;
    }
    look_up(d, queue);
    if (isfinite(queue->ready)) {
      double at = bl_max_f64(now, queue->ready - lead_of(d, made, queue));
      at = bl_max_f64(at, d->devices[queue->stage].free_at);
      if (at < d->wake.times[queue->stage]) {
        bl__tournament_tree_set(&d->wake, queue->stage, at);
      }
    }
  }
}

// Starts the next operation of a queue. Returns when the stage ends if it never waits after that.
static double start(bl__dispatcher_t *d, bl_schedule_t *made, uint32_t chosen, double now) {
  queue_t *from = &d->queues[chosen];
  device_t *device = &d->devices[from->stage];
  double end = now + lead_of(d, made, from) + from->op_class->cost;
  const entry_t entry = *from->at++;
  uint8_t effect = device->left[entry.place];
  device->free_at = end;
  device->work_left -= from->op_class->cost;
  device->held += (effect & TAKES) != 0;
  device->held -= (effect & FREES) != 0;
  device->filled += (effect & FILLS) != 0;
  device->filled -= (effect & FREES) != 0;
  device->left[entry.place] = 0;
  while (device->head < device->base->count && device->left[device->head] == 0) {
    device->head++;
  }
  bl_op_list_t *list = &made->lists[from->stage];
  list->ops[list->count++] = device->base->ops[entry.place];
  d->ends[entry.end] = end;
  d->t_end = bl_max_f64(d->t_end, end);
  for (uint32_t q = device->first_queue; q < device->first_queue + device->queue_count; q++) {
    d->queues[q].overtakes = UNKNOWN;
    if (q == chosen || isinf(d->queues[q].ready)) {
      look_up(d, &d->queues[q]);
    }
  }
  bl__tournament_tree_set(&d->wake, from->stage, end);
  feed(d, made, from, entry.end, now);
  return end + device->work_left;
}

// Empties the lists of `made` and reserves memory for those of the base.
static bl_status_t clear(const bl_schedule_t *base, bl_schedule_t *made) {
  bl_status_t status = BL_OK;
  for (uint32_t s = 0; s < base->stages && status == BL_OK; s++) {
    made->lists[s].count = 0;
    status = bl_schedule_reserve(made, s, base->lists[s].count);
  }
  return status;
}

static void begin(bl__dispatcher_t *d) {
  bl__ends_forget(d->base, d->ends);
  memcpy(d->left, d->effects, bl_schedule_op_count(d->base));
  for (uint32_t q = 0; q < d->queue_count; q++) {
    queue_t *queue = &d->queues[q];
    queue->at = d->entries + queue->first;
    queue->end = queue->at + queue->count;
    queue->overtakes = UNKNOWN;
    look_up(d, queue);
  }
  for (uint32_t s = 0; s < d->base->stages; s++) {
    device_t *device = &d->devices[s];
    device->head = device->held = device->filled = 0;
    device->free_at = 0;
    device->work_left = device->work;
  }
  bl__tournament_tree_fill(&d->wake, d->base->stages, 0);
  d->t_end = 0;
}

bl_status_t bl__dispatcher_run(bl__dispatcher_t *d, bl__dispatch_rule_t rule, double latest, bl_schedule_t *made,
                               double *t_end) {
  size_t left = bl_schedule_op_count(d->base);
  bl_status_t status = clear(d->base, made);
  if (status != BL_OK) {
    return status;
  }
  d->rule = rule;
  begin(d);
  while (left > 0) {
    uint32_t stage = bl__tournament_tree_stage(&d->wake);
    double now = d->wake.times[stage], wake;
    if (isinf(now)) {
      return BL_INTERNAL; // the base order cannot run within its limits
    }
    uint32_t queue = choose(d, made, &d->devices[stage], now, &wake);
    if (queue == NONE) {
      bl__tournament_tree_set(&d->wake, stage, wake);
      continue;
    }
    left--;
    if (start(d, made, queue, now) > latest) {
      return BL_NOT_FOUND;
    }
  }
  *t_end = d->t_end;
  return BL_OK;
}

static uint8_t effect_of(const bl__op_class_t *op_class, bl_op_type_t type) {
  return (uint8_t)(PENDING | (type == BL_OP_F ? TAKES : 0) | (op_class->takes_slot ? FILLS : 0) |
                   (bl_op_type_ends_block(type) ? FREES : 0));
}

// Makes one queue for each class that the base has. `queue_at` [classes] is set to its index, or NONE.
static bl_status_t make_queues(bl__dispatcher_t *d, uint32_t *queue_at) {
  const bl_schedule_t *base = d->base;
  size_t classes = (size_t)base->virtual_stages * BL__OP_CLASS_TYPES;
  d->queues = calloc(classes, sizeof d->queues[0]);
  uint32_t *counts = calloc(classes, sizeof *counts);
  if (d->queues == NULL || counts == NULL) {
    free(counts);
    return BL_EXHAUSTED;
  }
  memset(queue_at, 0xff, classes * sizeof *queue_at);
  uint32_t used = 0;
  for (uint32_t s = 0; s < base->stages; s++) {
    const bl_op_list_t *list = &base->lists[s];
    d->devices[s].first_queue = d->queue_count;
    for (size_t i = 0; i < list->count; i++) {
      size_t op_class = (size_t)(bl__op_class_of(d->classes, list->ops[i]) - d->classes);
      if (counts[op_class]++ == 0) {
        d->queues[d->queue_count] = (queue_t){.op_class = &d->classes[op_class],
                                              .feeds = {NONE, NONE},
                                              .stage = s,
                                              .type = (bl_op_type_t)list->ops[i].type};
        queue_at[op_class] = d->queue_count++;
      }
    }
    d->devices[s].queue_count = d->queue_count - d->devices[s].first_queue;
  }
  for (size_t op_class = 0; op_class < classes; op_class++) {
    if (queue_at[op_class] != NONE) {
      d->queues[queue_at[op_class]].first = used;
      used += counts[op_class];
    }
  }
  free(counts);
  return BL_OK;
}

static void link_queues(bl__dispatcher_t *d, const uint32_t *queue_at) {
  for (uint32_t q = 0; q < d->queue_count; q++) {
    queue_t *queue = &d->queues[q];
    if (queue->op_class->feeds == BL__NO_OP_CLASS) {
      continue;
    }
    const uint32_t *of = queue_at + (size_t)queue->op_class->feeds * BL__OP_CLASS_TYPES;
    if (queue->type == BL_OP_F) {
      queue->feeds[0] = of[BL_OP_F];
    } else {
      queue->feeds[0] = of[BL_OP_I] != NONE ? of[BL_OP_I] : of[BL_OP_B];
      queue->feeds[1] = of[BL_OP_I] != NONE ? of[BL_OP_B] : NONE;
    }
  }
}

static void fill_queues(bl__dispatcher_t *d, const uint32_t *queue_at) {
  size_t n = 0;
  for (uint32_t s = 0; s < d->base->stages; s++) {
    device_t *device = &d->devices[s];
    device->left = d->left + n;
    for (uint32_t i = 0; i < device->base->count; i++, n++) {
      bl_op_t op = device->base->ops[i];
      const bl__op_class_t *op_class = bl__op_class_of(d->classes, op);
      queue_t *queue = &d->queues[queue_at[op_class - d->classes]];
      d->effects[n] = effect_of(op_class, (bl_op_type_t)op.type);
      d->entries[queue->first + queue->count++] =
          (entry_t){i, bl__end_needed(d->base, op_class, op), bl__end_own(d->base, op), bl__end_of(d->base, op)};
      device->work += op_class->cost;
    }
  }
}

bl_status_t bl__dispatcher_create(const bl_schedule_t *base, const bl_costs_t *costs, const uint32_t *limits,
                                  bl__recompute_options_t recompute, bl__dispatcher_t **dispatcher) {
  size_t count = bl_schedule_op_count(base);
  bl__dispatcher_t *d = calloc(1, sizeof *d);
  if (d == NULL) {
    return BL_EXHAUSTED;
  }
  d->base = base;
  d->recompute = recompute;
  d->devices = calloc(base->stages, sizeof d->devices[0]);
  d->entries = malloc((count + 1) * sizeof d->entries[0]);
  d->effects = malloc(2 * count + 1);
  d->ends = bl__ends_create(base);
  uint32_t *queue_at = malloc((size_t)base->virtual_stages * BL__OP_CLASS_TYPES * sizeof *queue_at);
  bool allocated =
      d->devices != NULL && d->entries != NULL && d->effects != NULL && d->ends != NULL && queue_at != NULL;
  bl_status_t status = allocated ? bl__tournament_tree_init(&d->wake, base->stages) : BL_EXHAUSTED;
  if (status == BL_OK) {
    status = bl__op_classes_create(base, costs, recompute, &d->classes);
  }
  if (status == BL_OK) {
    status = make_queues(d, queue_at);
  }
  if (status == BL_OK) {
    d->left = d->effects + count;
    for (uint32_t s = 0; s < base->stages; s++) {
      d->devices[s].base = &base->lists[s];
      d->devices[s].limit = limits[s];
      d->devices[s].slots = recompute.slots > 0 ? recompute.slots : UINT32_MAX;
    }
    link_queues(d, queue_at);
    fill_queues(d, queue_at);
    *dispatcher = d;
  } else {
    bl__dispatcher_destroy(d);
  }
  free(queue_at);
  return status;
}

void bl__dispatcher_destroy(bl__dispatcher_t *d) {
  if (d == NULL) {
    return;
  }
  bl__tournament_tree_cleanup(&d->wake);
  free(d->ends);
  free(d->effects);
  free(d->entries);
  free(d->queues);
  free(d->devices);
  free(d->classes);
  free(d);
}
