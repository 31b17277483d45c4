// SPDX-License-Identifier: Apache-2.0
// Verifies the policy auto of a run (policy/choice.h) by exhaustive search over every sequence of steps, decisions, changes
// that are granted, refused or late, others who change the policy, slow steps, and drivers that die (choice_world.h):
//   - no step is sampled that warms up, was not timed, was sampled before, or while a change is asked for;
//   - what was changed to is checked at once, and noise is not followed around;
//   - one sample is not believed that paths are far too slow;
//   - trials are of what gives blocks up, and those that are refused are asked for less and less often;
//   - slow steps end a rest; what is told is about the policy in force;
//   - from every state, where all goes well from then on, it looks at a step within a rest.
// And that each rule is needed: with any one of them broken the search finds a violation.
#include "policy/choice_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>

static explore_result_t search(const choice_options_t *options, size_t limit) {
  explore_model_t model = choice_model(options);
  explore_result_t result = explore(&model, limit);
  printf("%u refusals, broken rule: %s\n  %zu states, %zu transitions, depth %u%s; %s\n", options->refusals,
         choice_rule_text(options->broken_rule), result.states, result.transitions, result.depth,
         result.complete ? ", complete" : "", result.broken ? result.broken : "no violation");
  fflush(stdout);
  return result;
}

static void test_all_sequences(void **state) {
  (void)state;
  choice_options_t options = {.refusals = 2};
  explore_result_t result = search(&options, 2000000);
  if (result.broken) {
    explore_model_t model = choice_model(&options);
    explore_print_trace(&model, &result);
  }
  assert_null(result.broken);
  assert_true(result.complete);
}

static void test_every_rule_is_needed(void **state) {
  (void)state;
  for (choice_rule_t rule = CHOICE_RULE_NONE + 1; rule < CHOICE_RULE_COUNT; rule++) {
    choice_options_t options = {.refusals = 2, .broken_rule = rule};
    assert_non_null(search(&options, 500000).broken);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_all_sequences),
      cmocka_unit_test(test_every_rule_is_needed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
