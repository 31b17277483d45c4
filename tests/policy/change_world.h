// SPDX-License-Identifier: Apache-2.0
// A model of changes of policy for exhaustive search: the real bl_changes_t and bl_driver_step_t of one driver after the
// other, the real bl_stage_step_t of stages, and a network for PreparePlan in which every question and every answer may be
// lost, late or doubled: what was sent once may arrive at any time and as often as it likes. Stages agree, refuse, or say
// that their stores are slow; drivers die anywhere; time passes. Steps themselves run at once: that they count on all stages
// or on none is what tests/step searches.
#ifndef TESTS_POLICY_CHANGE_WORLD_H
#define TESTS_POLICY_CHANGE_WORLD_H

#include "step/explore.h"

// Who asks: each once of every driver until it is answered, under a name of its own.
typedef enum change_wish { WISH_NONE, WISH_POLICY, WISH_ROLLBACK, WISH_DRY_RUN } change_wish_t;
#define WISHES 3

// The rules of policy/change.h, and what is done where one is broken.
#define CHANGE_RULES(X)                                                                                                \
  X(RULE_NONE, "none")                                                                                                 \
  X(RULE_LEFT_GOES_ON, "1: a new driver begins with the job's policy, whatever stages keep")                           \
  X(RULE_REFUSAL_CHANGES_NOTHING, "2: what a stage refused is taken for in force")                                     \
  X(RULE_NAMED_ONCE, "3: names of requests are forgotten")                                                             \
  X(RULE_STEP_BETWEEN, "4: the next change begins at once")                                                            \
  X(RULE_FIRST_STAYS_FIRST, "5: one that waited for stores goes behind the others")                                    \
  X(RULE_WAIT_FOR_SLOW_ENDS, "6: slow stores are waited for without an end")                                           \
  X(RULE_WAIT_FOR_ABSENT_ENDS, "6: stores that are away are waited for without an end")                                \
  X(RULE_FROM_NEXT_STEP, "7: a step runs between proposal and conclusion")                                             \
  X(RULE_DRY_RUN, "8: a dry run that waited is carried out")                                                           \
  X(RULE_ANSWERED_ONCE, "9: a change stays in the queue when it is in force")

typedef enum change_rule {
#define X(identifier, text) identifier,
  CHANGE_RULES(X)
#undef X
      CHANGE_RULE_COUNT
} change_rule_t;
const char *change_rule_text(change_rule_t rule);

typedef struct change_options {
  unsigned stages, steps, drivers, versions; // most of each; versions of plans
  unsigned delays;                           // how often so much time passes that waits end
  change_wish_t wishes[WISHES];
  bool absent; // stores may not have shown that they are there
  change_rule_t broken_rule;
} change_options_t;

explore_model_t change_model(const change_options_t *options);

#endif
