// SPDX-License-Identifier: Apache-2.0
// Verifies the step protocol (lib/step, PROTOCOL.md section 2) by exhaustive search over every interleaving of stages,
// a driver, its successor, late, lost, doubled and reordered messages, and crashes at every point (world.h):
//   - no two stages apply different attempts of a step, and none applies what not all have prepared;
//   - a step is applied once, in order, and no attempt is begun twice or after it was given up;
//   - a driver that was taken over from changes nothing, and a late answer changes no driver;
//   - a step is applied under one plan on all stages; once a driver has said that a policy is in force from step N on, no
//     step from N on runs under an older one, and one that was said to be refused never runs;
//   - a step runs on the weights after the one before, also where that was applied ahead of its commit; what was applied
//     ahead is committed with just those numbers, or taken back;
//   - from every state, a new driver brings all stages to the end of the run, and so does every live one that is not
//     fenced, unless a stage lost its state: then the driver says so.
// And that each rule is needed: with any one of them broken the search finds a violation.
// BALLAST_SOAK=1 searches more policies, a loss among two steps, and three stages as well.
#include "seed.h"
#include "step/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>

static explore_result_t search(const world_options_t *options, size_t limit, bool recovery) {
  explore_model_t model = world_model(options);
  if (!recovery) {
    model.inspect = NULL;
  }
  explore_result_t result = explore(&model, limit);
  printf("%u stages, %u steps, %u attempts, %u epochs, %u deaths, %u policies, broken rule: %s\n  %zu states, "
         "%zu transitions, depth %u%s; %s\n",
         options->stages, options->steps, options->attempts, options->epochs, options->deaths, options->policies,
         world_rule_text(options->broken_rule), result.states, result.transitions, result.depth,
         result.complete ? ", complete" : "", result.broken ? result.broken : "no violation");
  fflush(stdout);
  return result;
}

static void assert_sound(const world_options_t *options, size_t limit) {
  explore_result_t result = search(options, limit, true);
  if (result.broken) {
    explore_model_t model = world_model(options);
    explore_print_trace(&model, &result);
  }
  assert_null(result.broken);
  assert_true(result.complete);
}

static void test_one_step_with_two_drivers(void **state) {
  (void)state;
  world_options_t options = {.stages = 2, .steps = 1, .attempts = 3, .epochs = 3};
  assert_sound(&options, 2500000);
}

static void test_two_steps_with_two_drivers(void **state) {
  (void)state;
  world_options_t options = {.stages = 2, .steps = 2, .attempts = 3, .epochs = 2};
  assert_sound(&options, 2500000);
}

static void test_a_stage_that_loses_everything(void **state) {
  (void)state;
  const bool all = test_soak();
  printf("a loss in %s\n", all ? "one of two steps" : "one step; in one of two when BALLAST_SOAK is set");
  world_options_t options = {.stages = 2, .steps = all ? 2 : 1, .attempts = 2, .epochs = 2, .deaths = 1};
  assert_sound(&options, 2500000);
}

static void test_a_policy_with_two_drivers(void **state) {
  (void)state;
  world_options_t options = {.stages = 2, .steps = 1, .attempts = 1, .epochs = 2, .policies = 1};
  assert_sound(&options, 2500000);
}

static void test_ahead_of_commits(void **state) {
  (void)state;
  // The first attempt is given up, a later one confirmed.
  world_options_t options = {.stages = 2, .steps = 2, .attempts = 4, .epochs = 2, .ahead = true};
  assert_sound(&options, 2500000);
}

static void test_two_policies_with_two_drivers(void **state) {
  (void)state;
  if (!test_soak()) {
    printf("two policies, and a policy among several attempts, are searched when BALLAST_SOAK is set\n");
    skip();
  }
  world_options_t two = {.stages = 2, .steps = 1, .attempts = 1, .epochs = 2, .policies = 2};
  assert_sound(&two, 2500000);
  world_options_t again = {.stages = 2, .steps = 1, .attempts = 2, .epochs = 2, .policies = 1};
  assert_sound(&again, 2500000);
}

static void test_three_stages(void **state) {
  (void)state;
  if (!test_soak()) {
    printf("three stages are searched when BALLAST_SOAK is set\n");
    skip();
  }
  world_options_t options = {.stages = 3, .steps = 1, .attempts = 2, .epochs = 2};
  assert_sound(&options, 20000000);
}

static void test_every_rule_is_needed(void **state) {
  (void)state;
  if (!test_soak()) {
    printf("models with a rule broken are searched when BALLAST_SOAK is set\n");
    skip();
  }
  for (world_rule_t rule = RULE_NONE + 1; rule < WORLD_RULES; rule++) {
    world_options_t options = {.stages = 2, .steps = 2, .attempts = 3, .epochs = 2, .broken_rule = rule};
    if (rule >= RULE_TAKEN_BACK) {
      options.ahead = true;
    } else if (rule >= RULE_REFUSAL_IS_FINAL) { // these are of plans: fewer attempts, other policies
      options =
          (world_options_t){.stages = 2, .steps = 1, .attempts = 2, .epochs = 2, .policies = 2, .broken_rule = rule};
    }
    // What stages and drivers do wrong by themselves says most, but may be far away; that a run cannot be finished is
    // looked for in between.
    explore_result_t result = search(&options, 30000, false);
    if (!result.broken) {
      result = search(&options, 20000, true);
    }
    if (!result.broken) {
      result = search(&options, 400000, false);
    }
    assert_non_null(result.broken);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_step_with_two_drivers),
      cmocka_unit_test(test_two_steps_with_two_drivers),
      cmocka_unit_test(test_a_stage_that_loses_everything),
      cmocka_unit_test(test_a_policy_with_two_drivers),
      cmocka_unit_test(test_ahead_of_commits),
      cmocka_unit_test(test_two_policies_with_two_drivers),
      cmocka_unit_test(test_every_rule_is_needed),
      cmocka_unit_test(test_three_stages),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
