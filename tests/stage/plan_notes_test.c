// SPDX-License-Identifier: Apache-2.0
// Verifies what a stage tells a new driver of the plans that it keeps: also those of a second job on the same service,
// whose versions begin from 1 again.
#include "plan_notes_wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void prepare(bl_plan_notes_t *notes, bl_stage_step_t *step, uint64_t version, char *policy) {
  Ballast__V1__PreparePlanRequest request = BALLAST__V1__PREPARE_PLAN_REQUEST__INIT;
  Ballast__V1__PolicyRecord record = BALLAST__V1__POLICY_RECORD__INIT, *records[] = {&record};
  record.name = policy;
  request.version = version;
  request.policies = records;
  request.n_policies = 1;
  bl_plan_notes_offer(notes, &request);
  bl_stage_step_plan_installed(step, BL_RUN_TRAIN, (bl_plan_record_t){.version = version, .follows = version - 1});
  bl_plan_notes_keep(notes, step);
}

static void expect(bl_plan_notes_t *notes, const bl_stage_step_t *step, size_t count, const char *newest) {
  size_t listed;
  Ballast__V1__PreparedPlan **plans = bl_plan_notes_list(notes, step, &listed);
  assert_int_equal(listed, count);
  for (size_t i = 0; i < listed; i++) {
    if (plans[i]->version == step->plan_version) {
      assert_string_equal(plans[i]->policies[0]->name, newest);
    }
  }
}

static void test_plans_of_a_second_job(void **state) {
  (void)state;
  bl_plan_notes_t notes = {0};
  bl_stage_step_t step = {0};
  prepare(&notes, &step, 1, (char *)"bpipe");
  expect(&notes, &step, 1, "bpipe");
  prepare(&notes, &step, 2, (char *)"offload");
  expect(&notes, &step, 2, "offload");
  step = (bl_stage_step_t){0}; // released
  expect(&notes, &step, 0, "");
  prepare(&notes, &step, 1, (char *)"none");
  expect(&notes, &step, 1, "none");
  bl_plan_notes_keep(&notes, &step); // a repeated request
  expect(&notes, &step, 1, "none");
  bl_plan_notes_cleanup(&notes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_plans_of_a_second_job),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
