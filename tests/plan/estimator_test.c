// SPDX-License-Identifier: Apache-2.0
// Verifies the estimator of arXiv 2401.02088: the arithmetic check with its published numbers, the ramp's factors, that
// it agrees with simulated steps of 1F1B and bounds those of other schedules, and that bad numbers are named.
#include "plan/evaluate/estimator.h"

#include "schedule/generate.h"
#include "simulate/simulate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static bl_estimate_t estimate(double batch, double stages, bl_estimate_point_t from, bl_estimate_point_t to) {
  bl_estimate_t e;
  bl_error_t err;
  bl_estimate_request_t request = {.batch = batch, .stages = stages, .from = from, .to = to};
  if (bl_estimate(&request, &e, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  return e;
}

static void assert_near(double value, double expected, double tolerance) {
  if (!(fabs(value - expected) <= tolerance)) {
    fail_msg("%.9g, expected %.9g", value, expected);
  }
}

static void published_numbers_give_the_published_estimate(void **state) {
  (void)state;
  bl_estimate_t e = estimate(128, 8, (bl_estimate_point_t){1, 37.8}, (bl_estimate_point_t){2, 55.2});
  assert_near(e.speedup, 1.388, 5e-4); // 1.35 was measured: below the bound
  assert_near(e.ramp, 135.0 / 142.0, 1e-12);
  assert_near(e.break_even, 142.0 / 135.0, 1e-12);
}

static void the_ramp_costs_what_the_bubble_says(void **state) {
  (void)state;
  static const struct {
    double batch, stages, from, to, ramp;
  } cases[] = {{128, 8, 1, 2, 0.9507},  {128, 8, 2, 4, 0.9103},  {128, 8, 1, 4, 0.8654},
               {128, 12, 1, 2, 0.9267}, {128, 12, 2, 4, 0.8721}, {64, 8, 1, 2, 0.9103}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bl_estimate_t e = estimate(cases[i].batch, cases[i].stages, (bl_estimate_point_t){cases[i].from, 40},
                               (bl_estimate_point_t){cases[i].to, 40});
    assert_near(e.ramp, cases[i].ramp, 5e-5);
    assert_near(e.speedup, e.ramp, 1e-12);
    assert_near((1 - e.bubble_to) / (1 - e.bubble_from), e.ramp, 1e-12);
  }
}

// Without transfers and with equal stages the bound is reached: the simulated times have exactly this ratio.
static void a_simulated_step_reaches_the_bound(void **state) {
  (void)state;
  const uint32_t batch = 32, stages = 4;
  const double times[] = {3.0, 4.5}; // of a stage at micro-batch 1 and 2
  double ends[2];
  for (uint32_t i = 0; i < 2; i++) {
    bl_schedule_t *schedule;
    bl_error_t err;
    bl_simulation_t result;
    bl_schedule_request_t request = {.name = "1f1b", .stages = stages, .micro_batches = batch / (i + 1)};
    bl_costs_t costs = {.every = {times[i] / 3, times[i] / 3, times[i] / 3, 0}};
    assert_int_equal(bl_schedule_generate(&request, &schedule, &err), BL_OK);
    assert_int_equal(bl_simulate(schedule, &costs, &result, &err), BL_OK);
    ends[i] = result.t_end;
    bl_simulation_cleanup(&result);
    bl_schedule_destroy(schedule);
  }
  bl_estimate_t e =
      estimate(batch, stages, (bl_estimate_point_t){1, 1 / times[0]}, (bl_estimate_point_t){2, 2 / times[1]});
  assert_near(e.speedup, ends[0] / ends[1], 1e-12);
}

static double simulated(const char *name, uint32_t stages, uint32_t chunks, uint32_t micro_batches, double time) {
  bl_schedule_t *schedule;
  bl_error_t err;
  bl_simulation_t result;
  const bl_schedule_request_t request = {
      .name = name, .stages = stages, .chunks = chunks, .micro_batches = micro_batches};
  const double third = time / (3 * chunks);
  const bl_costs_t costs = {.every = {third, third, third, 0}};
  assert_int_equal(bl_schedule_generate(&request, &schedule, &err), BL_OK);
  assert_int_equal(bl_simulate(schedule, &costs, &result, &err), BL_OK);
  const double end = result.t_end;
  bl_simulation_cleanup(&result);
  bl_schedule_destroy(schedule);
  return end;
}

// Chunks shorten the ramp, and zero-bubble schedules fill it. The bound of interleaved 1F1B is reached, too.
static void the_bound_holds_for_other_schedules(void **state) {
  (void)state;
  static const struct {
    const char *name;
    uint32_t chunks;
    bool fills_ramp, reached;
  } cases[] = {{"interleaved", 2, false, true},
               {"interleaved", 4, false, true},
               {"1f1b-v", 2, false, false},
               {"zb-h1", 1, true, false},
               {"zb-v", 2, true, false}};
  const uint32_t batch = 16, stages = 8;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const bl_estimate_request_t request = {.batch = batch,
                                           .stages = stages,
                                           .chunks = cases[i].chunks,
                                           .fills_ramp = cases[i].fills_ramp,
                                           .from = {1, 1 / 3.0},
                                           .to = {2, 2 / 5.4}};
    bl_estimate_t e;
    bl_error_t err;
    assert_int_equal(bl_estimate(&request, &e, &err), BL_OK);
    const double gain = simulated(cases[i].name, stages, cases[i].chunks, batch, 3.0) /
                        simulated(cases[i].name, stages, cases[i].chunks, batch / 2, 5.4);
    if (!(gain <= e.speedup + 1e-12) || (cases[i].reached && gain < e.speedup - 1e-12)) {
      fail_msg("%s, %u chunks: gains %.6f, the bound is %.6f", cases[i].name, cases[i].chunks, gain, e.speedup);
    }
  }
  // To a smaller micro-batch the whole ramp bounds what a zero-bubble schedule gains by it.
  bl_estimate_t back;
  bl_error_t err;
  const bl_estimate_request_t smaller = {
      .batch = batch, .stages = stages, .fills_ramp = true, .from = {2, 2 / 5.4}, .to = {1, 1 / 3.0}};
  assert_int_equal(bl_estimate(&smaller, &back, &err), BL_OK);
  assert_near(back.ramps, 7, 0);
  assert_true(simulated("zb-h1", stages, 1, batch / 2, 5.4) / simulated("zb-h1", stages, 1, batch, 3.0) <=
              back.speedup);
}

static void bad_numbers_are_named(void **state) {
  (void)state;
  bl_estimate_t e;
  bl_error_t err;
  bl_estimate_request_t request = {.batch = 128, .stages = 8, .from = {1, -3}, .to = {2, 4}};
  assert_int_equal(bl_estimate(&request, &e, &err), BL_INVALID);
  assert_string_equal(err.text, "first utilisation: must be a number above 0, is -3");
  request.from.mfu = NAN;
  assert_int_equal(bl_estimate(&request, &e, &err), BL_INVALID);
  request.from.mfu = 3;
  request.to.micro_batch = 256;
  assert_int_equal(bl_estimate(&request, &e, &err), BL_INVALID);
  assert_string_equal(err.text, "a batch of 128 sequences on 8 stages has no micro-batch of 256");
  request.to.micro_batch = 3;
  assert_int_equal(bl_estimate(&request, &e, &err), BL_INVALID);
  assert_string_equal(err.text, "a batch of 128 sequences is no whole number of micro-batches of 3");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(published_numbers_give_the_published_estimate),
      cmocka_unit_test(the_ramp_costs_what_the_bubble_says),
      cmocka_unit_test(a_simulated_step_reaches_the_bound),
      cmocka_unit_test(the_bound_holds_for_other_schedules),
      cmocka_unit_test(bad_numbers_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
