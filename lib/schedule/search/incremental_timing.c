// SPDX-License-Identifier: Apache-2.0
#include "schedule/search/incremental_timing.h"

#include "base/minmax.h"
#include "schedule/ir/dependency.h"

#include <math.h>
#include <stdlib.h>

static bl_status_t index_nodes(bl__incremental_timing_t *r, const bl_costs_t *costs,
                               bl__recompute_options_t recompute) {
  const bl_schedule_t *schedule = r->schedule;
  size_t blocks = bl_schedule_block_count(schedule);
  uint32_t *node_of = calloc(2 * blocks, sizeof *node_of); // [F, backward][blocks]
  if (node_of == NULL) {
    return BL_EXHAUSTED;
  }
  for (uint32_t s = 0, n = 0; s < schedule->stages; s++) {
    for (uint32_t i = 0; i < schedule->lists[s].count; i++, n++) {
      bl_op_t op = schedule->lists[s].ops[i];
      r->nodes[n] = (bl__retimed_node_t){.op = op,
                                         .stage = (uint16_t)s,
                                         .wakes = BL__NO_STAGE,
                                         .feeds = BL__NO_NODE,
                                         .place = i,
                                         .cost = bl_costs_op(costs, (bl_op_type_t)op.type, op.virtual_stage)};
      r->lists[s][i] = n;
      if (op.type == BL_OP_F || bl_op_type_starts_backward((bl_op_type_t)op.type)) {
        node_of[(op.type != BL_OP_F) * blocks + bl_schedule_block(schedule, op)] = n;
      }
    }
  }
  for (uint32_t n = 0; n < r->count; n++) {
    bl_op_t op = r->nodes[n].op, needed;
    bool kept = bl__chunk_kept(schedule, recompute, op.virtual_stage);
    r->nodes[n].needs = r->nodes[n].own = BL__NO_NODE;
    r->nodes[n].takes_slot = kept ? op.type == BL_OP_F : bl_op_type_starts_backward((bl_op_type_t)op.type);
    if (recompute.on && !kept && bl_op_type_starts_backward((bl_op_type_t)op.type)) {
      r->nodes[n].own = node_of[bl_schedule_block(schedule, op)];
      r->nodes[n].recompute = bl_costs_op(costs, BL_OP_R, op.virtual_stage);
      r->again_most = bl_max_f64(r->again_most, r->nodes[n].recompute);
    }
    if (bl__op_dependency(schedule, op, &needed)) {
      uint32_t node = node_of[(needed.type != BL_OP_F) * blocks + bl_schedule_block(schedule, needed)];
      r->nodes[n].needs = node;
      r->nodes[node].wakes = r->nodes[n].stage;
      r->nodes[node].feeds = n;
      r->nodes[n].latency = r->nodes[node].stage != r->nodes[n].stage ? costs->boundary : 0;
    }
  }
  free(node_of);
  return BL_OK;
}

// Cuts the list of `stage` at `place`, and the other lists before the first operation that may start at `moment` or
// later. An R may start before the input of its backward arrives, so the cut is earlier by the longest R. Puts the
// stages with operations to time on the stack, `stage` on top. Returns the number of nodes to time.
static uint32_t cut_lists(bl__incremental_timing_t *r, uint32_t stage, uint32_t place, double moment,
                          uint32_t *stack_count) {
  uint32_t left = 0;
  moment -= r->again_most;
  *stack_count = 0;
  for (uint32_t s = 0; s < r->schedule->stages; s++) {
    const uint32_t *list = r->lists[s];
    uint32_t low = 0, high = (uint32_t)r->schedule->lists[s].count, count = high;
    while (s != stage && low < high) {
      uint32_t middle = low + (high - low) / 2;
      if (r->times[list[middle]].start < moment) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    bl__stage_walk_t *walk = &r->walks[s];
    walk->cut = walk->next = s == stage ? place : low;
    walk->waits = BL__NO_NODE;
    left += count - walk->cut;
    r->stack[*stack_count] = s;
    *stack_count += s != stage && walk->cut < count;
  }
  r->stack[*stack_count] = stage;
  *stack_count += r->walks[stage].cut < r->schedule->lists[stage].count;
  return left;
}

// Returns the end of a node, or NULL while it is not timed.
static const double *end_of(const bl__incremental_timing_t *r, uint32_t n) {
  const bl__stage_walk_t *walk = &r->walks[r->nodes[n].stage];
  uint32_t place = r->nodes[n].place;
  return place < walk->cut ? &r->times[n].end : place < walk->next ? &r->trial[n].end : NULL;
}

// Times a stage until it waits. Returns the number of nodes timed, or BL__NO_NODE if the stage ends after `latest`.
static uint32_t time_stage(bl__incremental_timing_t *r, uint32_t s, double latest, uint32_t *stack_count) {
  bl__stage_walk_t *walk = &r->walks[s];
  uint32_t count = (uint32_t)r->schedule->lists[s].count, first = walk->next;
  const uint32_t *list = r->lists[s];
  double now = 0, done = 0;
  if (first > 0) {
    uint32_t last = list[first - 1];
    const bl__node_times_t *times = first - 1 < walk->cut ? &r->times[last] : &r->trial[last];
    now = times->end;
    done = times->before + r->nodes[last].cost;
  }
  for (; walk->next < count; walk->next++) {
    uint32_t n = list[walk->next];
    const bl__retimed_node_t *node = &r->nodes[n];
    double recompute =
        node->recompute != 0 && walk->next > 0 && list[walk->next - 1] == node->own ? 0 : node->recompute;
    double start = now;
    if (node->needs != BL__NO_NODE) {
      const double *needed = end_of(r, node->needs);
      if (needed == NULL) {
        walk->waits = node->needs;
        break;
      }
      start = bl_max_f64(now, *needed + node->latency - recompute);
    }
    if (start + walk->work - done > latest) {
      return BL__NO_NODE;
    }
    now = start + recompute + node->cost;
    r->trial[n] = (bl__node_times_t){start, now, done};
    done += node->cost;
    if (node->wakes != BL__NO_STAGE && r->walks[node->wakes].waits == n) {
      r->walks[node->wakes].waits = BL__NO_NODE;
      r->stack[(*stack_count)++] = node->wakes;
    }
  }
  return walk->next - first;
}

static const bl__node_times_t *times_in_cone(const bl__incremental_timing_t *r, uint32_t n) {
  return r->cone.round[n] == r->cone.now ? &r->trial[n] : &r->times[n];
}

double bl__incremental_timing_stage_end(const bl__incremental_timing_t *r, uint32_t s) {
  size_t count = r->schedule->lists[s].count;
  if (count == 0) {
    return 0;
  }
  uint32_t last = r->lists[s][count - 1];
  if (r->in_cone) {
    return times_in_cone(r, last)->end;
  }
  return r->walks[s].cut < count ? r->trial[last].end : r->times[last].end;
}

static double latest_end(const bl__incremental_timing_t *r) {
  double t_end = 0;
  for (uint32_t s = 0; s < r->schedule->stages; s++) {
    t_end = bl_max_f64(t_end, bl__incremental_timing_stage_end(r, s));
  }
  return t_end;
}

// Times the current order, which differs from the accepted one only in `stage` from `place` on, where an operation
// started at `moment`. Returns its end, infinite if it cannot run or ends after `latest`.
static double time_from(bl__incremental_timing_t *r, uint32_t stage, uint32_t place, double moment, double latest) {
  r->in_cone = false;
  uint32_t stack_count, left = cut_lists(r, stage, place, moment, &stack_count);
  while (stack_count > 0) {
    uint32_t timed = time_stage(r, r->stack[--stack_count], latest, &stack_count);
    if (timed == BL__NO_NODE) {
      return INFINITY;
    }
    left -= timed;
  }
  return left == 0 ? latest_end(r) : INFINITY;
}

// Retimes the node. False if it has changed and the cone is full.
static bool look_at(bl__incremental_timing_t *r, uint32_t n, bool moved) {
  bl__cone_t *cone = &r->cone;
  const bl__retimed_node_t *node = &r->nodes[n];
  bl__node_times_t times = {0, 0, 0};
  double recompute = node->recompute;
  if (node->place > 0) {
    uint32_t last = r->lists[node->stage][node->place - 1];
    const bl__node_times_t *before = times_in_cone(r, last);
    recompute = last == node->own ? 0 : recompute;
    times.start = before->end;
    times.before = before->before + r->nodes[last].cost;
  }
  if (node->needs != BL__NO_NODE) {
    times.start = bl_max_f64(times.start, times_in_cone(r, node->needs)->end + node->latency - recompute);
  }
  times.end = times.start + recompute + node->cost;
  const bl__node_times_t *was = times_in_cone(r, n);
  bool later = times.end != was->end;
  if (!later && !moved && times.start == was->start) {
    return true;
  }
  if (cone->round[n] != cone->now) {
    if (cone->changed_count == BL__CONE_MAX) {
      return false;
    }
    cone->round[n] = cone->now;
    cone->changed[cone->changed_count++] = n;
  }
  r->trial[n] = times;
  if (later) {
    bool full = cone->count + 2 > sizeof cone->nodes / sizeof cone->nodes[0];
    if (full) {
      return false;
    }
    if (node->place + 1 < r->schedule->lists[node->stage].count) {
      cone->nodes[cone->count++] = r->lists[node->stage][node->place + 1];
    }
    if (node->feeds != BL__NO_NODE) {
      cone->nodes[cone->count++] = node->feeds;
    }
  }
  return true;
}

// Times the current order, which differs from the accepted one only in the positions of `stage` from `first` to before
// `end`. False if that changes the times of too many nodes, or the cone cannot be used.
static bool time_cone(bl__incremental_timing_t *r, uint32_t stage, uint32_t first, uint32_t end) {
  bl__cone_t *cone = &r->cone;
  if (!cone->possible) {
    return false;
  }
  cone->now++;
  cone->count = cone->changed_count = 0;
  for (uint32_t i = first; i < end; i++) {
    if (!look_at(r, r->lists[stage][i], true)) {
      return false;
    }
  }
  if (end < r->schedule->lists[stage].count) {
    cone->nodes[cone->count++] = r->lists[stage][end];
  }
  for (uint32_t k = 0; k < cone->count; k++) {
    if (!look_at(r, cone->nodes[k], false)) {
      return false;
    }
  }
  return true;
}

void bl__incremental_timing_accept(bl__incremental_timing_t *r) {
  if (r->in_cone) {
    for (uint32_t k = 0; k < r->cone.changed_count; k++) {
      r->times[r->cone.changed[k]] = r->trial[r->cone.changed[k]];
    }
    r->in_cone = false;
    for (uint32_t s = 0; s < r->schedule->stages; s++) {
      r->walks[s].cut = (uint32_t)r->schedule->lists[s].count;
    }
    return;
  }
  for (uint32_t s = 0; s < r->schedule->stages; s++) {
    const uint32_t *list = r->lists[s];
    size_t count = r->schedule->lists[s].count;
    for (size_t i = r->walks[s].cut; i < count; i++) {
      r->times[list[i]] = r->trial[list[i]];
    }
    r->walks[s].cut = (uint32_t)count;
  }
}

double bl__incremental_timing_all(bl__incremental_timing_t *r) {
  double t_end = time_from(r, 0, 0, -1, INFINITY);
  bl__incremental_timing_accept(r);
  return t_end;
}

double bl__incremental_timing_try(bl__incremental_timing_t *r, uint32_t stage, uint32_t first, uint32_t end,
                                  double moment, double latest) {
  r->in_cone = end - first <= BL__CONE_MOVE && time_cone(r, stage, first, end);
  return r->in_cone ? latest_end(r) : time_from(r, stage, first, moment, latest);
}

void bl__incremental_timing_swap(bl__incremental_timing_t *r, uint32_t first) {
  uint32_t *list = r->lists[r->nodes[first].stage];
  uint32_t place = r->nodes[first].place, second = list[place + 1];
  list[place] = second;
  list[place + 1] = first;
  r->nodes[second].place = place;
  r->nodes[first].place = place + 1;
}

static void know_costs(bl__incremental_timing_t *r) {
  r->cone.possible = true;
  for (uint32_t n = 0; n < r->count; n++) {
    r->walks[r->nodes[n].stage].work += r->nodes[n].cost;
    r->cone.possible = r->cone.possible && (r->nodes[n].cost > 0 || r->nodes[n].op.type == BL_OP_W);
  }
}

bl_status_t bl__incremental_timing_init(bl__incremental_timing_t *r, const bl_schedule_t *schedule,
                                        const bl_costs_t *costs, bl__recompute_options_t recompute) {
  const size_t count = bl_schedule_op_count(schedule), stages = schedule->stages;
  *r = (bl__incremental_timing_t){.schedule = schedule, .count = (uint32_t)count};
  r->nodes = calloc(count + 1, sizeof r->nodes[0]);
  r->lists = calloc(stages, sizeof r->lists[0]);
  r->walks = calloc(stages, sizeof r->walks[0]);
  r->times = calloc(2 * (count + 1), sizeof r->times[0]);
  r->places = calloc(2 * count + stages + 1, sizeof r->places[0]);
  const bool allocated =
      r->nodes != NULL && r->lists != NULL && r->walks != NULL && r->times != NULL && r->places != NULL;
  bl_status_t status = allocated ? BL_OK : BL_EXHAUSTED;
  if (status == BL_OK) {
    uint32_t *next = r->places;
    for (uint32_t s = 0; s < stages; s++) {
      r->lists[s] = next;
      next += schedule->lists[s].count;
    }
    r->cone.round = next;
    r->stack = next + count;
    r->trial = r->times + count + 1;
    status = index_nodes(r, costs, recompute);
  }
  if (status == BL_OK) {
    know_costs(r);
  } else {
    bl__incremental_timing_cleanup(r);
  }
  return status;
}

void bl__incremental_timing_cleanup(bl__incremental_timing_t *r) {
  free(r->places);
  free(r->times);
  free(r->walks);
  free(r->lists);
  free(r->nodes);
  *r = (bl__incremental_timing_t){0};
}
