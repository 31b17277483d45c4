// SPDX-License-Identifier: Apache-2.0
// Verifies generators beyond the shapes and costs of the reference records, at 16 and 32 stages and F, I, W, boundary =
// 10, 14, 6, 2: peaks within the published limits of their family, and no name slower than another of its family that has
// no more memory.
#include "schedule/generate.h"
#include "schedule/validate.h"
#include "simulate/simulate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#ifdef __SANITIZE_ADDRESS__
#define EFFORT  0.01
#define LARGEST 16
#else
#define EFFORT  0.05
#define LARGEST 32
#endif

typedef struct outcome {
  double t_end, peak; // per chunk of a device: of two chunks the time is halved
} outcome_t;

static outcome_t make(const char *name, uint32_t p, uint32_t m, double memory) {
  bl_costs_t costs = {.every = {10, 14, 6, 10}, .boundary = 2};
  bl_schedule_request_t request = {
      .name = name, .stages = p, .micro_batches = m, .memory = memory, .costs = &costs, .effort = EFFORT};
  bl_schedule_t *schedule;
  bl_simulation_t result;
  bl_schedule_facts_t facts;
  bl_error_t err;
  bl_error_clear(&err);
  if (bl_schedule_generate(&request, &schedule, &err) != BL_OK ||
      bl_schedule_validate(schedule, &facts, &err) != BL_OK || bl_simulate(schedule, &costs, &result, &err) != BL_OK) {
    fail_msg("%s p=%u m=%u: %s", name, p, m, err.text);
  }
  assert_true(facts.ascending);
  assert_true(result.lower_bound <= result.t_end * (1 + 1e-9));
  outcome_t made = {.t_end = result.t_end / schedule->chunks};
  for (uint32_t s = 0; s < p; s++) {
    made.peak = result.peak[s] > made.peak ? result.peak[s] : made.peak;
  }
  bl_simulation_cleanup(&result);
  bl_schedule_destroy(schedule);
  return made;
}

static void expect_within(const char *name, uint32_t p, uint32_t m, outcome_t made, double peak, double t_end) {
  if (made.peak > peak + 1e-9 || made.t_end > t_end * (1 + 1e-9)) {
    fail_msg("%s p=%u m=%u: end %g, peak %g; must be within %g, %g", name, p, m, made.t_end, made.peak, t_end, peak);
  }
}

static void families_hold_their_limits(void **state) {
  (void)state;
  uint32_t rounds = getenv("BALLAST_SOAK") != NULL ? 4 : 1;
  for (uint32_t p = 16; p <= LARGEST; p *= 2) {
    for (uint32_t m = p; m <= rounds * p; m += p) {
      outcome_t classic = make("1f1b", p, m, 0);
      expect_within("1f1b", p, m, classic, p, 3 * m * 30);
      expect_within("eager-1f1b", p, m, make("eager-1f1b", p, m, 0), 2 * p, classic.t_end);
      outcome_t first = make("zb-h1", p, m, 0);
      expect_within("zb-h1", p, m, first, p, classic.t_end);
      expect_within("zb-h2", p, m, make("zb-h2", p, m, 0), 2 * p, first.t_end);
      outcome_t least = make("v-min", p, m, 0), half = make("v-half", p, m, 0);
      expect_within("v-min", p, m, least, (p + 4) / 3, 2 * classic.t_end);
      expect_within("v-half", p, m, half, (p + 2) / 2, least.t_end);
      outcome_t whole = make("adaptive", p, m, p);
      expect_within("adaptive", p, m, whole, p, classic.t_end);
      expect_within("adaptive", p, m, whole, p, first.t_end);
      expect_within("adaptive", p, m, whole, p, half.t_end);
      expect_within("adaptive, half", p, m, make("adaptive", p, m, (p + 2) / 2), (p + 2) / 2, half.t_end);
      outcome_t v = make("zb-v", p, m, 0);
      expect_within("zb-v", p, m, v, p, first.t_end);
      expect_within("zb-v", p, m, v, p, half.t_end);
      expect_within("v-zb", p, m, make("v-zb", p, m, 0), p, v.t_end);
      expect_within("adaptive", p, m, whole, p, v.t_end);
      outcome_t grouped = make("grouped-interleaved", p, m, 0), looped = make("interleaved", p, m, 0);
      expect_within("grouped-interleaved", p, m, grouped, p, looped.t_end);
      expect_within("adaptive", p, m, whole, p, grouped.t_end);
      expect_within("1f1b-v", p, m, make("1f1b-v", p, m, 0), looped.peak, 1.5 * classic.t_end);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(families_hold_their_limits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
