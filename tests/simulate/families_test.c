// SPDX-License-Identifier: Apache-2.0
// Verifies that searched schedules need no more time and no more memory than the public generators' records of their
// family, for the same stages, micro-batches and costs. By default the smaller and the hardest records; all with
// BALLAST_SOAK=1.
#include "reference.h"

#include "schedule/generate.h"
#include "schedule/ir/validate.h"
#include "seed.h"
#include "simulate/simulate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef enum limit { LIMIT_DEFAULT, LIMIT_RECORD } limit_t;

typedef struct family {
  const char *record, *ours;
  limit_t memory;  // LIMIT_RECORD: the record's own worst peak is the limit asked for
  bool half_group; // group of ceil(p / 2)
  bool hard;       // the search reaches it only just
} family_t;

static const family_t families[] = {
    {"zb_1p", "zb-h1", LIMIT_DEFAULT, false, false},
    {"zb_1p_memb", "zb-h1", LIMIT_DEFAULT, false, false},
    {"zb_1.5p", "zb-h1", LIMIT_RECORD, false, false},
    {"zb_2p", "zb-h2", LIMIT_DEFAULT, false, false},
    {"zbv", "zb-v", LIMIT_DEFAULT, false, false},
    {"v_min", "v-min", LIMIT_DEFAULT, false, false},
    {"v_half", "v-half", LIMIT_DEFAULT, false, false},
    {"v_1f1b", "1f1b-v", LIMIT_DEFAULT, false, true},
    {"chimera", "chimera", LIMIT_DEFAULT, false, false},
    {"group_interleaved_v2_gp", "grouped-interleaved", LIMIT_DEFAULT, false, false},
    {"group_interleaved_v2_ghalf", "grouped-interleaved", LIMIT_DEFAULT, true, false},
    {"v_auto_max4", "adaptive", LIMIT_RECORD, false, false},
    {"v_auto_max6", "adaptive", LIMIT_RECORD, false, false},
    {"v_auto_max8", "adaptive", LIMIT_RECORD, false, false},
    {"v_auto_max12", "adaptive", LIMIT_RECORD, false, true},
    {"v_auto_max16", "adaptive", LIMIT_RECORD, false, false},
};

// Stages times micro-batches of the records that every run compares, and how long it searches. Sanitizers make the search
// many times slower.
#ifdef __SANITIZE_ADDRESS__
#define EVERY_RUN 16
#define HARD_RUN  16
#define EFFORT    0.1
#else
#define EVERY_RUN 16
#define HARD_RUN  64
#define EFFORT    1
#endif

static void compare(const reference_t *record, const family_t *family) {
  bl_costs_t costs = reference_costs(record);
  bl_schedule_request_t request = {.name = family->ours,
                                   .stages = record->p,
                                   .micro_batches = record->m,
                                   .group = family->half_group ? (record->p + 1) / 2 : 0,
                                   .memory = family->memory == LIMIT_RECORD ? record->worst_peak : 0,
                                   .costs = &costs,
                                   .effort = EFFORT};
  bl_schedule_t *schedule = NULL;
  bl_simulation_t result;
  bl_schedule_facts_t facts;
  bl_error_t err;
  if (bl_schedule_generate(&request, &schedule, &err) != BL_OK) {
    fail_msg("%s p=%u m=%u: %s", family->ours, record->p, record->m, err.text);
  }
  if (bl_schedule_validate(schedule, &facts, &err) != BL_OK) {
    fail_msg("%s p=%u m=%u: %s", family->ours, record->p, record->m, err.text);
  }
  assert_true(facts.ascending);
  assert_int_equal(bl_simulate(schedule, &costs, &result, &err), BL_OK);
  assert_true(result.lower_bound <= result.t_end * (1 + 1e-9));
  double peak = 0;
  for (uint32_t s = 0; s < record->p; s++) {
    peak = result.peak[s] > peak ? result.peak[s] : peak;
  }
  if (result.t_end > record->t_end + 1e-9 || peak > record->worst_peak + 1e-9) {
    fail_msg("%s p=%u m=%u costs %g,%g,%g,%g: end %g, peak %g; %s of %s has %g, %g", family->ours, record->p, record->m,
             record->forward, record->input, record->weight, record->boundary, result.t_end, peak, record->name,
             record->source, record->t_end, record->worst_peak);
  }
  bl_simulation_cleanup(&result);
  bl_schedule_destroy(schedule);
}

static void searched_schedules_reach_their_records(void **state) {
  (void)state;
  bool all = test_soak();
  reference_t records[REFERENCE_MAX];
  const uint32_t most[] = {[false] = EVERY_RUN, [true] = HARD_RUN};
  size_t count = reference_read(records), compared = 0;
  for (size_t r = 0; r < count; r++) {
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
      bool small = records[r].p * records[r].m <= most[families[f].hard];
      if ((all || small) && strcmp(records[r].name, families[f].record) == 0) {
        compare(&records[r], &families[f]);
        compared++;
      }
    }
  }
  assert_in_range(compared, 25, REFERENCE_MAX);
}

static void expect_no_more(const reference_t *record, const bl_schedule_t *schedule) {
  const bl_costs_t costs = reference_costs(record);
  bl_simulation_t result;
  assert_int_equal(bl_schedule_validate(schedule, NULL, NULL), BL_OK);
  assert_int_equal(bl_simulate(schedule, &costs, &result, NULL), BL_OK);
  for (uint32_t s = 0; s < record->p; s++) {
    if (result.t_end > record->t_end + 1e-9 || result.peak[s] > record->worst_peak + 1e-9) {
      fail_msg("%s p=%u m=%u costs %g,%g,%g,%g: end %g, peak %g on stage %u; the record has %g, %g", record->name,
               record->p, record->m, record->forward, record->input, record->weight, record->boundary, result.t_end,
               result.peak[s], s, record->t_end, record->worst_peak);
    }
  }
  bl_simulation_cleanup(&result);
}

// Groups of which the first chunk of every stage, or all, are made again.
static void compare_recomputed(const reference_t *record, uint32_t chunks) {
  const bl_costs_t costs = reference_costs(record);
  bl_schedule_request_t request = {.name = "grouped-interleaved",
                                   .stages = record->p,
                                   .micro_batches = record->m,
                                   .costs = &costs,
                                   .recompute = true,
                                   .recompute_chunks = chunks,
                                   .slots = record->worst_peak,
                                   .effort = 0.01};
  bl_schedule_t *schedule;
  bl_error_t err;
  if (bl_schedule_generate(&request, &schedule, &err) != BL_OK) {
    fail_msg("%s p=%u m=%u: %s", record->name, record->p, record->m, err.text);
  }
  expect_no_more(record, schedule);
  bl_schedule_destroy(schedule);
}

static void recomputing_families_are_reached(void **state) {
  (void)state;
  reference_t records[REFERENCE_MAX];
  size_t count = reference_read(records), compared = 0;
  for (size_t r = 0; r < count; r++) {
    for (uint32_t chunks = 1; chunks <= 2; chunks++) {
      char name[40];
      snprintf(name, sizeof name, "group_interleaved_v2_recompute%u", chunks);
      if (strcmp(records[r].name, name) == 0) {
        compare_recomputed(&records[r], chunks);
        compared++;
      }
    }
  }
  assert_int_equal(compared, 12 + 12);
}

// Costs of one stage that is slower than the others: limits hold and the bound stays below.
static void uneven_stages_are_scheduled(void **state) {
  (void)state;
  bl_chunk_costs_t chunks[8];
  for (uint32_t s = 0; s < 8; s++) {
    chunks[s] = s == 2 ? (bl_chunk_costs_t){14, 20, 9, 14} : (bl_chunk_costs_t){10, 14, 6, 10};
  }
  bl_costs_t costs = {.chunks = chunks, .boundary = 2};
  static const char *const names[] = {"zb-h1", "v-half", "adaptive"};
  for (size_t n = 0; n < 3; n++) {
    bl_schedule_request_t request = {
        .name = names[n], .stages = 4, .micro_batches = 8, .costs = &costs, .effort = EFFORT};
    bl_schedule_t *schedule;
    bl_simulation_t result;
    assert_int_equal(bl_schedule_generate(&request, &schedule, NULL), BL_OK);
    assert_int_equal(bl_simulate(schedule, &costs, &result, NULL), BL_OK);
    assert_true(result.lower_bound <= result.t_end && result.t_end < 1.5 * result.lower_bound);
    for (uint32_t s = 0; s < 4; s++) {
      assert_true(result.peak[s] <= 4);
    }
    bl_simulation_cleanup(&result);
    bl_schedule_destroy(schedule);
  }
}

static void memory_limits_per_stage_hold(void **state) {
  (void)state;
  const double memory[] = {2, 3, 4, 1};
  bl_schedule_request_t request = {.name = "zb-h1", .stages = 4, .micro_batches = 8, .memory_of_stage = memory};
  bl_schedule_t *schedule = NULL;
  bl_simulation_t result;
  bl_costs_t costs = BL_COSTS_UNIT;
  bl_error_t err;
  assert_int_equal(bl_schedule_generate(&request, &schedule, &err), BL_OK);
  assert_int_equal(bl_simulate(schedule, &costs, &result, &err), BL_OK);
  for (uint32_t s = 0; s < 4; s++) {
    assert_true(result.peak[s] <= memory[s]);
  }
  bl_simulation_cleanup(&result);
  bl_schedule_destroy(schedule);
  // Below what building blocks need: one micro-batch at a time works on any number of stages, less does not.
  static const char *const names[] = {"adaptive", "zb-v", "zb-h1", "zb-h2"};
  for (size_t n = 0; n < 4; n++) {
    for (double limit = 0.25; limit < 4; limit *= 2) {
      request =
          (bl_schedule_request_t){.name = names[n], .stages = 8, .micro_batches = 8, .memory = limit, .effort = 0.001};
      bl_status_t status = bl_schedule_generate(&request, &schedule, &err);
      if (limit < 1) {
        assert_int_equal(status, BL_INVALID);
        assert_non_null(strstr(err.text, "below 1, the smallest that works"));
        assert_non_null(strstr(err.text, names[n]));
        continue;
      }
      assert_int_equal(status, BL_OK);
      assert_int_equal(bl_simulate(schedule, &costs, &result, &err), BL_OK);
      for (uint32_t s = 0; s < 8; s++) {
        assert_true(result.peak[s] <= limit);
      }
      bl_simulation_cleanup(&result);
      bl_schedule_destroy(schedule);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(searched_schedules_reach_their_records),
      cmocka_unit_test(recomputing_families_are_reached),
      cmocka_unit_test(uneven_stages_are_scheduled),
      cmocka_unit_test(memory_limits_per_stage_hold),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
