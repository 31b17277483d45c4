// SPDX-License-Identifier: Apache-2.0
// Verifies changes of policy (policy/change.h) by exhaustive search over every interleaving of callers, boundaries,
// stages that agree, refuse or are slow, lost, late and doubled questions and answers, and a driver that dies at any
// point (change_world.h):
//   - what was said to be in force is: no step runs under an older policy, and every step under the one that the history names;
//   - what was refused is not, changes nothing and uses no version, until it is asked for again;
//   - a request is answered once, and carried out once, by whichever driver; a dry run never is;
//   - a step runs between two changes; nobody overtakes who asked before; waits for stores end;
//   - from every state, where all goes well from then on, every change is answered.
// And that each rule is needed: with any one of them broken the search finds a violation.
#include "policy/change_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>

static explore_result_t search(const change_options_t *options, size_t limit) {
  explore_model_t model = change_model(options);
  explore_result_t result = explore(&model, limit);
  printf("%u steps, %u drivers, %u plans, %u delays, broken rule: %s\n  %zu states, %zu transitions, depth %u%s; %s\n",
         options->steps, options->drivers, options->versions, options->delays, change_rule_text(options->broken_rule),
         result.states, result.transitions, result.depth, result.complete ? ", complete" : "",
         result.broken ? result.broken : "no violation");
  fflush(stdout);
  return result;
}

static void assert_sound(const change_options_t *options) {
  explore_result_t result = search(options, 2000000);
  if (result.broken) {
    explore_model_t model = change_model(options);
    explore_print_trace(&model, &result);
  }
  assert_null(result.broken);
  assert_true(result.complete);
}

static void test_two_drivers(void **state) {
  (void)state;
  change_options_t options = {
      .stages = 2, .steps = 2, .drivers = 2, .versions = 4, .wishes = {WISH_POLICY, WISH_ROLLBACK}};
  assert_sound(&options);
}

static void test_two_policies(void **state) {
  (void)state;
  change_options_t options = {
      .stages = 2, .steps = 2, .drivers = 1, .versions = 3, .wishes = {WISH_POLICY, WISH_POLICY}};
  assert_sound(&options);
}

static void test_a_rollback_and_a_dry_run(void **state) {
  (void)state;
  change_options_t options = {
      .stages = 2, .steps = 2, .drivers = 1, .versions = 3, .wishes = {WISH_POLICY, WISH_ROLLBACK, WISH_DRY_RUN}};
  assert_sound(&options);
}

static void test_slow_and_absent_stores(void **state) {
  (void)state;
  change_options_t options = {
      .stages = 2, .steps = 4, .drivers = 1, .versions = 5, .delays = 1, .wishes = {WISH_POLICY}, .absent = true};
  assert_sound(&options);
}

static change_options_t options_for(change_rule_t rule) {
  change_options_t options = {
      .stages = 2, .steps = 3, .drivers = 2, .versions = 4, .wishes = {WISH_POLICY}, .broken_rule = rule};
  if (rule == RULE_STEP_BETWEEN || rule == RULE_FIRST_STAYS_FIRST || rule == RULE_ANSWERED_ONCE) {
    options.drivers = 1;
    options.wishes[1] = WISH_POLICY;
  } else if (rule == RULE_WAIT_FOR_SLOW_ENDS || rule == RULE_WAIT_FOR_ABSENT_ENDS) {
    options.drivers = options.delays = 1;
    options.versions = 5;
    options.absent = rule == RULE_WAIT_FOR_ABSENT_ENDS;
  } else if (rule == RULE_DRY_RUN) {
    options.wishes[0] = WISH_DRY_RUN;
  } else if (rule == RULE_NAMED_ONCE) {
    options.versions = 5;
    options.wishes[1] = WISH_POLICY;
  }
  return options;
}

static void test_every_rule_is_needed(void **state) {
  (void)state;
  for (change_rule_t rule = RULE_NONE + 1; rule < CHANGE_RULE_COUNT; rule++) {
    change_options_t options = options_for(rule);
    assert_non_null(search(&options, 400000).broken);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_two_drivers),
      cmocka_unit_test(test_two_policies),
      cmocka_unit_test(test_a_rollback_and_a_dry_run),
      cmocka_unit_test(test_slow_and_absent_stores),
      cmocka_unit_test(test_every_rule_is_needed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
