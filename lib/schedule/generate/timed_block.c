// SPDX-License-Identifier: Apache-2.0
// The block is repeated every `interval`. Modulo the interval a stage has a pattern: the positions of its operations
// on a circle as long as the interval. F0, F1, I1 and I0 pass from stage to stage. How long they wait between two
// stages follows from both patterns and the rotation of one against the other. The block is a shortest path through
// all stages that chooses a pattern for each. Memory is the lifetime of the block's two chunks, waits included,
// divided by the interval. All numbers are integers, so that every machine finds the same block.
//
// In this file a *way* is one of the four operations that move from stage to stage: F0, F1, I1, I0.
#include "schedule/generate/timed_block.h"

#include "base/minmax.h"
#include "schedule/generate/timetable.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { F0, F1, I1, I0, W1, W0, PASSES };
enum { WAYS = 4, GAP = PASSES, ITEMS = GAP + 2 }; // on the circle: operations and up to two gaps

#define WORK_CELLS   2400 // of a stage, for one micro-batch
#define INTERVALS    44   // number of intervals tried
#define FINE         24   // number of fine steps between them, each 1 / FINE_GROWTH of the shortest interval
#define FINE_GROWTH  240
#define GROWTH       24 // coarse steps are 1 / GROWTH of the shortest interval
#define SHORTEST_MAX 4  // in units of the work: with longer intervals groups of micro-batches are as good
#define TWO_GAPS     12 // a gap above 1 / TWO_GAPS of the work is split into two
#define PAIR         16 // cost of evaluating the waits of two patterns, in units of one stage in find_way
#define PATTERNS_MAX 1024

// Preferences of a search: the weight of waits of F0 and I0 (`outer`) and of F1 and I1 (`inner`), since the former fill
// the stages at the ends of the V and the latter the stage at its tip; and how late W's may be, in tenths of an
// interval.
typedef struct variant {
  uint32_t outer, inner;
  uint32_t delay;
} variant_t;

static const variant_t variants[] = {{1, 1, 20}, {1, 1, 7}, {1, 1, 4}, {2, 3, 20}, {1, 2, 20}, {3, 2, 20}};
#define VARIANTS (sizeof variants / sizeof variants[0])

typedef struct pattern {
  uint32_t at[PASSES]; // relative to F0; W1 and W0: relative to the end of their I
} pattern_t;

typedef struct step {
  uint32_t cost;
  int free; // the way that does not wait
} step_t;

struct bl__timed_blocks {
  uint32_t stages, hop;
  uint32_t lengths[3]; // F, I, W
  const uint32_t *limits;
  uint64_t life;               // sum over the two blocks of a stage, if nothing waits
  uint32_t shortest, interval; // shortest 0: no block is sensible
  uint32_t round, variant;     // the next to try
  bool fine;                   // begin with fine steps between intervals
  uint64_t budget;             // pairs of patterns that may still be tried
  uint32_t gaps[2];            // between operations
  pattern_t patterns[PATTERNS_MAX];
  uint32_t count;
  step_t *steps;    // [pattern][pattern]
  uint32_t *costs;  // [2][pattern]
  uint16_t *before; // [stage][pattern]
  int64_t *at;      // [stage][PASSES] cells of micro-batch 0, from its first F on
};

static uint32_t cells_of(double time, double scale) {
  return (uint32_t)lround(time * scale);
}

static uint32_t work_of(const bl__timed_blocks_t *b) {
  return 2 * (b->lengths[0] + b->lengths[1] + b->lengths[2]);
}

// Sets the lengths of the mean chunk and the shortest interval that memory and the stage with the most work allow.
// Returns false if no block is sensible.
static bool measure(bl__timed_blocks_t *b, const bl_costs_t *costs) {
  const uint32_t p = b->stages;
  double sums[3] = {0, 0, 0}, most = 0;
  for (uint32_t s = 0; s < p; s++) {
    const bl_chunk_costs_t *chunks[] = {bl_costs_chunk(costs, s), bl_costs_chunk(costs, 2 * p - 1 - s)};
    double work = 0;
    for (int k = 0; k < 2; k++) {
      sums[0] += chunks[k]->forward;
      sums[1] += chunks[k]->input;
      sums[2] += chunks[k]->weight;
      work += chunks[k]->forward + chunks[k]->input + chunks[k]->weight;
    }
    most = bl_max_f64(most, work);
  }
  const double scale = WORK_CELLS * (double)p / (sums[0] + sums[1] + sums[2]);
  if (costs->boundary * scale > WORK_CELLS || most * scale > 2 * WORK_CELLS) {
    return false; // boundaries or differences of stages too large for a V
  }
  for (int k = 0; k < 3; k++) {
    b->lengths[k] = cells_of(sums[k] / (2 * p), scale);
  }
  b->hop = cells_of(costs->boundary, scale);
  uint32_t least = UINT32_MAX;
  for (uint32_t s = 0; s < p; s++) {
    least = bl_min_u32(least, b->limits[s]);
  }
  b->life = 2 * (uint64_t)(p - 1) * (b->lengths[0] + b->lengths[1] + 2 * b->hop) + work_of(b);
  const uint64_t shortest = bl_max_u64(bl_max_u32(work_of(b), cells_of(most, scale)), (b->life + least - 1) / least);
  b->shortest = (uint32_t)shortest;
  b->fine = shortest * least > b->life;
  return shortest <= SHORTEST_MAX * WORK_CELLS;
}

// Adds the pattern unless its W's come too late. Of patterns with the same F's and I's the one with earlier W's is
// kept.
static void add_pattern(bl__timed_blocks_t *b, const uint32_t *at, const uint32_t *weights_at) {
  pattern_t made = {{0, at[F1], at[I1], at[I0], 0, 0}};
  const uint32_t t = b->interval, i = b->lengths[1], sum = weights_at[0] + weights_at[1];
  uint32_t best = UINT32_MAX;
  for (int k = 0; k < 2; k++) {
    const uint32_t first = (weights_at[k] + 2 * t - at[I1] - i) % t;
    const uint32_t second = (sum - weights_at[k] + 2 * t - at[I0] - i) % t;
    if (first + second < best) {
      best = first + second;
      made.at[W1] = first;
      made.at[W0] = second;
    }
  }
  if (10 * best > variants[b->variant].delay * t) {
    return;
  }
  for (uint32_t k = 0; k < b->count; k++) {
    pattern_t *known = &b->patterns[k];
    if (memcmp(known->at, made.at, WAYS * sizeof made.at[0]) == 0) {
      if (best < known->at[W1] + known->at[W0]) {
        *known = made;
      }
      return;
    }
  }
  if (b->count < PATTERNS_MAX) {
    b->patterns[b->count++] = made;
  }
}

// Enumerates all orders of the items after F0. `left`: bit mask of the items not placed yet.
static void place(bl__timed_blocks_t *b, uint32_t left, uint32_t now, uint32_t *at, uint32_t *weights_at) {
  static const int length_of[] = {0, 0, 1, 1, 2, 2};
  if (left == 0) {
    add_pattern(b, at, weights_at);
    return;
  }
  for (uint32_t item = F1; item < ITEMS; item++) {
    const uint32_t rest = left & ~(1u << item);
    const bool second = item == W0 || item == GAP + 1; // the two are equivalent: fix their order
    if (rest == left || (second && (left & 1u << (item - 1)) != 0)) {
      continue;
    }
    if (item == W1 || item == W0) {
      weights_at[item - W1] = now;
    } else if (item < GAP) {
      at[item] = now;
    }
    place(b, rest, now + (item >= GAP ? b->gaps[item - GAP] : b->lengths[length_of[item]]), at, weights_at);
  }
}

// Uses one gap if the interval leaves little idle time, two if it leaves more.
static void make_patterns(bl__timed_blocks_t *b) {
  const uint32_t gap = b->interval - work_of(b);
  uint32_t at[PASSES] = {0}, weights_at[2] = {0, 0}, items = (1u << GAP) - 1 - (1u << F0);
  b->count = 0;
  b->gaps[0] = gap;
  b->gaps[1] = 0;
  if (gap > 0) {
    items |= 1u << GAP;
  }
  if (gap > work_of(b) / TWO_GAPS) {
    items |= 1u << (GAP + 1);
    b->gaps[0] = gap / 2;
    b->gaps[1] = gap - gap / 2;
  }
  place(b, items, b->lengths[0], at, weights_at);
}

// From the tip outwards, F0 and I1 run earlier on each stage, F1 and I0 later.
static bool is_earlier(int way) {
  return way == F0 || way == I1;
}

static uint32_t latency_of(const bl__timed_blocks_t *b, int way) {
  return b->lengths[way == I1 || way == I0] + b->hop;
}

// Modulo the interval.
static uint32_t wrap(const bl__timed_blocks_t *b, int64_t cells) {
  const int64_t rest = cells % b->interval;
  return (uint32_t)(rest < 0 ? rest + b->interval : rest);
}

// Sets `ahead` to the positions of the ways one stage farther out, without waits and rotation.
static void look_ahead(const bl__timed_blocks_t *b, const pattern_t *from, uint32_t *ahead) {
  for (int way = 0; way < WAYS; way++) {
    const int64_t latency = latency_of(b, way);
    ahead[way] = wrap(b, (int64_t)from->at[way] + (is_earlier(way) ? -latency : latency));
  }
}

// Sets `offsets` to the distance of each way in the outer pattern from that position.
static void offsets_of(const bl__timed_blocks_t *b, const uint32_t *ahead, const pattern_t *to, uint32_t *offsets) {
  for (int way = 0; way < WAYS; way++) {
    offsets[way] = to->at[way] >= ahead[way] ? to->at[way] - ahead[way] : to->at[way] + b->interval - ahead[way];
  }
}

// Returns how long a way waits if the outer pattern is rotated so that way `free` does not wait.
static uint32_t wait_of(const bl__timed_blocks_t *b, const uint32_t *offsets, int way, int free) {
  const uint32_t ahead = offsets[is_earlier(way) ? free : way], behind = offsets[is_earlier(way) ? way : free];
  return ahead >= behind ? ahead - behind : ahead + b->interval - behind;
}

static void make_steps(bl__timed_blocks_t *b, const variant_t *variant) {
  for (uint32_t i = 0; i < b->count; i++) {
    uint32_t ahead[WAYS], offsets[WAYS];
    look_ahead(b, &b->patterns[i], ahead);
    for (uint32_t k = 0; k < b->count; k++) {
      step_t best = {UINT32_MAX, 0};
      offsets_of(b, ahead, &b->patterns[k], offsets);
      for (int free = 0; free < WAYS; free++) {
        const uint32_t cost = variant->outer * (wait_of(b, offsets, F0, free) + wait_of(b, offsets, I0, free)) +
                              variant->inner * (wait_of(b, offsets, F1, free) + wait_of(b, offsets, I1, free));
        if (cost < best.cost) {
          best = (step_t){cost, free};
        }
      }
      b->steps[(size_t)i * b->count + k] = best;
    }
  }
}

// Finds the path of least cost through all stages, from the tip to stage 0; returns its last pattern.
static uint32_t find_way(bl__timed_blocks_t *b, uint32_t *cost_of_way) {
  uint32_t *now = b->costs, *next = b->costs + PATTERNS_MAX;
  memset(now, 0, b->count * sizeof *now);
  for (uint32_t s = b->stages - 1; s-- > 0;) {
    memset(next, 0xff, b->count * sizeof *next);
    for (uint32_t i = 0; i < b->count; i++) {
      const step_t *steps = &b->steps[(size_t)i * b->count];
      for (uint32_t k = 0; k < b->count; k++) {
        const uint32_t cost = now[i] + steps[k].cost;
        if (cost < next[k]) {
          next[k] = cost;
          b->before[(size_t)s * PATTERNS_MAX + k] = (uint16_t)i;
        }
      }
    }
    uint32_t *kept = now;
    now = next;
    next = kept;
  }
  uint32_t best = 0;
  for (uint32_t k = 1; k < b->count; k++) {
    best = now[k] < now[best] ? k : best;
  }
  *cost_of_way = now[best];
  return best;
}

// Returns the first time from `least` on that is congruent to `at` modulo the interval.
static int64_t not_before(const bl__timed_blocks_t *b, int64_t at, int64_t least) {
  const int64_t t = b->interval, behind = (at - least) % t;
  return least + (behind < 0 ? behind + t : behind);
}

// Sets the times of the operations of all stages, for the path that ends with pattern `last`.
static void lay_out(bl__timed_blocks_t *b, uint32_t last) {
  const uint32_t p = b->stages;
  const int64_t forward = b->lengths[0], input = b->lengths[1];
  // Follow every way from stage 0 inwards; F0 begins and I0 ends on stage 0.
  for (int way = 0; way < WAYS; way++) {
    b->at[way] = b->patterns[last].at[way];
  }
  uint32_t pattern = last;
  for (uint32_t s = 0; s < p; s++) {
    int64_t *at = b->at + (size_t)s * PASSES;
    at[W1] = b->patterns[pattern].at[W1];
    at[W0] = b->patterns[pattern].at[W0];
    if (s + 1 < p) {
      const uint32_t inner = b->before[(size_t)s * PATTERNS_MAX + pattern];
      const int free = b->steps[(size_t)inner * b->count + pattern].free;
      uint32_t ahead[WAYS], offsets[WAYS];
      look_ahead(b, &b->patterns[inner], ahead);
      offsets_of(b, ahead, &b->patterns[pattern], offsets);
      for (int way = 0; way < WAYS; way++) {
        const int64_t length = (int64_t)latency_of(b, way) + wait_of(b, offsets, way, free);
        at[PASSES + way] = at[way] + (is_earlier(way) ? length : -length);
      }
      pattern = inner;
    }
  }
  const int64_t *tip = b->at + (size_t)(p - 1) * PASSES;
  const int64_t up = not_before(b, tip[F1], tip[F0] + forward) - tip[F1];
  const int64_t back = not_before(b, b->at[I1], b->at[F1] + up + forward) - b->at[I1];
  const int64_t home = not_before(b, tip[I0], tip[I1] + back + input) - tip[I0];
  const int64_t begin = b->at[F0];
  for (uint32_t s = 0; s < p; s++) {
    int64_t *at = b->at + (size_t)s * PASSES;
    at[F0] -= begin;
    at[F1] += up - begin;
    at[I1] += back - begin;
    at[I0] += home - begin;
    at[W1] += at[I1] + input;
    at[W0] += at[I0] + input;
  }
}

static int64_t rounds(int64_t cells, int64_t interval) {
  return cells >= 0 ? cells / interval : -((-cells + interval - 1) / interval);
}

// Returns how many blocks that live from `from` to `to` a chunk has in cell `at`, in the middle of the repetition.
static int64_t alive(const bl__timed_blocks_t *b, int64_t from, int64_t to, int64_t at) {
  return rounds(at - from, b->interval) - rounds(at - to, b->interval);
}

static bool fits(const bl__timed_blocks_t *b) {
  for (uint32_t s = 0; s < b->stages; s++) {
    const int64_t *at = b->at + (size_t)s * PASSES;
    for (int way = F0; way <= F1; way++) {
      const int64_t held =
          alive(b, at[F0], at[W0] + b->lengths[2], at[way]) + alive(b, at[F1], at[W1] + b->lengths[2], at[way]);
      if (held > b->limits[s]) {
        return false;
      }
    }
  }
  return true;
}

// Looks for the block of the current interval and variant. Returns false if it needs too much memory; *hopeless is true
// if all variants do.
static bool find_block(bl__timed_blocks_t *b, bool *hopeless) {
  *hopeless = false;
  make_patterns(b);
  if (b->count == 0) {
    return false;
  }
  const uint64_t spent = (uint64_t)b->count * b->count * (b->stages + PAIR);
  b->budget -= bl_min_u64(spent, b->budget);
  make_steps(b, &variants[b->variant]);
  uint32_t waited;
  const uint32_t last = find_way(b, &waited);
  // The first variant waits least, and all of its waits count on stage 0.
  *hopeless = b->variant == 0 && b->life + waited > (uint64_t)b->limits[0] * b->interval;
  if (*hopeless) {
    return false;
  }
  lay_out(b, last);
  return fits(b);
}

// Returns the interval of a round. Steps are fine if the work bounds the shortest interval; if memory does, waits are
// long anyway.
static uint32_t interval_of(const bl__timed_blocks_t *b, uint32_t round) {
  const uint32_t fine = b->fine ? bl_min_u32(round, FINE) : 0, coarse = round - fine;
  return b->shortest + b->shortest * fine / FINE_GROWTH + b->shortest * coarse / GROWTH;
}

bool bl__timed_blocks_next(bl__timed_blocks_t *b) {
  bool found = false;
  while (b->shortest > 0 && b->round < INTERVALS && b->budget > 0 && !found) {
    bool hopeless;
    b->interval = interval_of(b, b->round);
    found = find_block(b, &hopeless);
    b->variant++;
    if (hopeless || b->variant == VARIANTS) {
      b->variant = 0;
      b->round++;
    }
  }
  return found;
}

double bl__timed_blocks_interval(const bl__timed_blocks_t *b) {
  return (double)b->interval / WORK_CELLS;
}

bl_status_t bl__timed_blocks_repeat(const bl__timed_blocks_t *b, bl_schedule_t *base) {
  static const bl_op_type_t types[] = {BL_OP_F, BL_OP_F, BL_OP_I, BL_OP_I, BL_OP_W, BL_OP_W};
  bl_status_t status = BL_OK;
  for (uint32_t s = 0; s < base->stages && status == BL_OK; s++) {
    bl__timetable_entry_t passes[PASSES];
    for (int pass = F0; pass < PASSES; pass++) {
      const bool second = pass == F1 || pass == I1 || pass == W1;
      const uint32_t at = (uint32_t)b->at[(size_t)s * PASSES + pass];
      passes[pass] = (bl__timetable_entry_t){types[pass], second ? 2 * base->stages - 1 - s : s, at, 0};
    }
    status = bl__timetable_fill(base, s, passes, PASSES, b->interval, 1);
  }
  return status;
}

bl_status_t bl__timed_blocks_create(uint32_t stages, const bl_costs_t *costs, const uint32_t *limits, uint64_t budget,
                                    bl__timed_blocks_t **blocks) {
  bl__timed_blocks_t *b = calloc(1, sizeof *b);
  if (b == NULL) {
    return BL_EXHAUSTED;
  }
  b->stages = stages;
  b->limits = limits;
  b->budget = budget;
  b->steps = malloc(PATTERNS_MAX * PATTERNS_MAX * sizeof b->steps[0]);
  b->costs = malloc(2 * PATTERNS_MAX * sizeof b->costs[0]);
  b->before = malloc((size_t)stages * PATTERNS_MAX * sizeof b->before[0]);
  b->at = calloc((size_t)stages * PASSES, sizeof b->at[0]);
  if (b->steps == NULL || b->costs == NULL || b->before == NULL || b->at == NULL) {
    bl__timed_blocks_destroy(b);
    return BL_EXHAUSTED;
  }
  if (!measure(b, costs)) {
    b->shortest = 0; // no block
  }
  *blocks = b;
  return BL_OK;
}

void bl__timed_blocks_destroy(bl__timed_blocks_t *b) {
  if (b == NULL) {
    return;
  }
  free(b->at);
  free(b->before);
  free(b->costs);
  free(b->steps);
  free(b);
}
