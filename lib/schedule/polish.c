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
#define CONE_MAX       96   // changes of times, above which all that comes later is timed
#define FRUITLESS_MAX  1000 // moves in a row that change nothing and count as one order
#define FRUITLESS_NODE 1000 // moves in a row, per operation, that come to nothing where none is possible

// One operation, known by its index in the lists as they were at the beginning.
typedef struct node {
  double latency, cost;
  double again;    // of a backward: R before it, unless `own` stands directly before
  uint32_t needs;  // node on another virtual stage that must end before
  uint32_t own;    // of a backward that may have an R: the node of its F
  uint32_t place;  // in the list of its stage, now
  uint16_t stage;  // and the one
  uint16_t wakes;  // stage of `feeds`, or NO_STAGE
  uint32_t feeds;  // node that needs it, or NONE
  uint32_t held;   // blocks of the stage before it
  uint32_t filled; // of those, the ones that fill slots
  bl_op_t op;
  bool fills; // takes a slot
} node_t;

#define NO_STAGE UINT16_MAX

typedef struct times {
  double start, end;
  double before; // work of the stage before it
} times_t;

// The nodes whose times a move changes, while they are few.
typedef struct cone {
  uint32_t nodes[2 * CONE_MAX + 2 * FARTHEST], count; // to look at
  uint32_t changed[CONE_MAX], changed_count;
  uint32_t *round; // [nodes] in which a node was changed last
  uint32_t now;    // this round
  bool possible;   // operations that others wait for take some time, so that a cycle does not come to rest
} cone_t;

// One stage while an order is timed.
typedef struct walk {
  uint32_t cut;   // place from which on times are new
  uint32_t next;  // place to time
  uint32_t waits; // node for whose end it stopped, or NONE
  double work;    // of all operations
} walk_t;

typedef struct polisher {
  bl_schedule_t *schedule;
  const uint32_t *limits;
  uint32_t slots; // from I on; 0: no limit
  node_t *nodes;
  uint32_t count;
  uint32_t **lists; // [stages] nodes in order
  times_t *times;   // [nodes] of the accepted order
  times_t *trial;   // [nodes] of the one that was timed last, of each stage from its cut on
  walk_t *walks;    // [stages]
  cone_t cone;
  bool in_cone;      // the order that was timed last is the accepted one but for the cone
  bool *fitted;      // [stages] within their limits
  uint32_t *stack;   // [stages]
  double again_most; // longest R
  uint32_t *swaps;   // places of the first of two neighbours on the critical path, as nodes
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
      p->nodes[n] = (node_t){.op = op,
                             .stage = (uint16_t)s,
                             .wakes = NO_STAGE,
                             .feeds = NONE,
                             .place = i,
                             .cost = bl_costs_op(costs, (bl_verb_t)op.verb, op.virtual_stage)};
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
      p->nodes[node].wakes = p->nodes[n].stage;
      p->nodes[node].feeds = n;
      p->nodes[n].latency = p->nodes[node].stage != p->nodes[n].stage ? costs->boundary : 0;
    }
  }
  free(node_of);
  return BL_OK;
}

// Cuts the lists before what may start at `moment` or later, an R before what arrives then included; that of `stage` at
// `place`. Puts the stages that have something to time on the stack, `stage` on its top, and returns how many nodes that is.
static uint32_t cut_lists(polisher_t *p, uint32_t stage, uint32_t place, double moment, uint32_t *stack_count) {
  uint32_t left = 0;
  moment -= p->again_most;
  *stack_count = 0;
  for (uint32_t s = 0; s < p->schedule->stages; s++) {
    const uint32_t *list = p->lists[s];
    uint32_t low = 0, high = (uint32_t)p->schedule->lists[s].count, count = high;
    while (s != stage && low < high) {
      uint32_t middle = low + (high - low) / 2;
      if (p->times[list[middle]].start < moment) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    walk_t *walk = &p->walks[s];
    walk->cut = walk->next = s == stage ? place : low;
    walk->waits = NONE;
    left += count - walk->cut;
    p->stack[*stack_count] = s;
    *stack_count += s != stage && walk->cut < count;
  }
  p->stack[*stack_count] = stage;
  *stack_count += p->walks[stage].cut < p->schedule->lists[stage].count;
  return left;
}

// The end of a node: NULL while it is not timed.
static const double *end_of(const polisher_t *p, uint32_t n) {
  const walk_t *walk = &p->walks[p->nodes[n].stage];
  uint32_t place = p->nodes[n].place;
  return place < walk->cut ? &p->times[n].end : place < walk->next ? &p->trial[n].end : NULL;
}

// Times a stage until it waits and returns how many nodes that was; NONE when it ends after `latest`.
static uint32_t time_stage(polisher_t *p, uint32_t s, double latest, uint32_t *stack_count) {
  walk_t *walk = &p->walks[s];
  uint32_t count = (uint32_t)p->schedule->lists[s].count, first = walk->next;
  const uint32_t *list = p->lists[s];
  double now = 0, done = 0;
  if (first > 0) {
    uint32_t last = list[first - 1];
    const times_t *times = first - 1 < walk->cut ? &p->times[last] : &p->trial[last];
    now = times->end;
    done = times->before + p->nodes[last].cost;
  }
  for (; walk->next < count; walk->next++) {
    uint32_t n = list[walk->next];
    const node_t *node = &p->nodes[n];
    double again = node->again != 0 && walk->next > 0 && list[walk->next - 1] == node->own ? 0 : node->again;
    double start = now;
    if (node->needs != NONE) {
      const double *needed = end_of(p, node->needs);
      if (needed == NULL) {
        walk->waits = node->needs;
        break;
      }
      start = bl_max_f64(now, *needed + node->latency - again);
    }
    if (start + walk->work - done > latest) {
      return NONE;
    }
    now = start + again + node->cost;
    p->trial[n] = (times_t){start, now, done};
    done += node->cost;
    if (node->wakes != NO_STAGE && p->walks[node->wakes].waits == n) {
      p->walks[node->wakes].waits = NONE;
      p->stack[(*stack_count)++] = node->wakes;
    }
  }
  return walk->next - first;
}

static const times_t *times_in_cone(const polisher_t *p, uint32_t n) {
  return p->cone.round[n] == p->cone.now ? &p->trial[n] : &p->times[n];
}

// When the stage ends in the order that was timed last.
static double last_end(const polisher_t *p, uint32_t s) {
  size_t count = p->schedule->lists[s].count;
  if (count == 0) {
    return 0;
  }
  uint32_t last = p->lists[s][count - 1];
  if (p->in_cone) {
    return times_in_cone(p, last)->end;
  }
  return p->walks[s].cut < count ? p->trial[last].end : p->times[last].end;
}

static double latest_end(const polisher_t *p) {
  double t_end = 0;
  for (uint32_t s = 0; s < p->schedule->stages; s++) {
    t_end = bl_max_f64(t_end, last_end(p, s));
  }
  return t_end;
}

// Times the present order, which is as the accepted one but for `stage` from `place` on, where an operation started at
// `moment`. Infinite when it cannot run or ends after `latest`.
static double time_from(polisher_t *p, uint32_t stage, uint32_t place, double moment, double latest) {
  p->in_cone = false;
  uint32_t stack_count, left = cut_lists(p, stage, place, moment, &stack_count);
  while (stack_count > 0) {
    uint32_t timed = time_stage(p, p->stack[--stack_count], latest, &stack_count);
    if (timed == NONE) {
      return INFINITY;
    }
    left -= timed;
  }
  return left == 0 ? latest_end(p) : INFINITY;
}

// Times the node anew. False: it has changed, and that is one change too many.
static bool look_at(polisher_t *p, uint32_t n, bool moved) {
  cone_t *cone = &p->cone;
  const node_t *node = &p->nodes[n];
  times_t times = {0, 0, 0};
  double again = node->again;
  if (node->place > 0) {
    uint32_t last = p->lists[node->stage][node->place - 1];
    const times_t *before = times_in_cone(p, last);
    again = last == node->own ? 0 : again;
    times.start = before->end;
    times.before = before->before + p->nodes[last].cost;
  }
  if (node->needs != NONE) {
    times.start = bl_max_f64(times.start, times_in_cone(p, node->needs)->end + node->latency - again);
  }
  times.end = times.start + again + node->cost;
  const times_t *was = times_in_cone(p, n);
  bool later = times.end != was->end;
  if (!later && !moved && times.start == was->start) {
    return true;
  }
  if (cone->round[n] != cone->now) {
    if (cone->changed_count == CONE_MAX) {
      return false;
    }
    cone->round[n] = cone->now;
    cone->changed[cone->changed_count++] = n;
  }
  p->trial[n] = times;
  if (later) {
    bool full = cone->count + 2 > sizeof cone->nodes / sizeof cone->nodes[0];
    if (full) {
      return false;
    }
    if (node->place + 1 < p->schedule->lists[node->stage].count) {
      cone->nodes[cone->count++] = p->lists[node->stage][node->place + 1];
    }
    if (node->feeds != NONE) {
      cone->nodes[cone->count++] = node->feeds;
    }
  }
  return true;
}

// Times the present order, which is the accepted one but for the places of `stage` from `first` to before `end`, where
// that changes the times of few nodes. False: of too many.
static bool time_cone(polisher_t *p, uint32_t stage, uint32_t first, uint32_t end) {
  cone_t *cone = &p->cone;
  if (!cone->possible) {
    return false;
  }
  cone->now++;
  cone->count = cone->changed_count = 0;
  for (uint32_t i = first; i < end; i++) {
    if (!look_at(p, p->lists[stage][i], true)) {
      return false;
    }
  }
  if (end < p->schedule->lists[stage].count) {
    cone->nodes[cone->count++] = p->lists[stage][end];
  }
  for (uint32_t k = 0; k < cone->count; k++) {
    if (!look_at(p, cone->nodes[k], false)) {
      return false;
    }
  }
  return true;
}

// Accepts the order that was timed last.
static void accept(polisher_t *p) {
  if (p->in_cone) {
    for (uint32_t k = 0; k < p->cone.changed_count; k++) {
      p->times[p->cone.changed[k]] = p->trial[p->cone.changed[k]];
    }
    p->in_cone = false;
    for (uint32_t s = 0; s < p->schedule->stages; s++) {
      p->walks[s].cut = (uint32_t)p->schedule->lists[s].count;
    }
    return;
  }
  for (uint32_t s = 0; s < p->schedule->stages; s++) {
    const uint32_t *list = p->lists[s];
    size_t count = p->schedule->lists[s].count;
    for (size_t i = p->walks[s].cut; i < count; i++) {
      p->times[list[i]] = p->trial[list[i]];
    }
    p->walks[s].cut = (uint32_t)count;
  }
}

// Times and accepts the present order, whatever it is.
static double time_order(polisher_t *p) {
  double t_end = time_from(p, 0, 0, -1, INFINITY);
  accept(p);
  return t_end;
}

// When the node may start for what it needs, its R included.
static double ready_of(const polisher_t *p, const node_t *node) {
  if (node->needs == NONE) {
    return 0;
  }
  bool fresh = node->place > 0 && p->lists[node->stage][node->place - 1] == node->own;
  return p->times[node->needs].end + node->latency - (fresh ? 0 : node->again);
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
    if (count > 0 && p->times[p->lists[s][count - 1]].end == t_end) {
      at = p->lists[s][count - 1];
    }
  }
  while (at != NONE) {
    const node_t *node = &p->nodes[at];
    double start = p->times[at].start;
    if (start <= 0) {
      break;
    }
    double ready = ready_of(p, node);
    uint32_t before = node->place > 0 ? p->lists[node->stage][node->place - 1] : NONE;
    if (before != NONE && p->times[before].end == start) {
      if (ready < start && may_swap(p, &p->nodes[before], node)) {
        p->swaps[p->swap_count++] = before;
      }
      // Both bind: go on along either.
      at = ready == start && node->needs != NONE && (bl_random_bits(1, p->random++) & 1) ? node->needs : before;
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

// Does a stage stay within its limit from place `first` to before `end`, before which nothing has changed?
static bool fits(const polisher_t *p, uint32_t stage, uint32_t first, uint32_t end, uint32_t held, uint32_t filled) {
  const uint32_t slots = p->slots > 0 ? p->slots : UINT32_MAX;
  for (uint32_t i = first; i < end; i++) {
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

// Notes what the stage holds from place `first` to before `end`.
static void note_held(polisher_t *p, uint32_t stage, uint32_t first, uint32_t end, uint32_t held, uint32_t filled) {
  for (uint32_t i = first; i < end; i++) {
    node_t *node = &p->nodes[p->lists[stage][i]];
    bl_verb_t verb = (bl_verb_t)node->op.verb;
    node->held = held;
    node->filled = filled;
    held += verb == BL_VERB_F;
    filled += node->fills;
    held -= bl_verb_ends_block(verb);
    filled -= bl_verb_ends_block(verb);
  }
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
    sum += last_end(p, s);
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
    note_held(p, s, 0, (uint32_t)p->schedule->lists[s].count, 0, 0);
  }
}

// A move that was made: the places of `stage` that it changed, and what stood first there and what it held.
typedef struct window {
  uint32_t stage, first, end;
  uint32_t was_first, held, filled;
} window_t;

static window_t window_of(const polisher_t *p, move_t move, uint32_t moved) {
  const node_t *node = &p->nodes[move.node];
  uint32_t first = move.later ? node->place - moved : node->place;
  uint32_t was_first = move.later ? move.node : p->lists[node->stage][first + 1]; // it stood there before the move
  const node_t *was = &p->nodes[was_first];
  return (window_t){node->stage, first, first + moved + 1, was_first, was->held, was->filled};
}

// Times the order after a move.
static double try_move(polisher_t *p, const window_t *window, double latest) {
  uint32_t s = window->stage;
  if (p->fitted[s] ? !fits(p, s, window->first, window->end, window->held, window->filled)
                   : !fits(p, s, 0, (uint32_t)p->schedule->lists[s].count, 0, 0)) {
    return INFINITY;
  }
  p->in_cone = time_cone(p, s, window->first, window->end);
  if (p->in_cone) {
    return latest_end(p);
  }
  return time_from(p, s, window->first, p->times[window->was_first].start, latest);
}

static void accept_move(polisher_t *p, const window_t *window) {
  accept(p);
  p->fitted[window->stage] = true;
  note_held(p, window->stage, window->first, window->end, window->held, window->filled);
}

// Simulated annealing from the present order, which ends at `now`.
static void anneal(polisher_t *p, size_t evaluations, double heat, double goal, double now, double *t_end) {
  double score = score_of(p, now), least = 0; // least: what evenness adds to the score of any order
  uint32_t fruitless = 0;
  for (uint32_t s = 0; s < p->schedule->stages; s++) {
    least += EVENNESS * p->walks[s].work / p->schedule->stages;
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
    const window_t window = window_of(p, move, moved);
    double then = try_move(p, &window, score + allowed - least);
    double attempt = isinf(then) ? INFINITY : score_of(p, then);
    if (attempt <= score + allowed) {
      now = then;
      score = attempt;
      accept_move(p, &window);
      collect_swaps(p, now);
      if (now < *t_end * (1 - 1e-12)) {
        *t_end = now;
        memcpy(p->best, p->lists[0], p->count * sizeof *p->best);
      }
    } else {
      (void)shift(p, move.node, !move.later, moved);
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

// What is known of the first order before it is timed.
static void begin(polisher_t *p) {
  p->cone.possible = true;
  for (uint32_t n = 0; n < p->count; n++) {
    p->walks[p->nodes[n].stage].work += p->nodes[n].cost;
    p->cone.possible = p->cone.possible && (p->nodes[n].cost > 0 || p->nodes[n].op.verb == BL_VERB_W);
  }
  for (uint32_t s = 0; s < p->schedule->stages; s++) {
    uint32_t count = (uint32_t)p->schedule->lists[s].count;
    p->fitted[s] = fits(p, s, 0, count, 0, 0);
    note_held(p, s, 0, count, 0, 0);
  }
}

bl_status_t bl__polish(bl_schedule_t *schedule, const bl_costs_t *costs, const uint32_t *limits, bl__again_t again,
                       size_t evaluations, double goal, double *t_end) {
  size_t count = bl_schedule_op_count(schedule);
  polisher_t p = {.schedule = schedule, .limits = limits, .slots = again.slots, .count = (uint32_t)count};
  p.nodes = calloc(count + 1, sizeof p.nodes[0]);
  p.lists = calloc(schedule->stages, sizeof p.lists[0]);
  p.walks = calloc(schedule->stages, sizeof p.walks[0]);
  p.fitted = calloc(schedule->stages, sizeof p.fitted[0]);
  p.times = calloc(2 * (count + 1), sizeof p.times[0]);
  uint32_t *places = calloc(4 * count + (size_t)schedule->stages + 1, sizeof *places);
  bool allocated =
      p.nodes != NULL && p.lists != NULL && p.walks != NULL && p.fitted != NULL && p.times != NULL && places != NULL;
  bl_status_t status = allocated ? BL_OK : BL_EXHAUSTED;
  if (status == BL_OK) {
    uint32_t *free_places = places;
    for (uint32_t s = 0; s < schedule->stages; s++) {
      p.lists[s] = free_places;
      free_places += schedule->lists[s].count;
    }
    p.swaps = free_places;
    p.best = p.swaps + count;
    p.cone.round = p.best + count;
    p.stack = p.cone.round + count;
    p.trial = p.times + count + 1;
    status = index_nodes(&p, costs, again);
  }
  if (status == BL_OK) {
    begin(&p);
    *t_end = time_order(&p);
    search(&p, evaluations, goal, t_end);
    for (uint32_t s = 0; s < schedule->stages; s++) {
      for (size_t i = 0; i < schedule->lists[s].count; i++) {
        schedule->lists[s].ops[i] = p.nodes[p.lists[s][i]].op;
      }
    }
  }
  free(places);
  free(p.times);
  free(p.fitted);
  free(p.walks);
  free(p.lists);
  free(p.nodes);
  return status;
}
