// SPDX-License-Identifier: Apache-2.0
// A model of the policy auto of a run for exhaustive search: the real bl_choice_t, steps that take as long as expected or far
// longer, samples that say anything of the policies, changes that are granted, refused, or answered late, others who change
// the policy in between, and a driver that dies and is followed by one that knows the policy in force alone.
#ifndef TESTS_POLICY_CHOICE_WORLD_H
#define TESTS_POLICY_CHOICE_WORLD_H

#include "step/explore.h"

// The rules of policy/choice.h, and what is done where one is broken.
#define CHOICE_RULES(X)                                                                                                \
  X(CHOICE_RULE_NONE, "none")                                                                                          \
  X(CHOICE_RULE_WARM_UP, "1: the first step under a policy is sampled")                                                \
  X(CHOICE_RULE_ONCE, "1: a step is sampled again")                                                                    \
  X(CHOICE_RULE_ONE_AT_A_TIME, "2: samples go on while something is asked for")                                        \
  X(CHOICE_RULE_CHECK, "3: what was asked for is not checked")                                                         \
  X(CHOICE_RULE_NOISE, "3: what a check finds is checked")                                                             \
  X(CHOICE_RULE_PROBES, "4: the first sample is believed")                                                             \
  X(CHOICE_RULE_PATIENCE, "5: refused trials are asked for as often as before")                                        \
  X(CHOICE_RULE_TRIALS, "6: trials go on where nothing is given up")                                                   \
  X(CHOICE_RULE_SLOWER, "7: slow steps are not noticed")                                                               \
  X(CHOICE_RULE_TOLD, "8: what was found of another policy is told")

typedef enum choice_rule {
#define X(identifier, text) identifier,
  CHOICE_RULES(X)
#undef X
      CHOICE_RULE_COUNT
} choice_rule_t;
const char *choice_rule_text(choice_rule_t rule);

typedef struct choice_options {
  unsigned refusals; // of trials, in a row
  choice_rule_t broken_rule;
} choice_options_t;

explore_model_t choice_model(const choice_options_t *options);

#endif
