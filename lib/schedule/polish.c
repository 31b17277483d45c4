// SPDX-License-Identifier: Apache-2.0
#include "schedule/polish.h"

#include "base/minmax.h"
#include "base/random.h"
#include "schedule/dependency.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

// The search. Times are in mean lengths of an operation, so that the unit of the costs does not matter.
#define ROUNDS         4    // from the best order on, each with a heat of its own that falls to nothing
#define EVENNESS       0.02 // weight of the stages' mean end beside the last one's
#define FARTHEST       8    // places by which an operation moves at once
#define AIMED          8    // of ten moves, those on the critical path
#define FRUITLESS_MAX  1000 // moves in a row that change nothing and count as one order
#define FRUITLESS_NODE 1000 // moves in a row, per operation, that come to nothing where none is possible

// One operation, known by its index in the lists as they were at the beginning.
typedef struct node {
  bl_op_t op;
  uint32_t stage, place; // now
  uint32_t needs;        // node on another virtual stage that must end before
  uint32_t own;          // of a backward that may have an R: the node of its F
  bool fills;            // takes a slot
  double latency, cost;
  double again;             // of a backward: R before it, unless `own` stands directly before
  double ready, start, end; // ready: when it may start, for `needs`, R included; end: -1 while not timed
  double before;            // work of the stage before it
  uint32_t waiter;          // stage that stopped at this node, while timing
} node_t;

// Times of a node before a trial.
typedef struct memory {
  uint32_t node;
  double ready, start, end, before;
} memory_t;

typedef struct polisher {
  bl_schedule_t *schedule;
  const uint32_t *limits;
  uint32_t slots; // from I on; 0: no limit
  node_t *nodes;
  uint32_t count;
  uint32_t **lists;  // [stages] nodes in order
  uint32_t *next;    // [stages] while timing
  uint32_t *stack;   // [stages]
  double *work;      // [stages]
  double again_most; // longest R
  memory_t *touched; // by the timing since the last accepted order
  uint32_t touched_count;
  uint32_t *swaps; // places of the first of two neighbours on the critical path, as nodes
  uint32_t swap_count;
  uint32_t *best;  // all lists of the best order
  uint64_t random; // counter of the random stream
} polisher_t;

static bl_status_t index_nodes(polisher_t *p, const bl_costs_t *costs, bl__again_t again) {
  const bl_schedule_t *schedule = p->schedule;
  size_t blocks = bl_schedule_block_count(schedule);
  uint32_t *node_of = calloc(2 * blocks, sizeof *node_of); // [F, backward][blocks]
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
    bl_op_t op = p->nodes[n].op, needed;
    bool kept = bl__chunk_kept(schedule, again, op.virtual_stage);
    p->nodes[n].needs = p->nodes[n].own = NONE;
    p->nodes[n].fills = kept ? op.verb == BL_VERB_F : bl_verb_starts_backward((bl_verb_t)op.verb);
    if (again.on && !kept && bl_verb_starts_backward((bl_verb_t)op.verb)) {
      p->nodes[n].own = node_of[bl_schedule_block(schedule, op)];
      p->nodes[n].again = bl_costs_op(costs, BL_VERB_R, op.virtual_stage);
      p->again_most = bl_max_f64(p->again_most, p->nodes[n].again);
    }
    if (bl__op_dependency(schedule, op, &needed)) {
      uint32_t node = node_of[(needed.verb != BL_VERB_F) * blocks + bl_schedule_block(schedule, needed)];
      p->nodes[n].needs = node;
      p->nodes[n].latency = p->nodes[node].stage != p->nodes[n].stage ? costs->boundary : 0;
    }
  }
  free(node_of);
  return BL_OK;
}

// Forgets the times of what may start at `moment` or later, an R before what arrives then included; of `stage`, all
// from `place` on.
static uint32_t forget(polisher_t *p, uint32_t stage, uint32_t place, double moment) {
  uint32_t stack_count = 0;
  moment -= p->again_most;
  p->touched_count = 0;
  for (uint32_t s = 0; s < p->schedule->stages; s++) {
    const uint32_t *list = p->lists[s];
    uint32_t low = 0, high = (uint32_t)p->schedule->lists[s].count, count = high;
    while (s != stage && low < high) {
      uint32_t middle = low + (high - low) / 2;
      if (p->nodes[list[middle]].start < moment) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    p->next[s] = s == stage ? place : low;
    for (uint32_t i = p->next[s]; i < count; i++) {
      node_t *node = &p->nodes[list[i]];
      p->touched[p->touched_count++] = (memory_t){list[i], node->ready, node->start, node->end, node->before};
      node->end = -1;
      node->waiter = NONE;
    }
    p->stack[stack_count] = s;
    stack_count += p->next[s] < count;
  }
  return stack_count;
}

static void remember(polisher_t *p) {
  for (uint32_t k = 0; k < p->touched_count; k++) {
    node_t *node = &p->nodes[p->touched[k].node];
    node->ready = p->touched[k].ready;
    node->start = p->touched[k].start;
    node->end = p->touched[k].end;
    node->before = p->touched[k].before;
  }
}

// Times the present order, which is as it was when it was last timed but for `stage` from `place` on, where an
// operation started at `moment`. Infinite when it cannot run or ends after `latest`.
static double time_from(polisher_t *p, uint32_t stage, uint32_t place, double moment, double latest) {
  uint32_t stack_count = forget(p, stage, place, moment), left = p->touched_count;
  double t_end = 0;
  while (stack_count > 0) {
    uint32_t s = p->stack[--stack_count], count = (uint32_t)p->schedule->lists[s].count;
    const uint32_t *list = p->lists[s];
    const node_t *last = p->next[s] > 0 ? &p->nodes[list[p->next[s] - 1]] : NULL;
    double now = last != NULL ? last->end : 0, done = last != NULL ? last->before + last->cost : 0;
    for (; p->next[s] < count; p->next[s]++) {
      node_t *node = &p->nodes[list[p->next[s]]];
      double again = p->next[s] > 0 && list[p->next[s] - 1] == node->own ? 0 : node->again;
      node->ready = 0;
      if (node->needs != NONE) {
        node_t *needed = &p->nodes[node->needs];
        if (needed->end < 0) {
          needed->waiter = s;
          break;
        }
        node->ready = needed->end + node->latency - again;
      }
      node->start = bl_max_f64(now, node->ready);
      node->before = done;
      if (node->start + p->work[s] - done > latest) {
        return INFINITY;
      }
      now = node->end = node->start + again + node->cost;
      done += node->cost;
      left--;
      if (node->waiter != NONE) {
        p->stack[stack_count++] = node->waiter;
      }
    }
  }
  for (uint32_t s = 0; s < p->schedule->stages; s++) {
    size_t count = p->schedule->lists[s].count;
    t_end = left == 0 && count > 0 ? bl_max_f64(t_end, p->nodes[p->lists[s][count - 1]].end) : t_end;
  }
  return left == 0 ? t_end : INFINITY;
}

static double time_order(polisher_t *p) {
  return time_from(p, 0, 0, -1, INFINITY);
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

// Does a stage stay within its limit?
static bool fits(const polisher_t *p, uint32_t stage) {
  const uint32_t slots = p->slots > 0 ? p->slots : UINT32_MAX;
  uint32_t held = 0, filled = 0;
  for (size_t i = 0; i < p->schedule->lists[stage].count; i++) {
    const node_t *node = &p->nodes[p->lists[stage][i]];
    bl_verb_t verb = (bl_verb_t)node->op.verb;
    held += verb == BL_VERB_F;
    filled += node->fills;
    if (held > p->limits[stage] || filled > slots) {
      return false;
    }
    held -= bl_verb_ends_block(verb);
    filled -= bl_verb_ends_block(verb);
  }
  return true;
}

// Moves a node by up to `places` and returns by how many it went: it stops where it may not pass a neighbour.
static uint32_t shift(polisher_t *p, uint32_t n, bool later, uint32_t places) {
  const node_t *node = &p->nodes[n];
  const uint32_t *list = p->lists[node->stage];
  uint32_t done = 0;
  for (; done < places; done++) {
    if (later ? node->place + 1 >= p->schedule->lists[node->stage].count : node->place == 0) {
      break;
    }
    uint32_t first = later ? n : list[node->place - 1], second = later ? list[node->place + 1] : n;
    if (!may_swap(p, &p->nodes[first], &p->nodes[second])) {
      break;
    }
    swap_at(p, first);
  }
  return done;
}

// What is to become small. Of orders that end at the same time the one whose stages end earlier is nearer to a better.
static double score_of(const polisher_t *p, double t_end) {
  double sum = 0;
  for (uint32_t s = 0; s < p->schedule->stages; s++) {
    size_t count = p->schedule->lists[s].count;
    sum += count > 0 ? p->nodes[p->lists[s][count - 1]].end : 0;
  }
  return t_end + EVENNESS * sum / p->schedule->stages;
}

// How much worse, in heats, an order may be and still be accepted: about -ln of a uniform number, but by exact
// arithmetic, so that every machine finds the same order.
static double patience(polisher_t *p) {
  uint64_t bits = bl_random_bits(4, p->random++);
  double halvings = 0;
  for (; (bits & 1) != 0 && halvings < 32; bits >>= 1) {
    halvings++;
  }
  return 0.6931471805599453 * (halvings + (double)((bits >> 1) & 0xffff) / 65536);
}

typedef struct move {
  uint32_t node, places;
  bool later;
} move_t;

// Mostly one of two neighbours on the critical path that might change places; now and then any node.
static move_t draw_move(polisher_t *p) {
  move_t move = {.places = 1};
  bool aimed = p->swap_count > 0 && bl_random_below(2, p->random++, 10) < AIMED;
  if (aimed) {
    move.node = p->swaps[bl_random_below(2, p->random++, p->swap_count)];
  } else {
    move.node = (uint32_t)bl_random_below(3, p->random++, p->count);
  }
  move.later = bl_random_below(2, p->random++, 2) != 0;
  if (aimed && !move.later) {
    move.node = p->lists[p->nodes[move.node].stage][p->nodes[move.node].place + 1];
  }
  if (!aimed || bl_random_below(2, p->random++, 2) == 0) {
    move.places += (uint32_t)bl_random_below(2, p->random++, aimed ? FARTHEST : FARTHEST / 2);
  }
  return move;
}

static void restore(polisher_t *p, const uint32_t *order) {
  for (uint32_t s = 0, n = 0; s < p->schedule->stages; s++) {
    for (uint32_t i = 0; i < p->schedule->lists[s].count; i++, n++) {
      p->lists[s][i] = order[n];
      p->nodes[order[n]].place = i;
    }
  }
}

// Times the order after a move by `moved` places.
static double try_move(polisher_t *p, move_t move, uint32_t moved, double latest) {
  const node_t *node = &p->nodes[move.node];
  const uint32_t *list = p->lists[node->stage];
  uint32_t place = move.later ? node->place - moved : node->place;
  uint32_t was_first = move.later ? move.node : list[place + 1]; // at that place before the move
  return time_from(p, node->stage, place, p->nodes[was_first].start, latest);
}

// Simulated annealing from the present order, which ends at `now`.
static void anneal(polisher_t *p, size_t evaluations, double heat, double goal, double now, double *t_end) {
  double score = score_of(p, now), least = 0; // least: what evenness adds to the score of any order
  uint32_t fruitless = 0;
  p->touched_count = 0;
  for (uint32_t s = 0; s < p->schedule->stages; s++) {
    least += EVENNESS * p->work[s] / p->schedule->stages;
  }
  collect_swaps(p, now);
  for (size_t left = evaluations; left > 0 && *t_end > goal;) {
    move_t move = draw_move(p);
    uint32_t moved = shift(p, move.node, move.later, move.places);
    fruitless = moved == 0 ? fruitless + 1 : 0;
    if (moved == 0) {
      if (fruitless / FRUITLESS_NODE >= p->count) {
        return; // no order but this one, as with a single micro-batch
      }
      left -= fruitless % FRUITLESS_MAX == 0;
      continue;
    }
    left--;
    double allowed = heat * ((double)left / (double)evaluations) * patience(p);
    double then = fits(p, p->nodes[move.node].stage) ? try_move(p, move, moved, score + allowed - least) : INFINITY;
    double attempt = isinf(then) ? INFINITY : score_of(p, then);
    if (attempt <= score + allowed) {
      now = then;
      score = attempt;
      p->touched_count = 0;
      collect_swaps(p, now);
      if (now < *t_end * (1 - 1e-12)) {
        *t_end = now;
        memcpy(p->best, p->lists[0], p->count * sizeof *p->best);
      }
    } else {
      (void)shift(p, move.node, !move.later, moved);
      remember(p);
      p->touched_count = 0;
    }
  }
}

static void search(polisher_t *p, size_t evaluations, double goal, double *t_end) {
  static const double heats[ROUNDS] = {2, 0.5, 0.2, 1};
  double mean = 0;
  for (uint32_t n = 0; n < p->count; n++) {
    mean += p->nodes[n].cost / p->count;
  }
  memcpy(p->best, p->lists[0], p->count * sizeof *p->best); // the lists lie one behind the other
  for (uint32_t round = 0; round < ROUNDS && evaluations >= ROUNDS && *t_end > goal; round++) {
    anneal(p, evaluations / ROUNDS, heats[round] * mean, goal, time_order(p), t_end);
    restore(p, p->best);
  }
}

bl_status_t bl__polish(bl_schedule_t *schedule, const bl_costs_t *costs, const uint32_t *limits, bl__again_t again,
                       size_t evaluations, double goal, double *t_end) {
  size_t count = bl_schedule_op_count(schedule);
  polisher_t p = {.schedule = schedule, .limits = limits, .slots = again.slots, .count = (uint32_t)count};
  p.nodes = calloc(count + 1, sizeof p.nodes[0]);
  p.lists = calloc(schedule->stages, sizeof p.lists[0]);
  p.work = calloc(schedule->stages, sizeof p.work[0]);
  p.touched = malloc((count + 1) * sizeof p.touched[0]);
  uint32_t *places = calloc(3 * count + 2 * (size_t)schedule->stages + 1, sizeof *places);
  bool allocated = p.nodes != NULL && p.lists != NULL && p.work != NULL && p.touched != NULL && places != NULL;
  bl_status_t status = allocated ? BL_OK : BL_EXHAUSTED;
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
    status = index_nodes(&p, costs, again);
    for (uint32_t n = 0; n < p.count; n++) {
      p.work[p.nodes[n].stage] += p.nodes[n].cost;
    }
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
  free(p.touched);
  free(p.work);
  free(p.lists);
  free(p.nodes);
  return status;
}
