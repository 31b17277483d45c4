// SPDX-License-Identifier: Apache-2.0
// Verifies that a driver may die at any edge of the protocol: at each request that a stage gets in a run, once before
// and once after the stage has handled it, the driver is killed and another one started. Whatever was going on, every
// step is applied once on every stage with the same record and under the same policy, and told with the same loss,
// gradient norm and policy version. Meanwhile somebody asks for another policy after every step, again where a driver
// died before it answered: what was said to be in force is, from the step that was named on; what was refused is not;
// nothing asked for once is carried out twice. A successor that finds a step which must end the run says so, also after
// trouble with a call in between.
#include "driver/driver_world.h"
#include "instrumented.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#define STEPS  4
#define WISHES STEPS // one after every step

typedef enum { NOT_ASKED, ASKED, IN_FORCE, REFUSED } wish_state_t;

// A policy that is asked for after step `index` + 1.
typedef struct wish {
  struct plan *plan;
  wish_state_t state;
  uint64_t version, from_step; // as told
} wish_t;

typedef struct plan {
  driver_world_t *world;
  unsigned strike; // the event at which the driver dies, 0: never
  unsigned second; // and the one at which its successor does
  unsigned events; // so far
  bool dead;
  bl_message_t message;
  wish_t wishes[WISHES];
  bl_message_t ask;
  bool asking;
} plan_t;

// ---- policies -------------------------------------------------------------------------------------------------------

static void answered(const bl_policy_answer_t *answer, const bl_error_t *err, void *context) {
  wish_t *wish = context;
  wish->state = err->status == BL_OK ? IN_FORCE : REFUSED;
  if (answer != NULL) {
    wish->version = answer->record->version;
    wish->from_step = answer->record->from_step;
  }
}

static void ask(plan_t *plan, unsigned index) {
  wish_t *wish = &plan->wishes[index];
  bl_policy_request_t request = {.request = index + 1, .rollback = index == 2};
  request.policy = (bl_policy_t){.kind = BL_POLICY_CAP, .cap = 2 + index};
  wish->plan = plan;
  wish->state = ASKED;
  bl_driver_set_policy(plan->world->driver, &request, answered, wish);
}

// Stage 0 has applied a step.
static void ask_next(bl_message_t *message) {
  plan_t *plan = BL_MESSAGE_OWNER(message, plan_t, ask);
  plan->asking = false;
  unsigned applied = plan->world->stages[0].applied_count;
  if (!plan->dead && plan->world->driver != NULL && applied > 0 && plan->wishes[applied - 1].state == NOT_ASKED) {
    plan->world->stages[1].refuse_plans = applied == 2;
    ask(plan, applied - 1);
  }
}

static void assert_policies(const plan_t *plan) {
  const driver_world_t *world = plan->world;
  const bl_policy_history_t *history = bl_driver_policies(world->driver).history;
  for (unsigned i = 0; i < WISHES; i++) {
    const wish_t *wish = &plan->wishes[i];
    unsigned carried_out = 0;
    for (size_t k = 0; k < history->count; k++) {
      carried_out += history->records[k].request == i + 1;
    }
    assert_true(carried_out == 0 || (carried_out == 1 && wish->state != REFUSED));
    for (unsigned step = 1; step <= STEPS && wish->state == IN_FORCE; step++) {
      uint64_t policy = world->stages[0].applied_policy[step - 1];
      assert_true(step < wish->from_step ? policy < wish->version : policy >= wish->version);
    }
    if (wish->state == IN_FORCE) {
      assert_int_equal(carried_out, 1);
    }
  }
}

// ---- deaths ---------------------------------------------------------------------------------------------------------

static void die(bl_message_t *message) {
  plan_t *plan = BL_MESSAGE_OWNER(message, plan_t, message);
  world_kill_driver(plan->world);
  plan->dead = false;
  world_start_driver(plan->world);
  for (unsigned i = 0; i < WISHES; i++) {
    if (plan->wishes[i].state == ASKED) {
      ask(plan, i); // nobody has answered
    }
  }
}

static bool strike(fake_stage_t *stage, const char *method, bool handled, void *context) {
  plan_t *plan = context;
  if (strcmp(method, "Status") == 0 && plan->world->driver != NULL && plan->events > 2 * 2 * WORLD_STAGES) {
    return plan->dead; // presence is looked at by the clock: not an edge that comes at the same place every time
  }
  if (stage->index == 0 && handled && strcmp(method, "Commit") == 0 && !plan->asking) {
    plan->asking = true;
    bl_loop_post(plan->world->loop, &plan->ask);
  }
  plan->events++;
  if (!plan->dead && (plan->events == plan->strike || plan->events == plan->second)) {
    plan->dead = true; // from now on nothing reaches it; the process ends when the handler has returned
    bl_loop_post(plan->world->loop, &plan->message);
  }
  return plan->dead;
}

// Returns the number of events of the run.
static unsigned run_with_deaths(unsigned first, unsigned second) {
  static driver_world_t world;
  world_open(&world, STEPS, "validate_every: 2");
  plan_t plan = {.world = &world, .strike = first, .second = second, .message.handle = die, .ask.handle = ask_next};
  for (uint32_t i = 0; i < WORLD_STAGES; i++) {
    world.stages[i].hook = strike;
    world.stages[i].hook_context = &plan;
  }
  world_start_driver(&world);
  world_wait_end(&world);
  assert_int_equal(world.exit_code, 0);
  world_assert_complete(&world);
  assert_policies(&plan);
  if (first == 0) { // nobody died
    const wish_t *wishes = plan.wishes;
    assert_int_equal(wishes[0].state, IN_FORCE);
    assert_int_equal(wishes[0].from_step, 2);
    assert_int_equal(wishes[0].version, 2);
    assert_int_equal(wishes[1].state, REFUSED);
    assert_int_equal(wishes[2].state, IN_FORCE); // the policy of version 1 again; 2 was not used up by the refusal
    assert_int_equal(wishes[2].version, 3);
    assert_int_equal(wishes[3].state, REFUSED); // no step is left
  }
  world_close(&world);
  return plan.events;
}

static void test_death_at_every_edge(void **state) {
  (void)state;
  unsigned events = run_with_deaths(0, 0), seen = 0;
  for (unsigned strike_at = 1; strike_at <= events; strike_at += FEW_OR_ALL(7, 1), seen++) {
    (void)run_with_deaths(strike_at, 0);
  }
  printf("%u of %u edges\n", seen, events);
}

static void test_the_successor_dies_too(void **state) {
  (void)state;
  unsigned events = run_with_deaths(0, 0);
  for (unsigned strike_at = 3; strike_at <= events; strike_at += FEW_OR_ALL(13, 3)) {
    (void)run_with_deaths(strike_at, strike_at + 17 + strike_at % 7);
  }
}

// A driver whose successor knows only what the stages say: nothing it told is remembered.
static void forget_told(driver_world_t *world, uint64_t step) {
  world->steps[step] = (told_step_t){0};
}

static bool second_is_voted(driver_world_t *world) {
  return world->stages[0].step.applied == 1 && bl_stage_step_is_prepared(&world->stages[0].step) &&
         bl_stage_step_is_prepared(&world->stages[1].step);
}

// Step 1 is applied, step 2 prepared on all stages and undecided, and nobody was told of step 1. The successor decides
// step 2 at once, after which no stage remembers step 1: it must tell of step 1 before.
static void test_a_step_nobody_was_told_of_is_told_before_the_next_is_decided(void **state) {
  (void)state;
  static driver_world_t world;
  world_open(&world, STEPS, "validate_every: 0");
  world.hold_step = 2;
  world_start_driver(&world);
  world_wait(&world, second_is_voted);
  world_kill_driver(&world);
  forget_told(&world, 1);
  world.hold_step = 0;
  world_start_driver(&world);
  world_wait_end(&world);
  world_assert_complete(&world);
  world_close(&world);
}

// The successor finds a step whose numbers are not finite. It sets up the stages before it ends the run.
static void test_a_call_that_is_lost_later_is_not_the_cause(void **state) {
  (void)state;
  static driver_world_t world;
  world_open(&world, STEPS, "validate_every: 0");
  world.hold_step = 2;
  world_start_driver(&world);
  world_wait(&world, second_is_voted);
  world_kill_driver(&world);
  world.hold_step = 0;
  world.stages[0].nonfinite_step = 2;
  world.stages[0].fail_configures = 1;
  world_start_driver(&world);
  world_wait_end(&world);
  assert_int_equal(world.stages[0].fail_configures, 0);
  if (strstr(world.error, "finite") == NULL) {
    fail_msg("'%s'", world.error);
  }
  assert_int_equal(world.exit_code, bl_status_exit_code(BL_PRECONDITION));
  world_close(&world);
}

// ---- what a successor tells of a step that it did not see -----------------------------------------------------------

#define DROPS "validate_every: 0}\nbalance: {policy: drop, cap: 1, max_recomputes_per_hour: 0"

// Every step of the plan in force, which drops blocks, is to tell as many recomputed ones.
static void follow_plan(driver_world_t *world) {
  const bl_device_slots_t *slots = bl_driver_policies(world->driver).device_slots;
  for (uint32_t i = 0; i < WORLD_STAGES; i++) {
    world->stages[i].recomputed = slots->dropped[i];
  }
  assert_true(world->stages[0].recomputed > 0);
}

static void start_again(driver_world_t *world) {
  world_kill_driver(world);
  world->hold_step = 0;
  world_start_driver(world);
  world_wait_end(world);
  assert_string_equal(world->error, "");
  assert_int_equal(world->exit_code, 0);
}

// The successor makes the plan only after it has told of step 1 and decided step 2.
static void test_planned_recomputation_is_no_loss(void **state) {
  (void)state;
  static driver_world_t world;
  world_open(&world, STEPS, DROPS);
  world.hold_step = 2;
  world_start_driver(&world);
  world_wait(&world, second_is_voted);
  follow_plan(&world);
  start_again(&world);
  world_assert_complete(&world);
  assert_int_equal(world.steps[1].unplanned_recomputes, 0);
  world_close(&world);
}

// One block more than the plan drops on each stage is told as unplanned.
static void test_other_recomputation_is(void **state) {
  (void)state;
  static driver_world_t world;
  world_open(&world, STEPS, "validate_every: 0}\nbalance: {policy: drop, cap: 1");
  world.hold_step = 2;
  world_start_driver(&world);
  world_wait(&world, second_is_voted);
  follow_plan(&world);
  for (uint32_t i = 0; i < WORLD_STAGES; i++) {
    world.stages[i].recomputed++;
  }
  start_again(&world);
  for (unsigned step = 1; step <= STEPS; step++) {
    assert_int_equal(world.steps[step].unplanned_recomputes, WORLD_STAGES);
  }
  world_close(&world);
}

static void note_change(const bl_policy_answer_t *answer, const bl_error_t *err, void *context) {
  (void)answer;
  *(bl_status_t *)context = err->status;
}

static bl_status_t change_status;
static bool has_changed(driver_world_t *world) {
  (void)world;
  return change_status != BL_CANCELLED;
}

static bool is_paused(driver_world_t *world) {
  return strcmp(world->phase, "paused") == 0;
}

// The step before a change followed another plan than that in force.
static void test_nor_is_that_of_the_policy_before(void **state) {
  (void)state;
  static driver_world_t world;
  world_open(&world, STEPS, DROPS);
  world.hold_step = 2;
  world_start_driver(&world);
  world_wait(&world, second_is_voted);
  follow_plan(&world);
  world.hold_step = 0;
  bl_driver_pause(world.driver, true, NULL, NULL);
  world_wait(&world, is_paused);
  const bl_policy_request_t none = {.request = 1, .policy = {.kind = BL_POLICY_NONE}};
  change_status = BL_CANCELLED;
  bl_driver_set_policy(world.driver, &none, note_change, &change_status);
  world_wait(&world, has_changed);
  assert_int_equal(change_status, BL_OK);
  const uint64_t applied = bl_driver_look(world.driver).step;
  assert_true(applied < STEPS);
  start_again(&world);
  assert_int_equal(world.steps[applied].times, 2);
  world_close(&world);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_death_at_every_edge),
      cmocka_unit_test(test_the_successor_dies_too),
      cmocka_unit_test(test_a_step_nobody_was_told_of_is_told_before_the_next_is_decided),
      cmocka_unit_test(test_a_call_that_is_lost_later_is_not_the_cause),
      cmocka_unit_test(test_planned_recomputation_is_no_loss),
      cmocka_unit_test(test_other_recomputation_is),
      cmocka_unit_test(test_nor_is_that_of_the_policy_before),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
