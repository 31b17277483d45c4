// SPDX-License-Identifier: Apache-2.0
// Verifies that predicted peak slots are exactly what the executor's plan takes, for every schedule that runs, with and
// without recomputation, evenly and with caps in both modes, parked and in part made again.
#include "plan/evaluate/trial.h"

#include "schedule/balance/balance.h"
#include "schedule/generate.h"
#include "schedule/ir/stage_plan.h"

#include "models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static void compare(const bl_schedule_t *schedule, const bl_model_t *model) {
  bl_chunk_span_t spans[16] = {{0}};
  for (uint32_t v = 0; v < schedule->virtual_stages; v++) {
    spans[v] = (bl_chunk_span_t){
        .first_layer = v, .layer_count = 1, .embedding = v == 0, .head = v + 1 == schedule->virtual_stages};
  }
  bl_trial_t trial;
  bl_error_t err;
  bl_trial_request_t request = {.schedule = schedule,
                                .model = model,
                                .spans = spans,
                                .options = {.micro_batch = 1},
                                .hardware = bl_hardware_find("host")};
  if (bl_trial_run(&request, &trial, &err) != BL_OK) {
    fail_msg("%s: %s", schedule->name, err.text);
  }
  for (uint32_t s = 0; s < schedule->stages; s++) {
    bl_stage_plan_t plan;
    assert_int_equal(bl_stage_plan_init(schedule, s, (bl_plan_limits_t){.prefetch = 1}, &plan, &err), BL_OK);
    if (plan.slots != trial.simulation.peak_slots[s]) {
      fail_msg("%s, p %u, m %u, stage %u: %u slots predicted, the executor takes %u", schedule->name, schedule->stages,
               schedule->micro_batches, s, trial.simulation.peak_slots[s], plan.slots);
    }
    bl_stage_plan_cleanup(&plan);
  }
  bl_trial_cleanup(&trial);
}

static void with_caps(const bl_schedule_t *schedule, const bl_model_t *model) {
  static const double copies[] = {0, 0.5, 1.5}; // all parked; with some made again
  for (int way = 0; way < 6; way++) {
    for (uint32_t slots = 2; slots <= 2 * schedule->stages; slots++) {
      const bl_balance_cap_t cap = {
          .slots = slots, .mode = way % 2 == 0 ? BL_BALANCE_OVERLAP : BL_BALANCE_FEWEST, .copy = copies[way / 2]};
      bl_balance_result_t balanced;
      if (bl_balance_within(schedule, &cap, &balanced, NULL) == BL_OK) {
        compare(balanced.schedule, model);
        bl_balance_result_cleanup(&balanced);
      }
    }
  }
}

static void predicted_peaks_are_the_executors(void **state) {
  (void)state;
  size_t count, seen = 0;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  bl_model_t model = gpt(16, 64, 4);
  for (size_t i = 0; i < count; i++) {
    for (uint32_t stages = 1; stages <= 4; stages++) {
      for (uint32_t m = 4; m <= 12; m += 4) {
        bl_schedule_t *schedule;
        bl_schedule_request_t request = {.name = infos[i].name, .stages = stages, .micro_batches = m, .effort = 0.01};
        if (bl_schedule_generate(&request, &schedule, NULL) != BL_OK) {
          continue; // a shape that it does not have
        }
        compare(schedule, &model);
        with_caps(schedule, &model);
        bl_schedule_destroy(schedule);
        request.recompute = true;
        assert_int_equal(bl_schedule_generate(&request, &schedule, NULL), BL_OK);
        compare(schedule, &model);
        bl_schedule_destroy(schedule);
        seen++;
      }
    }
  }
  assert_true(seen > 80);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(predicted_peaks_are_the_executors)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
