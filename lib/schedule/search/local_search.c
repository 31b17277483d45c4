// SPDX-License-Identifier: Apache-2.0
#include "schedule/search/local_search.h"

#include "base/minmax.h"
#include "base/random.h"
#include "schedule/search/incremental_timing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Heats are multiples of the mean cost of an operation, so that the unit of the costs does not matter.
#define ROUNDS         4    // maximum; each starts from the best order with its own heat, which falls to 0
#define EVENNESS       0.02 // weight of the stages' mean end, added to the last end
#define FARTHEST       8    // maximum of positions by which an operation moves at once
#define AIMED          8    // of ten moves, those on the critical path
#define FRUITLESS_MAX  1000 // moves in a row without effect that count as one timed order
#define FRUITLESS_NODE 1000 // moves in a row without effect, per operation, after which no move is possible

typedef struct local_search {
  bl__incremental_timing_t order;
  const uint32_t *limits;
  uint32_t slots;  // limit of blocks that fill slots (dispatch.h); 0: no limit
  bool *fitted;    // [stages] the accepted order is within the stage's limits
  uint32_t *swaps; // nodes: the first of two neighbours on the critical path
  uint32_t swap_count;
  uint32_t *best;  // all lists of the best order
  uint64_t random; // counter of the random stream
} local_search_t;

// Returns when the input of the node from another virtual stage lets it start, including its R.
static double ready_of(const local_search_t *p, const bl__retimed_node_t *node) {
  if (node->needs == BL__NO_NODE) {
    return 0;
  }
  bool fresh = node->place > 0 && p->order.lists[node->stage][node->place - 1] == node->own;
  return p->order.times[node->needs].end + node->latency - (fresh ? 0 : node->recompute);
}

// Returns whether the neighbours `a`, `b` of one list may change places.
static bool may_swap(const local_search_t *p, const bl__retimed_node_t *a, const bl__retimed_node_t *b) {
  bl_op_t x = a->op, y = b->op;
  if (b->needs != BL__NO_NODE && &p->order.nodes[b->needs] == a) {
    return false;
  }
  // Operations of one type of a chunk stay in order of micro-batches, and F, backward and W of a block stay in this
  // order.
  return x.virtual_stage != y.virtual_stage ||
         (x.type != y.type && (x.micro_batch != y.micro_batch || x.slice != y.slice));
}

// Walks the critical path back from the end and collects the neighbours whose exchange might let the second start
// earlier.
static void collect_swaps(local_search_t *p, double t_end) {
  uint32_t at = BL__NO_NODE;
  p->swap_count = 0;
  for (uint32_t s = 0; s < p->order.schedule->stages; s++) {
    size_t count = p->order.schedule->lists[s].count;
    if (count > 0 && p->order.times[p->order.lists[s][count - 1]].end == t_end) {
      at = p->order.lists[s][count - 1];
    }
  }
  while (at != BL__NO_NODE) {
    const bl__retimed_node_t *node = &p->order.nodes[at];
    double start = p->order.times[at].start;
    if (start <= 0) {
      break;
    }
    double ready = ready_of(p, node);
    uint32_t before = node->place > 0 ? p->order.lists[node->stage][node->place - 1] : BL__NO_NODE;
    if (before != BL__NO_NODE && p->order.times[before].end == start) {
      if (ready < start && may_swap(p, &p->order.nodes[before], node)) {
        p->swaps[p->swap_count++] = before;
      }
      // Both are critical: continue along one at random.
      at = ready == start && node->needs != BL__NO_NODE && (bl_random_bits(1, p->random++) & 1) ? node->needs : before;
    } else {
      at = node->needs;
    }
  }
}

// Returns whether a stage stays within its limits from position `first` to before `end`. `held` and `filled`: its
// blocks at `first`.
static bool fits(const local_search_t *p, uint32_t stage, uint32_t first, uint32_t end, uint32_t held,
                 uint32_t filled) {
  const uint32_t slots = p->slots > 0 ? p->slots : UINT32_MAX;
  for (uint32_t i = first; i < end; i++) {
    const bl__retimed_node_t *node = &p->order.nodes[p->order.lists[stage][i]];
    bl_op_type_t type = (bl_op_type_t)node->op.type;
    held += type == BL_OP_F;
    filled += node->takes_slot;
    if (held > p->limits[stage] || filled > slots) {
      return false;
    }
    held -= bl_op_type_ends_block(type);
    filled -= bl_op_type_ends_block(type);
  }
  return true;
}

// Sets `held` and `filled` of the nodes from position `first` to before `end`.
static void note_held(local_search_t *p, uint32_t stage, uint32_t first, uint32_t end, uint32_t held, uint32_t filled) {
  for (uint32_t i = first; i < end; i++) {
    bl__retimed_node_t *node = &p->order.nodes[p->order.lists[stage][i]];
    bl_op_type_t type = (bl_op_type_t)node->op.type;
    node->held = held;
    node->filled = filled;
    held += type == BL_OP_F;
    filled += node->takes_slot;
    held -= bl_op_type_ends_block(type);
    filled -= bl_op_type_ends_block(type);
  }
}

// Moves a node by up to `places` positions, until it may not pass a neighbour. Returns by how many.
static uint32_t shift(local_search_t *p, uint32_t n, bool later, uint32_t places) {
  const bl__retimed_node_t *node = &p->order.nodes[n];
  const uint32_t *list = p->order.lists[node->stage];
  uint32_t done = 0;
  for (; done < places; done++) {
    if (later ? node->place + 1 >= p->order.schedule->lists[node->stage].count : node->place == 0) {
      break;
    }
    uint32_t first = later ? n : list[node->place - 1], second = later ? list[node->place + 1] : n;
    if (!may_swap(p, &p->order.nodes[first], &p->order.nodes[second])) {
      break;
    }
    bl__incremental_timing_swap(&p->order, first);
  }
  return done;
}

// Returns the objective, which the search minimizes. Of orders with the same end, the one whose stages end earlier is
// nearer to a better order.
static double score_of(const local_search_t *p, double t_end) {
  double sum = 0;
  for (uint32_t s = 0; s < p->order.schedule->stages; s++) {
    sum += bl__incremental_timing_stage_end(&p->order, s);
  }
  return t_end + EVENNESS * sum / p->order.schedule->stages;
}

// Returns how much worse, in heats, an accepted order may be: about -ln of a uniform number, but in exact arithmetic,
// so that every machine finds the same order.
static double patience(local_search_t *p) {
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

// Draws a move: usually of one of two neighbours on the critical path that might change places, sometimes of any node.
static move_t draw_move(local_search_t *p) {
  move_t move = {.places = 1};
  bool aimed = p->swap_count > 0 && bl_random_below(2, p->random++, 10) < AIMED;
  if (aimed) {
    move.node = p->swaps[bl_random_below(2, p->random++, p->swap_count)];
  } else {
    move.node = (uint32_t)bl_random_below(3, p->random++, p->order.count);
  }
  move.later = bl_random_below(2, p->random++, 2) != 0;
  if (aimed && !move.later) {
    move.node = p->order.lists[p->order.nodes[move.node].stage][p->order.nodes[move.node].place + 1];
  }
  if (!aimed || bl_random_below(2, p->random++, 2) == 0) {
    move.places += (uint32_t)bl_random_below(2, p->random++, aimed ? FARTHEST : FARTHEST / 2);
  }
  return move;
}

static void restore(local_search_t *p, const uint32_t *order) {
  for (uint32_t s = 0, n = 0; s < p->order.schedule->stages; s++) {
    for (uint32_t i = 0; i < p->order.schedule->lists[s].count; i++, n++) {
      p->order.lists[s][i] = order[n];
      p->order.nodes[order[n]].place = i;
    }
    note_held(p, s, 0, (uint32_t)p->order.schedule->lists[s].count, 0, 0);
  }
}

// A move that was made.
typedef struct window {
  uint32_t stage, first, end;       // the positions that it changed: from `first` to before `end`
  uint32_t was_first, held, filled; // the node that stood first there before, and the blocks before it
} window_t;

static window_t window_of(const local_search_t *p, move_t move, uint32_t moved) {
  const bl__retimed_node_t *node = &p->order.nodes[move.node];
  uint32_t first = move.later ? node->place - moved : node->place;
  uint32_t was_first = move.later ? move.node : p->order.lists[node->stage][first + 1]; // stood there before the move
  const bl__retimed_node_t *was = &p->order.nodes[was_first];
  return (window_t){node->stage, first, first + moved + 1, was_first, was->held, was->filled};
}

// Times the order after a move.
static double try_move(local_search_t *p, const window_t *window, double latest) {
  uint32_t s = window->stage;
  if (p->fitted[s] ? !fits(p, s, window->first, window->end, window->held, window->filled)
                   : !fits(p, s, 0, (uint32_t)p->order.schedule->lists[s].count, 0, 0)) {
    return INFINITY;
  }
  return bl__incremental_timing_try(&p->order, s, window->first, window->end, p->order.times[window->was_first].start,
                                    latest);
}

static void accept_move(local_search_t *p, const window_t *window) {
  bl__incremental_timing_accept(&p->order);
  p->fitted[window->stage] = true;
  note_held(p, window->stage, window->first, window->end, window->held, window->filled);
}

// Runs simulated annealing from the current order, which ends at `now`.
static void anneal(local_search_t *p, size_t evaluations, double heat, double goal, double now, double *t_end) {
  double score = score_of(p, now), least = 0; // least: minimum that EVENNESS adds to any score
  uint32_t fruitless = 0;
  for (uint32_t s = 0; s < p->order.schedule->stages; s++) {
    least += EVENNESS * p->order.walks[s].work / p->order.schedule->stages;
  }
  collect_swaps(p, now);
  for (size_t left = evaluations; left > 0 && *t_end > goal;) {
    move_t move = draw_move(p);
    uint32_t moved = shift(p, move.node, move.later, move.places);
    fruitless = moved == 0 ? fruitless + 1 : 0;
    if (moved == 0) {
      if (fruitless / FRUITLESS_NODE >= p->order.count) {
        return; // there is no other order, as with a single micro-batch
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
        memcpy(p->best, p->order.lists[0], p->order.count * sizeof *p->best);
      }
    } else {
      (void)shift(p, move.node, !move.later, moved);
    }
  }
}

// Measured on 175 orders of 6 names that were improved further (p = 4 and 8, m = p to 4 p, unit and uneven costs): the
// heats 2 and 1 improved one and 2 orders, 0.5 and 0.2 improved 13 and 14. Of the 84 orders whose end all four results
// had reached, 0.2 improved one and no other heat any.
static const struct {
  double heats[ROUNDS];
  uint32_t count;
} plans[] = {[BL__LOCAL_SEARCH_FRESH] = {{2, 0.5, 0.2, 1}, 4},
             [BL__LOCAL_SEARCH_FURTHER] = {{0.5, 0.2}, 2},
             [BL__LOCAL_SEARCH_LAST] = {{0.2}, 1}};

static void search(local_search_t *p, bl__local_search_rounds_t rounds, size_t evaluations, double goal,
                   double *t_end) {
  const uint32_t count = plans[rounds].count;
  double mean = 0;
  for (uint32_t n = 0; n < p->order.count; n++) {
    mean += p->order.nodes[n].cost / p->order.count;
  }
  memcpy(p->best, p->order.lists[0], p->order.count * sizeof *p->best); // all lists are contiguous
  for (uint32_t round = 0; round < count && evaluations >= count && *t_end > goal; round++) {
    anneal(p, evaluations / count, plans[rounds].heats[round] * mean, goal, bl__incremental_timing_all(&p->order),
           t_end);
    restore(p, p->best);
  }
}

bl_status_t bl__local_search(bl_schedule_t *schedule, const bl_costs_t *costs, const uint32_t *limits,
                             bl__recompute_options_t recompute, bl__local_search_rounds_t rounds, size_t evaluations,
                             double goal, double *t_end) {
  const size_t count = bl_schedule_op_count(schedule);
  local_search_t p = {.limits = limits, .slots = recompute.slots};
  p.fitted = calloc(schedule->stages, sizeof p.fitted[0]);
  p.swaps = calloc(2 * count + 1, sizeof p.swaps[0]);
  p.best = p.swaps != NULL ? p.swaps + count : NULL;
  bl_status_t status = p.fitted != NULL && p.swaps != NULL ? BL_OK : BL_EXHAUSTED;
  if (status == BL_OK) {
    status = bl__incremental_timing_init(&p.order, schedule, costs, recompute);
  }
  if (status == BL_OK) {
    for (uint32_t s = 0; s < schedule->stages; s++) {
      const uint32_t operations = (uint32_t)schedule->lists[s].count;
      p.fitted[s] = fits(&p, s, 0, operations, 0, 0);
      note_held(&p, s, 0, operations, 0, 0);
    }
    *t_end = bl__incremental_timing_all(&p.order);
    search(&p, rounds, evaluations, goal, t_end);
    for (uint32_t s = 0; s < schedule->stages; s++) {
      for (size_t i = 0; i < schedule->lists[s].count; i++) {
        schedule->lists[s].ops[i] = p.order.nodes[p.order.lists[s][i]].op;
      }
    }
  }
  bl__incremental_timing_cleanup(&p.order);
  free(p.swaps);
  free(p.fitted);
  return status;
}
