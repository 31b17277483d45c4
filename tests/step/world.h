// SPDX-License-Identifier: Apache-2.0
// The world in which the step protocol is checked: stages and drivers, which are the product's own machines
// (lib/step), and a network that keeps every request for ever. A request may be handled any number of times, at any
// time, in any order, or never: that covers loss, delay, doubling and reordering. So does an answer. A driver that
// crashes is one that does nothing any more, so crashes at every point are covered by what is simply not delivered;
// the first driver going on after the second has started is the zombie.
//
// The world can break one rule (a mutation): then the search must find a violation, which shows that the rule is
// needed and that the invariants see it. Mutations live here; the product has no such switches. Rules that only save
// time are not among them: that a new driver decides an attempt which all have prepared instead of running it again,
// that its first attempt and plan are above all others (stages refuse lower ones until it is), and that an attempt which
// stages have begun ahead is the next one, or given up first (stages refuse any other until it is).
#ifndef TESTS_STEP_WORLD_H
#define TESTS_STEP_WORLD_H

#include "step/explore.h"

// X(identifier, what is broken)
#define WORLD_MUTATIONS(X)                                                                                             \
  X(RULE_NONE, "nothing")                                                                                              \
  X(RULE_FENCING, "stage: obeys any driver")                                                                           \
  X(RULE_EPOCHS_RISE, "stage: accepts a takeover with a lower epoch")                                                  \
  X(RULE_NEW_ATTEMPT, "stage: runs an attempt that is not above the highest seen")                                     \
  X(RULE_ABORT_IS_REMEMBERED, "stage: an abort does not raise the highest attempt")                                    \
  X(RULE_SAME_VOTE, "stage: a voted attempt that is asked for again runs again")                                       \
  X(RULE_ABORT_ENDS_THE_VOTE, "stage: an abort leaves a prepared vote in place")                                       \
  X(RULE_COMMIT_OF_THE_VOTED, "stage: commits whatever it has voted for")                                              \
  X(RULE_COMMIT_ONCE, "stage: a repeated commit is applied again")                                                     \
  X(RULE_COMMIT_ANSWERED_AGAIN, "stage: a repeated commit is refused")                                                 \
  X(RULE_ALL_ARE_TAKEN_OVER, "driver: acts once the first stage has accepted it")                                      \
  X(RULE_ALL_HAVE_VOTED, "driver: commits after the first vote")                                                       \
  X(RULE_ALL_ARE_PREPARED, "new driver: commits an attempt that only some have prepared")                              \
  X(RULE_FINISH_COMMITS, "new driver: aborts a step that some stage has applied")                                      \
  X(RULE_DECIDED_IS_DECIDED, "driver: may abort after the first commit is sent")                                       \
  X(RULE_ALL_HAVE_APPLIED, "driver: begins the next step once the first stage has applied")                            \
  X(RULE_REFUSAL_IS_FINAL, "stage: prepares a plan that it refused before")                                            \
  X(RULE_PLAN_IN_FORCE_IS_KEPT, "stage: a new plan may take the place of the one in force")                            \
  X(RULE_ALL_HAVE_AGREED, "driver: a plan is in force once the first stage has prepared it")                           \
  X(RULE_REFUSED_BY_ONE, "driver: a plan that one stage refused is in force all the same")                             \
  X(RULE_PLAN_OF_ALL, "new driver: goes on with the newest plan that any stage keeps")                                 \
  X(RULE_NEWEST_PLAN, "new driver: goes on with the oldest plan that all keep")                                        \
  X(RULE_TAKEN_BACK, "stage: an abort leaves an update in place that was applied ahead of its commit")                 \
  X(RULE_AS_OFFERED, "driver: commits with other numbers than it has offered")                                         \
  X(RULE_AHEAD_IS_TOLD, "new driver: learns nothing of what was applied ahead")

typedef enum world_rule {
#define X(identifier, text) identifier,
  WORLD_MUTATIONS(X)
#undef X
      WORLD_RULES
} world_rule_t;

const char *world_rule_text(world_rule_t rule);

typedef struct world_options {
  unsigned stages;   // 2 or 3
  unsigned steps;    // of the run, at most 3
  unsigned attempts; // the search stops following drivers beyond this attempt, at most 7
  unsigned epochs;   // and beyond this epoch
  unsigned deaths;   // stage processes that may be restarted, losing everything
  unsigned policies; // that are asked for, each of which any stage may refuse; at most 3
  bool ahead;        // attempts are offered to go on behind them, the first with numbers that turn out wrong
  world_rule_t broken_rule;
} world_options_t;

// The model of `options`, which must outlive it.
explore_model_t world_model(const world_options_t *options);

#endif
