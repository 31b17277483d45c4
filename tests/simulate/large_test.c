// SPDX-License-Identifier: Apache-2.0
// Verifies generators beyond the shapes and costs of the reference records, at 16 and 32 stages. With F, I, W, boundary =
// 10, 14, 6, 2: peaks within the published limits of their family, and no name slower than another of its family that has
// no more memory. Ends that can be worked out. With the costs of the records: no more time and memory than records of 4
// and 8 stages come to when they go on like that; names that are searched with BALLAST_SOAK=1, by the whole search.
#include "reference.h"

#include "schedule/generate.h"
#include "schedule/ir/validate.h"
#include "seed.h"
#include "simulate/simulate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#ifdef __SANITIZE_ADDRESS__
#define EFFORT  0.01
#define SLACK   0.01 // that a search which ends so early has
#define LARGEST 16
#else
#define EFFORT  0.05
#define SLACK   0
#define LARGEST 32
#endif

typedef struct outcome {
  double t_end, peak; // per chunk of a device: of two chunks, or of slices, the time is divided
} outcome_t;

static const bl_costs_t uneven = {.every = {10, 14, 6, 10}, .boundary = 2};

static outcome_t make_with(const bl_costs_t *costs, const char *name, uint32_t p, uint32_t m, uint32_t group,
                           double memory, double effort) {
  bl_schedule_request_t request = {.name = name,
                                   .stages = p,
                                   .micro_batches = m,
                                   .group = group,
                                   .memory = memory,
                                   .costs = costs,
                                   .effort = effort};
  bl_schedule_t *schedule;
  bl_simulation_t result;
  bl_schedule_facts_t facts;
  bl_error_t err;
  bl_error_clear(&err);
  if (bl_schedule_generate(&request, &schedule, &err) != BL_OK ||
      bl_schedule_validate(schedule, &facts, &err) != BL_OK || bl_simulate(schedule, costs, &result, &err) != BL_OK) {
    fail_msg("%s p=%u m=%u: %s", name, p, m, err.text);
  }
  assert_true(facts.ascending);
  assert_true(result.lower_bound <= result.t_end * (1 + 1e-9));
  // Both directions of a bidirectional schedule share its micro-batches.
  outcome_t made = {.t_end = result.t_end * schedule->pipes / schedule->chunks / schedule->slices};
  for (uint32_t s = 0; s < p; s++) {
    made.peak = result.peak[s] > made.peak ? result.peak[s] : made.peak;
  }
  bl_simulation_cleanup(&result);
  bl_schedule_destroy(schedule);
  return made;
}

static outcome_t make(const char *name, uint32_t p, uint32_t m, double memory) {
  return make_with(&uneven, name, p, m, 0, memory, EFFORT);
}

static void expect_within(const char *name, uint32_t p, uint32_t m, outcome_t made, double peak, double t_end) {
  if (made.peak > peak + 1e-9 || made.t_end > t_end * (1 + 1e-9)) {
    fail_msg("%s p=%u m=%u: end %g, peak %g; must be within %g, %g", name, p, m, made.t_end, made.peak, t_end, peak);
  }
}

static void families_hold_their_limits(void **state) {
  (void)state;
  uint32_t rounds = test_soak() ? 4 : 1;
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
      expect_within("chimera", p, m, make("chimera", p, m, 0), p, classic.t_end);
      expect_within("seq1f1b", p, m, make("seq1f1b", p, m, 0), (p + 1) / 2.0, classic.t_end);
      if (m >= 2 * p) {
        expect_within("dualpipe", p, m, make("dualpipe", p, m, 0), p + 1, classic.t_end);
        expect_within("dualpipe-v", p, m, make("dualpipe-v", p, m, 0), p + 0.5, classic.t_end);
      }
    }
  }
}

// ---- what is known without a record

static void expect_end(const bl_costs_t *costs, const char *name, uint32_t p, uint32_t m, double t_end) {
  outcome_t made = make_with(costs, name, p, m, 0, 0, EFFORT);
  if (made.t_end != t_end) {
    fail_msg("%s p=%u m=%u: end %g, worked out %g", name, p, m, made.t_end, t_end);
  }
}

// Ends that can be worked out, with boundaries that cost nothing.
static void known_ends_are_met(void **state) {
  (void)state;
  const bl_costs_t free_boundaries = {.every = {10, 14, 6, 10}}, unit = BL_COSTS_UNIT;
  for (uint32_t p = 16; p <= LARGEST; p *= 2) {
    for (uint32_t m = p; m <= 4 * p; m += p) {
      static const char *const filled[] = {"gpipe", "1f1b", "eager-1f1b"};
      for (size_t n = 0; n < sizeof filled / sizeof filled[0]; n++) {
        expect_end(&free_boundaries, filled[n], p, m, 30 * (m + p - 1));
      }
      expect_end(&free_boundaries, "interleaved", p, m, 30 * (m + (p - 1) / 2.0));
      expect_end(&free_boundaries, "seq1f1b", p, m, 30 * (m + (p - 1) / 2.0));
      expect_end(&unit, "zb-h1", p, m, 3 * m + p - 1);
    }
  }
}

// ---- the records, extended

typedef struct line {
  const char *record, *ours;
  bool half_group, searched;
  double slack; // where ours is above the line: no record, only what two of them come to
} line_t;

// Not v-min, whose memory grows more slowly than that of its records.
static const line_t lines[] = {
    {"gpipe", "gpipe", false, false, 0},
    {"1f1b", "1f1b", false, false, 0},
    {"interleaved_v2", "interleaved", false, false, 0},
    {"seq1f1b_k2", "seq1f1b", false, false, 0},
    {"dualpipe", "dualpipe", false, false, 0.01},
    {"dualpipe_v", "dualpipe-v", false, false, 0.01},
    {"zb_1p", "zb-h1", false, true, 0},
    {"zb_2p", "zb-h2", false, true, 0},
    {"zbv", "zb-v", false, true, 0},
    {"v_half", "v-half", false, true, 0},
    {"chimera", "chimera", false, true, 0.01},
    {"group_interleaved_v2_gp", "grouped-interleaved", false, true, 0},
    {"group_interleaved_v2_ghalf", "grouped-interleaved", true, true, 0},
};

// The fastest record of that name, of `p` stages and as many micro-batches for each as `like` has, with its costs.
static const reference_t *record_of(const reference_t *records, size_t count, const char *name, uint32_t p,
                                    const reference_t *like) {
  const reference_t *best = NULL;
  for (size_t r = 0; r < count; r++) {
    const reference_t *record = &records[r];
    if (strcmp(record->name, name) == 0 && record->p == p && record->m * like->p == like->m * p &&
        record->forward == like->forward && record->boundary == like->boundary &&
        (best == NULL || record->t_end < best->t_end)) {
      best = record;
    }
  }
  return best;
}

// The record of 4 stages to draw the line from: v-half's with 4 micro-batches has a larger bubble than with more, which the
// one of 8 stages has not.
static const reference_t *beginning(const reference_t *records, size_t count, const reference_t *eight) {
  reference_t like = *eight;
  if (strcmp(eight->name, "v_half") == 0 && like.m < 2 * like.p) {
    like.m = 2 * like.p;
  }
  return record_of(records, count, eight->name, 4, &like);
}

// What two records of 4 and 8 stages come to at p stages: the time beside the work of a stage grows with its number.
static void compare_with_line(const line_t *line, const reference_t *four, const reference_t *eight, uint32_t p) {
  const bl_costs_t costs = reference_costs(eight);
  const double pieces = strncmp(line->record, "seq1f1b", 7) == 0                                        ? 2
                        : strcmp(line->record, "dualpipe") == 0 || strcmp(line->record, "chimera") == 0 ? 1
                                                                                                        : eight->v;
  const double work = pieces * (costs.every.forward + costs.every.input + costs.every.weight), steps = (p - 8) / 4.0;
  const double beside[] = {four->t_end - four->m * work, eight->t_end - eight->m * work};
  const uint32_t m = eight->m / 8 * p;
  const double t_end = m * work + beside[1] + steps * (beside[1] - beside[0]);
  const double peak = eight->worst_peak + steps * (eight->worst_peak - four->worst_peak);
  outcome_t made = make_with(&costs, line->ours, p, m, line->half_group ? p / 2 : 0, 0, test_soak() ? 1 : EFFORT);
  printf("%-28s p=%-2u m=%-3u costs %g,%g,%g,%g: end %g (line %g), peak %g (line %g)\n", line->record, p, m,
         costs.every.forward, costs.every.input, costs.every.weight, costs.boundary, made.t_end * pieces, t_end,
         made.peak, peak);
  expect_within(line->ours, p, m, made, peak, t_end / pieces * (1 + line->slack));
}

static void families_go_on_like_their_records(void **state) {
  (void)state;
  bool all = test_soak();
  reference_t records[REFERENCE_MAX];
  size_t count = reference_read(records), compared = 0;
  for (size_t n = 0; n < sizeof lines / sizeof lines[0]; n++) {
    for (size_t r = 0; r < count; r++) {
      const reference_t *eight = &records[r];
      if (strcmp(eight->name, lines[n].record) != 0 || eight->p != 8 ||
          record_of(records, count, lines[n].record, 8, eight) != eight) {
        continue;
      }
      const reference_t *four = beginning(records, count, eight);
      for (uint32_t p = 16; four != NULL && p <= LARGEST; p *= 2) {
        if (all || !lines[n].searched) {
          compare_with_line(&lines[n], four, eight, p);
          compared++;
        }
      }
    }
  }
  assert_true(compared >= 30);
}

// ---- V's within half to all of 1F1B's memory, against what public generators give for them

// Their ends (zero-bubble's v-half and its search under a limit). Costs: unit, or 10, 11, 9, 1.
static const struct {
  uint32_t p, m;
  double memory, unit, uneven; // 0: not known
} limited[] = {
    {16, 16, 8, 143, 0},    {16, 16, 9, 137, 1571},  {16, 16, 10, 131, 0},    {16, 16, 11, 125, 0},
    {16, 16, 12, 119, 0},   {16, 16, 13, 117, 0},    {16, 16, 14, 115, 0},    {16, 16, 15, 113, 0},
    {16, 32, 8, 239, 0},    {16, 32, 9, 233, 2489},  {16, 32, 10, 227, 0},    {16, 32, 11, 221, 0},
    {16, 32, 12, 215, 0},   {16, 32, 13, 213, 0},    {16, 32, 14, 211, 0},    {16, 32, 15, 209, 0},
    {16, 64, 9, 425, 4409}, {32, 32, 17, 281, 3273}, {32, 64, 17, 473, 5067}, {32, 128, 17, 857, 8907},
};

static void compare_limited(const bl_costs_t *costs, uint32_t p, uint32_t m, double memory, double t_end) {
  outcome_t made = make_with(costs, "zb-v", p, m, 0, memory, test_soak() ? 1 : EFFORT);
  printf("zb-v in %g, p=%u m=%u: end %g, public %g\n", memory, p, m, 2 * made.t_end, t_end);
  expect_within("zb-v", p, m, made, memory, t_end / 2 * (1 + SLACK));
}

static void half_and_more_of_the_memory_of_1f1b_is_used(void **state) {
  (void)state;
  const bl_costs_t unit = BL_COSTS_UNIT, other = {.every = {10, 11, 9, 10}, .boundary = 1};
  for (size_t k = 0; k < sizeof limited / sizeof limited[0]; k++) {
    if (limited[k].p > LARGEST) {
      continue;
    }
    compare_limited(&unit, limited[k].p, limited[k].m, limited[k].memory, limited[k].unit);
    if (limited[k].uneven > 0) {
      compare_limited(&other, limited[k].p, limited[k].m, limited[k].memory, limited[k].uneven);
    }
  }
}

// ---- 1f1b-v, whose public generator is small enough to be written once more

// What that gives, which for 4 and 8 stages is what the records have: ends by costs 1,1,1,0; 10,11,9,1; 10,14,6,2.
static const struct {
  uint32_t p, m;
  double ends[3], peak;
} squeezed[] = {
    {16, 16, {171, 1814, 1918}, 11}, {16, 32, {267, 2860, 3050}, 11}, {16, 64, {459, 4958, 5326}, 11},
    {32, 32, {345, 3670, 3890}, 22}, {32, 64, {537, 5756, 6152}, 22}, {32, 128, {921, 9966, 10732}, 22},
};

static void the_folded_1f1b_is_met(void **state) {
  (void)state;
  const bl_costs_t costs[] = {BL_COSTS_UNIT, {.every = {10, 11, 9, 10}, .boundary = 1}, uneven};
  for (size_t k = 0; k < sizeof squeezed / sizeof squeezed[0]; k++) {
    const uint32_t p = squeezed[k].p, m = squeezed[k].m;
    const bool wanted = test_soak() || m * p <= 16 * 64;
    for (size_t c = 0; c < 3 && p <= LARGEST && wanted; c++) {
      outcome_t made = make_with(&costs[c], "1f1b-v", p, m, 0, 0, EFFORT);
      expect_within("1f1b-v", p, m, made, squeezed[k].peak, squeezed[k].ends[c] / 2);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(families_hold_their_limits),
      cmocka_unit_test(known_ends_are_met),
      cmocka_unit_test(families_go_on_like_their_records),
      cmocka_unit_test(half_and_more_of_the_memory_of_1f1b_is_used),
      cmocka_unit_test(the_folded_1f1b_is_met),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
