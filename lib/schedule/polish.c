// SPDX-License-Identifier: Apache-2.0
#include "schedule/polish.h"

#include "base/random.h"
#include "schedule/dependency.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NONE       UINT32_MAX
#define KICK_SWAPS 12
#define KICK_TRIES 60

// One operation, known by its index in the lists as they were at the beginning.
typedef struct node {
  bl_op_t op;
  uint32_t stage, place; // now
  uint32_t needs;        // node on another virtual stage that must end before
  double latency, cost;
  double ready, start, end; // ready: when `needs` has ended and arrived
  uint32_t waiter;          // stage that stopped at this node, while timing
} node_t;

typedef struct polisher {
  bl_schedule_t *schedule;
  const uint32_t *limits;
  node_t *nodes;
  uint32_t count;
  uint32_t **lists; // [stages] nodes in order
  uint32_t *next;   // [stages] while timing
  uint32_t *stack;  // [stages]
  uint32_t *swaps;  // places of the first of two neighbours on the critical path, as nodes
  uint32_t swap_count;
  uint32_t *best;  // all lists of the best order
  uint64_t random; // counter of the random stream
} polisher_t;

static bl_status_t index_nodes(polisher_t *p, const bl_costs_t *costs) {
  const bl_schedule_t *schedule = p->schedule;
  size_t blocks = bl_schedule_block_count(schedule);
  uint32_t *node_of = malloc(2 * blocks * sizeof *node_of); // [F, backward][blocks]
  if (node_of == NULL) {
    return BL_EXHAUSTED;
  }
  for (uint32_t s = 0, n = 0; s < schedule->stages; s++) {
    for (uint32_t i = 0; i < schedule->lists[s].count; i++, n++) {
      bl_op_t op = schedule->lists[s].ops[i];
      p->nodes[n] =
          (node_t){.op = op, .stage = s, .place = i, .cost = bl_costs_op(costs, (bl_verb_t)op.verb, op.virtual_stage)};
      p->lists[s][i] = n;
      if (op.verb == BL_VERB_F || bl_verb_starts_backward((bl_verb_t)op.verb)) {
        node_of[(op.verb != BL_VERB_F) * blocks + bl_schedule_block(schedule, op)] = n;
      }
    }
  }
  for (uint32_t n = 0; n < p->count; n++) {
    bl_op_t needed;
    p->nodes[n].needs = NONE;
    if (bl__op_dependency(schedule, p->nodes[n].op, &needed)) {
      uint32_t node = node_of[(needed.verb != BL_VERB_F) * blocks + bl_schedule_block(schedule, needed)];
      p->nodes[n].needs = node;
      p->nodes[n].latency = p->nodes[node].stage != p->nodes[n].stage ? costs->boundary : 0;
    }
  }
  free(node_of);
  return BL_OK;
}

// Times the present order; infinite when it cannot run.
static double time_order(polisher_t *p) {
  uint32_t stack_count = 0, done = 0;
  double t_end = 0;
  for (uint32_t n = 0; n < p->count; n++) {
    p->nodes[n].end = -1;
    p->nodes[n].waiter = NONE;
  }
  for (uint32_t s = 0; s < p->schedule->stages; s++) {
    p->next[s] = 0;
    p->stack[stack_count++] = s;
  }
  while (stack_count > 0) {
    uint32_t s = p->stack[--stack_count];
    const uint32_t *list = p->lists[s];
    double now = p->next[s] > 0 ? p->nodes[list[p->next[s] - 1]].end : 0;
    for (; p->next[s] < p->schedule->lists[s].count; p->next[s]++) {
      node_t *node = &p->nodes[list[p->next[s]]];
      node->ready = 0;
      if (node->needs != NONE) {
        node_t *needed = &p->nodes[node->needs];
        if (needed->end < 0) {
          needed->waiter = s;
          break;
        }
        node->ready = needed->end + node->latency;
      }
      node->start = fmax(now, node->ready);
      now = node->end = node->start + node->cost;
      done++;
      if (node->waiter != NONE) {
        p->stack[stack_count++] = node->waiter;
      }
    }
    t_end = fmax(t_end, now);
  }
  return done == p->count ? t_end : INFINITY;
}

// May the neighbours `a`, `b` of one list change places?
static bool may_swap(const polisher_t *p, const node_t *a, const node_t *b) {
  bl_op_t x = a->op, y = b->op;
  if (b->needs != NONE && &p->nodes[b->needs] == a) {
    return false;
  }
  // One chunk keeps each verb in order of micro-batches, and a block its F, backward, W.
  return x.virtual_stage != y.virtual_stage ||
         (x.verb != y.verb && (x.micro_batch != y.micro_batch || x.slice != y.slice));
}

// Walks back from the end and collects the neighbours whose exchange might let the second of them start earlier.
static void collect_swaps(polisher_t *p, double t_end) {
  uint32_t at = NONE;
  p->swap_count = 0;
  for (uint32_t s = 0; s < p->schedule->stages; s++) {
    size_t count = p->schedule->lists[s].count;
    if (count > 0 && p->nodes[p->lists[s][count - 1]].end == t_end) {
      at = p->lists[s][count - 1];
    }
  }
  while (at != NONE) {
    const node_t *node = &p->nodes[at];
    if (node->start <= 0) {
      break;
    }
    uint32_t before = node->place > 0 ? p->lists[node->stage][node->place - 1] : NONE;
    if (before != NONE && p->nodes[before].end == node->start) {
      if (node->ready < node->start && may_swap(p, &p->nodes[before], node)) {
        p->swaps[p->swap_count++] = before;
      }
      // Both bind: go on along either.
      at = node->ready == node->start && node->needs != NONE && (bl_random_bits(1, p->random++) & 1) ? node->needs
                                                                                                     : before;
    } else {
      at = node->needs;
    }
  }
}

static void swap_at(polisher_t *p, uint32_t first) {
  uint32_t *list = p->lists[p->nodes[first].stage];
  uint32_t place = p->nodes[first].place, second = list[place + 1];
  list[place] = second;
  list[place + 1] = first;
  p->nodes[second].place = place;
  p->nodes[first].place = place + 1;
}

// Does the stage of two neighbours that changed places stay within its limit?
static bool fits_swapped(const polisher_t *p, uint32_t before, uint32_t after) {
  uint32_t stage = p->nodes[before].stage, held = 0;
  if (p->nodes[before].op.verb != BL_VERB_F || !bl_verb_ends_block((bl_verb_t)p->nodes[after].op.verb)) {
    return true; // no F came earlier than the end of a block
  }
  for (size_t i = 0; i < p->schedule->lists[stage].count; i++) {
    bl_op_t op = p->nodes[p->lists[stage][i]].op;
    held += op.verb == BL_VERB_F;
    if (held > p->limits[stage]) {
      return false;
    }
    held -= bl_verb_ends_block((bl_verb_t)op.verb);
  }
  return true;
}

// Swaps neighbours on the critical path while that makes nothing later.
static void descend(polisher_t *p, size_t *evaluations, double goal, double *t_end) {
  collect_swaps(p, *t_end);
  while (*evaluations > 0 && *t_end > goal && p->swap_count > 0) {
    uint32_t pick = (uint32_t)bl_random_below(2, p->random++, p->swap_count), first = p->swaps[pick];
    p->swaps[pick] = p->swaps[--p->swap_count];
    uint32_t second = p->lists[p->nodes[first].stage][p->nodes[first].place + 1];
    swap_at(p, first);
    double now = INFINITY;
    if (fits_swapped(p, second, first)) {
      now = time_order(p);
      (*evaluations)--;
    }
    if (now <= *t_end) {
      *t_end = now;
      collect_swaps(p, now);
    } else {
      swap_at(p, second);
    }
  }
}

// Out of a local optimum: swaps a few neighbours anywhere that can be swapped.
static double kick(polisher_t *p, size_t *evaluations) {
  double now = INFINITY;
  for (int tries = 0, left = KICK_SWAPS; tries < KICK_TRIES && left > 0 && *evaluations > 0; tries++) {
    uint32_t first = (uint32_t)bl_random_below(3, p->random++, p->count);
    const node_t *node = &p->nodes[first];
    if (node->place + 1 >= p->schedule->lists[node->stage].count) {
      continue;
    }
    uint32_t second = p->lists[node->stage][node->place + 1];
    if (!may_swap(p, node, &p->nodes[second])) {
      continue;
    }
    swap_at(p, first);
    (*evaluations)--;
    double then = fits_swapped(p, second, first) ? time_order(p) : INFINITY;
    if (isinf(then)) {
      swap_at(p, second);
    } else {
      now = then;
      left--;
    }
  }
  return now;
}

static void restore(polisher_t *p, const uint32_t *order) {
  for (uint32_t s = 0, n = 0; s < p->schedule->stages; s++) {
    for (uint32_t i = 0; i < p->schedule->lists[s].count; i++, n++) {
      p->lists[s][i] = order[n];
      p->nodes[order[n]].place = i;
    }
  }
}

static void search(polisher_t *p, size_t evaluations, double goal, double *t_end) {
  double now = *t_end;
  memcpy(p->best, p->lists[0], p->count * sizeof *p->best); // the lists lie one behind the other
  while (evaluations > 0 && *t_end > goal && !isinf(now)) {
    descend(p, &evaluations, goal, &now);
    if (now <= *t_end) {
      *t_end = now;
      memcpy(p->best, p->lists[0], p->count * sizeof *p->best);
    } else {
      restore(p, p->best);
    }
    now = evaluations > 0 ? kick(p, &evaluations) : INFINITY;
  }
  restore(p, p->best);
}

bl_status_t bl__polish(bl_schedule_t *schedule, const bl_costs_t *costs, const uint32_t *limits, size_t evaluations,
                       double goal, double *t_end) {
  size_t count = bl_schedule_op_count(schedule);
  polisher_t p = {.schedule = schedule, .limits = limits, .count = (uint32_t)count};
  p.nodes = malloc((count + 1) * sizeof p.nodes[0]);
  p.lists = calloc(schedule->stages, sizeof p.lists[0]);
  uint32_t *places = malloc((3 * count + 2 * (size_t)schedule->stages + 1) * sizeof *places);
  bl_status_t status = p.nodes != NULL && p.lists != NULL && places != NULL ? BL_OK : BL_EXHAUSTED;
  if (status == BL_OK) {
    uint32_t *free_places = places;
    for (uint32_t s = 0; s < schedule->stages; s++) {
      p.lists[s] = free_places;
      free_places += schedule->lists[s].count;
    }
    p.swaps = free_places;
    p.best = p.swaps + count;
    p.next = p.best + count;
    p.stack = p.next + schedule->stages;
    status = index_nodes(&p, costs);
  }
  if (status == BL_OK) {
    *t_end = time_order(&p);
    search(&p, evaluations, goal, t_end);
    for (uint32_t s = 0; s < schedule->stages; s++) {
      for (size_t i = 0; i < schedule->lists[s].count; i++) {
        schedule->lists[s].ops[i] = p.nodes[p.lists[s][i]].op;
      }
    }
  }
  free(places);
  free(p.lists);
  free(p.nodes);
  return status;
}
