// SPDX-License-Identifier: Apache-2.0
// Verifies that an order that is timed again only where it changed has the times of one that is timed as a whole:
// random changes, some kept and some taken back, with and without recomputation; and that the order as it is ends when
// an independent pass says.
#include "schedule/search/incremental_timing.h"

#include "base/random.h"
#include "schedule/generate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#define CHANGES 400

typedef struct world {
  bl_schedule_t *schedule;
  bl_chunk_costs_t chunks[16];
  bl_costs_t costs;
  bl__recompute_options_t recompute;
  uint64_t random;
  uint32_t kept, taken_back, impossible, wide; // changes of each kind that were seen
} world_t;

static void open_world(world_t *w, const char *name, bool recompute) {
  bl_error_t err;
  const bl_schedule_request_t request = {.name = name, .stages = 5, .micro_batches = 12};
  *w = (world_t){.recompute.on = recompute};
  assert_int_equal(bl_schedule_generate(&request, &w->schedule, &err), BL_OK);
  for (uint32_t v = 0; v < w->schedule->virtual_stages; v++) {
    // an R takes no longer than the backward after it
    w->chunks[v] = (bl_chunk_costs_t){.forward = 3 + v % 3, .input = 4 + v % 2, .weight = 2 + v % 4, .recompute = 3};
  }
  w->costs = (bl_costs_t){.chunks = w->chunks, .boundary = 0.5};
}

// The end of the present order, by an order of its own that is timed as a whole.
static double whole(const world_t *w, const bl__incremental_timing_t *order) {
  bl_schedule_t *copy;
  bl__incremental_timing_t other;
  assert_int_equal(bl_schedule_create_like(w->schedule, &copy, NULL), BL_OK);
  assert_int_equal(bl_schedule_copy_lists(w->schedule, copy), BL_OK);
  for (uint32_t s = 0; s < copy->stages; s++) {
    for (size_t i = 0; i < copy->lists[s].count; i++) {
      copy->lists[s].ops[i] = order->nodes[order->lists[s][i]].op;
    }
  }
  assert_int_equal(bl__incremental_timing_init(&other, copy, &w->costs, w->recompute), BL_OK);
  double t_end = bl__incremental_timing_all(&other), in_order;
  if (isfinite(t_end)) {
    assert_int_equal(bl__dispatch_end(copy, &w->costs, w->recompute, &in_order), BL_OK);
    assert_true(fabs(t_end - in_order) < 1e-9);
    for (uint32_t s = 0; s < copy->stages; s++) {
      assert_true(bl__incremental_timing_stage_end(order, s) == bl__incremental_timing_stage_end(&other, s));
    }
  }
  bl__incremental_timing_cleanup(&other);
  bl_schedule_destroy(copy);
  return t_end;
}

// A block keeps its F, backward, W, a chunk its micro-batches, and what directly needs its neighbour stays behind it.
static bool may_pass(const bl__incremental_timing_t *order, uint32_t first, uint32_t second) {
  const bl_op_t a = order->nodes[first].op, b = order->nodes[second].op;
  return order->nodes[second].needs != first &&
         (a.virtual_stage != b.virtual_stage || (a.type != b.type && a.micro_batch != b.micro_batch));
}

static void change(world_t *w, bl__incremental_timing_t *order, double *accepted) {
  const uint32_t stage = (uint32_t)bl_random_below(5, w->random++, w->schedule->stages);
  const uint32_t count = (uint32_t)w->schedule->lists[stage].count;
  const uint32_t place = (uint32_t)bl_random_below(5, w->random++, count - 1);
  const uint32_t moved = order->lists[stage][place];
  const double moment = order->times[moved].start;
  uint32_t swaps = 0;
  while (swaps < 3 && place + swaps + 1 < count && may_pass(order, moved, order->lists[stage][place + swaps + 1])) {
    bl__incremental_timing_swap(order, moved);
    swaps++;
  }
  if (swaps == 0) {
    return;
  }
  const double t_end = bl__incremental_timing_try(order, stage, place, place + swaps + 1, moment, INFINITY);
  w->wide += !order->in_cone;
  if (isfinite(t_end)) {
    assert_true(t_end == whole(w, order));
  } else {
    assert_true(isinf(whole(w, order)));
    w->impossible++;
  }
  if (isfinite(t_end) && bl_random_below(5, w->random++, 2) == 0) {
    bl__incremental_timing_accept(order);
    *accepted = t_end;
    w->kept++;
    return;
  }
  for (uint32_t i = swaps; i > 0; i--) {
    bl__incremental_timing_swap(order, order->lists[stage][place + i - 1]);
  }
  assert_int_equal(order->lists[stage][place], moved);
  w->taken_back++;
}

static void changes_are_timed_as_the_whole(void **state) {
  (void)state;
  static const char *const names[] = {"1f1b", "zb-h1", "zb-v", "gpipe", "interleaved"};
  uint32_t kept = 0, taken_back = 0, impossible = 0, wide = 0;
  for (size_t k = 0; k < 2 * sizeof names / sizeof names[0]; k++) {
    world_t w;
    bl__incremental_timing_t order;
    open_world(&w, names[k / 2], k % 2 == 1);
    assert_int_equal(bl__incremental_timing_init(&order, w.schedule, &w.costs, w.recompute), BL_OK);
    double accepted = bl__incremental_timing_all(&order);
    assert_true(accepted == whole(&w, &order));
    for (uint32_t i = 0; i < CHANGES; i++) {
      change(&w, &order, &accepted);
    }
    assert_true(bl__incremental_timing_all(&order) == accepted);
    bl__incremental_timing_cleanup(&order);
    bl_schedule_destroy(w.schedule);
    kept += w.kept, taken_back += w.taken_back, impossible += w.impossible, wide += w.wide;
  }
  printf("kept %u, taken back %u, impossible %u, timed with all that comes later %u\n", kept, taken_back, impossible,
         wide);
  assert_true(kept > 0 && taken_back > impossible && impossible > 0 && wide > 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(changes_are_timed_as_the_whole)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
