// SPDX-License-Identifier: Apache-2.0
// Verifies a run from the first contact to the end: steps and validations told, a pause, text and traces from a
// finished run; and how a run ends early: a dead stage, one that was restarted, a loss that is not finite, a newer
// driver, a stop, an attempt that keeps failing.
#include "driver/driver_world.h"

#include "sys/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static driver_world_t world;

static void run_to_end(unsigned steps, const char *extra) {
  world_open(&world, steps, extra);
  world_start_driver(&world);
  world_wait_end(&world);
}

static void test_a_whole_run(void **state) {
  (void)state;
  run_to_end(5, "validate_every: 2");
  assert_int_equal(world.exit_code, 0);
  assert_string_equal(world.phase, "finished");
  world_assert_complete(&world);
  for (uint64_t step = 1; step <= 5; step++) {
    assert_int_equal(world.steps[step].times, 1);
  }
  assert_int_equal(world.validation_count, 3);
  const uint64_t at[] = {2, 4, 5};
  for (unsigned i = 0; i < 3; i++) {
    assert_int_equal(world.validations[i].step, at[i]);
    // The fake stages give every run of that step the same losses, whatever it looks at.
    assert_true(fabs(world.validations[i].loss - fake_loss(&world.training, at[i])) < 1e-12);
    assert_true(world.validations[i].tokens <= BL_DATASET_VALIDATION_WINDOWS * 8u);
  }
  for (unsigned i = 0; i < WORLD_STAGES; i++) { // and nobody searches but the driver
    assert_int_equal(world.stages[i].orders, 1);
    assert_int_equal(world.stages[i].other_orders, 0);
  }
  // The job is done: the stages are free for the next.
  assert_int_equal(world.stages[0].releases + world.stages[1].releases, 2);
  assert_int_equal(world.stages[0].stops, 0);
  world_close(&world);
}

static void test_owned_stages_end_with_the_run(void **state) {
  (void)state;
  world_open(&world, 1, "validate_every: 0");
  world.own_stages = true;
  world_start_driver(&world);
  world_wait_end(&world);
  assert_int_equal(world.stages[0].stops + world.stages[1].stops, 2);
  assert_int_equal(world.stages[0].releases, 0);
  world_close(&world);
}

static bool is_finished(driver_world_t *self) {
  return strcmp(self->phase, "finished") == 0;
}

static bool is_paused(driver_world_t *self) {
  return strcmp(self->phase, "paused") == 0;
}

static bool has_ended(driver_world_t *self) {
  return self->ended;
}

static uint64_t held_at;
static unsigned held_times;

static void held(uint64_t step, void *context) {
  (void)context;
  held_at = step;
  held_times++;
}

static void test_a_pause_holds_the_run_between_steps(void **state) {
  (void)state;
  world_open(&world, 4, "validate_every: 0");
  held_times = 0;
  world_start_driver(&world);
  bl_driver_pause(world.driver, true, held, NULL); // before anything is there
  world_wait(&world, is_paused);
  assert_int_equal(held_times, 1);
  assert_int_equal(held_at, 0);
  assert_int_equal(world.stages[0].runs, 0);
  bl_driver_pause(world.driver, false, held, NULL);
  assert_int_equal(held_times, 2);
  world_wait_end(&world);
  world_assert_complete(&world);
  world_close(&world);
}

typedef struct drawn_text {
  char text[64];
  unsigned count;
  bool done;
  bl_status_t status;
} drawn_text_t;

static drawn_text_t drawn_text;

static void drawn(uint32_t token, void *context) {
  drawn_text_t *text = context;
  text->text[text->count++] = (char)token;
}

static void drawing_done(const bl_error_t *err, void *context) {
  drawn_text_t *text = context;
  text->done = true;
  text->status = err->status;
}

static bool is_drawn(driver_world_t *self) {
  (void)self;
  return drawn_text.done;
}

static void test_text_from_a_finished_run(void **state) {
  (void)state;
  world_open(&world, 2, "validate_every: 0");
  world.linger = true;
  world_start_driver(&world);
  bl_error_t err;
  drawn_text = (drawn_text_t){0};
  bl_sampling_t generation = {.prompt = (const uint8_t *)"It was the best of times",
                              .prompt_bytes = 24,
                              .tokens = 20, // more than the model's context of 8
                              .drawn = drawn,
                              .done = drawing_done,
                              .context = &drawn_text};
  assert_int_equal(bl_driver_generate(world.driver, &generation, &err), BL_PRECONDITION); // it runs
  world_wait(&world, is_finished);
  assert_int_equal(bl_driver_generate(world.driver, &generation, &err), BL_OK);
  bl_sampling_t other = generation;
  assert_int_equal(bl_driver_generate(world.driver, &other, &err), BL_PRECONDITION); // one at a time
  world_wait(&world, is_drawn);
  assert_int_equal(drawn_text.status, BL_OK);
  assert_int_equal(drawn_text.count, 20);
  for (unsigned i = 1; i < 20; i++) { // the fake draws the letter of the attempt's number
    assert_int_equal((drawn_text.text[i] - drawn_text.text[i - 1] + 26) % 26, 1);
  }
  assert_false(world.ended);
  bl_driver_stop(world.driver);
  world_wait(&world, has_ended);
  assert_int_equal(world.exit_code, 0);
  world_close(&world);
}

static bl_sampling_t text_of(uint32_t tokens) {
  drawn_text = (drawn_text_t){0};
  return (bl_sampling_t){.prompt = (const uint8_t *)"It was",
                         .prompt_bytes = 6,
                         .tokens = tokens,
                         .drawn = drawn,
                         .done = drawing_done,
                         .context = &drawn_text};
}

// Each is drawn in the second attempt.
static bool fail_every_token(fake_stage_t *stage, const char *method, bool handled, void *context) {
  (void)context;
  static unsigned failed;
  if (!handled && strcmp(method, "Run") == 0 && failed <= drawn_text.count) {
    failed = drawn_text.count + 1;
    stage->fail_runs = 1;
  }
  return false;
}

static void test_a_failed_attempt_at_a_token_is_run_again(void **state) {
  (void)state;
  world_open(&world, 1, "validate_every: 0");
  world.linger = true;
  world_start_driver(&world);
  world_wait(&world, is_finished);
  bl_sampling_t generation = text_of(2 * BL_DRIVER_ATTEMPTS_MIN);
  bl_error_t err;
  world.stages[1].hook = fail_every_token;
  world.stages[1].fail_status = BL_DATA_LOSS;
  assert_int_equal(bl_driver_generate(world.driver, &generation, &err), BL_OK);
  world_wait(&world, is_drawn);
  assert_int_equal(drawn_text.status, BL_OK);
  assert_int_equal(drawn_text.count, 2 * BL_DRIVER_ATTEMPTS_MIN);
  world_close(&world);
}

static bool continue_at_third_token(fake_stage_t *stage, const char *method, bool handled, void *context) {
  (void)stage;
  (void)context;
  if (!handled && strcmp(method, "Run") == 0 && drawn_text.count == 2) {
    bl_driver_pause(world.driver, false, NULL, NULL);
  }
  return false;
}

static bool has_run(driver_world_t *self) {
  return self->stages[0].runs > 0;
}

static void test_a_run_that_continues_ends_the_text(void **state) {
  (void)state;
  world_open(&world, 4, "validate_every: 0");
  world_start_driver(&world);
  bl_driver_pause(world.driver, true, NULL, NULL);
  world_wait(&world, is_paused);
  world.stages[0].hook = continue_at_third_token;
  bl_sampling_t generation = text_of(20);
  bl_error_t err;
  assert_int_equal(bl_driver_generate(world.driver, &generation, &err), BL_OK);
  world.stages[0].run_ms = 10 * WORLD_LIMIT_MS; // the first step does not end
  world_wait(&world, has_run);
  assert_true(drawn_text.done);
  assert_int_equal(drawn_text.status, BL_PRECONDITION);
  assert_int_equal(drawn_text.count, 3);
  world_close(&world);
}

static char first_name[BL_TRACE_NAME_BYTES];
static size_t traced_stages;

static void traced(const bl_stage_trace_t *traces, size_t stages, const bl_error_t *err, void *context) {
  (void)context;
  assert_int_equal(err->status, BL_OK);
  traced_stages = stages;
  assert_int_equal(traces[1].count, 2);
  snprintf(first_name, sizeof first_name, "%s", traces[1].events[0].name);
}

static bool is_traced(driver_world_t *self) {
  (void)self;
  return traced_stages > 0;
}

static void test_traces_are_of_the_last_step_not_of_the_validation_after_it(void **state) {
  (void)state;
  world_open(&world, 2, "validate_every: 0");
  world.linger = true;
  traced_stages = 0;
  world_start_driver(&world);
  world_wait(&world, is_finished);
  assert_true(world.validation_count == 1 && world.stages[0].validations > 0);
  bl_driver_trace(world.driver, traced, NULL);
  world_wait(&world, is_traced);
  assert_int_equal(traced_stages, 2);
  assert_string_equal(first_name, "1F0"); // stage 1, kind BL_RUN_TRAIN
  world_close(&world);
}

static bool both_run(driver_world_t *self) {
  return self->stages[0].running_count > 0 && self->stages[1].running_count > 0;
}

static bool both_hold_traces(driver_world_t *self) {
  return self->stages[0].tracing != NULL && self->stages[1].tracing != NULL;
}

static bool step_2_told(driver_world_t *self) {
  return self->steps[2].times > 0;
}

static uint64_t traced_step;

static void note_traced_step(const bl_stage_trace_t *traces, size_t stages, const bl_error_t *err, void *context) {
  (void)context;
  assert_int_equal(err->status, BL_OK);
  traced_stages = stages;
  traced_step = traces[0].events[0].start_ns;
}

// Whoever asked for those of step 1 has gone, and step 2 ran before they came.
static void test_traces_that_come_late_are_not_those_of_the_next_step(void **state) {
  (void)state;
  world_open(&world, 2, "validate_every: 0");
  world.linger = true;
  for (int i = 0; i < WORLD_STAGES; i++) {
    world.stages[i].holds_traces = true;
    world.stages[i].run_ms = 10 * WORLD_LIMIT_MS;
  }
  traced_stages = 0;
  int context;
  world_start_driver(&world);
  world_wait(&world, both_run);
  bl_driver_trace(world.driver, traced, &context);
  for (int i = 0; i < WORLD_STAGES; i++) {
    world.stages[i].run_ms = 0;
    bl_timer_start(world.stages[i].timer, 1, 0);
  }
  world_wait(&world, both_hold_traces);
  bl_driver_trace_cancel(world.driver, &context);
  world_wait(&world, step_2_told);
  bl_driver_trace(world.driver, note_traced_step, NULL);
  for (int i = 0; i < WORLD_STAGES; i++) {
    world.stages[i].holds_traces = false;
    fake_stage_send_trace(&world.stages[i]);
  }
  world_wait(&world, is_traced);
  assert_int_equal(traced_step, 2);
  world_close(&world);
}

// ---- ends -----------------------------------------------------------------------------------------------------------

static void assert_told(const char *part) {
  if (strstr(world.error, part) == NULL) {
    fail_msg("'%s' is not in '%s'", part, world.error);
  }
}

static bool first_step_told(driver_world_t *self) {
  return self->steps[1].times > 0;
}

static void test_a_dead_stage_ends_the_run(void **state) {
  (void)state;
  world_open(&world, 8, "validate_every: 0");
  world.stages[0].run_ms = world.stages[1].run_ms = 30;
  world_start_driver(&world);
  world_wait(&world, first_step_told);
  uint64_t killed_ms = bl_loop_now_ms(world.loop);
  fake_stage_kill(&world.stages[1]);
  world_wait_end(&world);
  assert_int_equal(world.exit_code, 5);
  assert_string_equal(world.phase, "failed");
  assert_told("stage 1 (");
  assert_told(world.stages[1].address);
  assert_told("is gone");
  assert_in_range(bl_loop_now_ms(world.loop) - killed_ms, BL_DRIVER_TIMEOUT_MS - 500, WORLD_LIMIT_MS);
  // The one that lives is left without an attempt under way.
  assert_int_equal(world.stages[0].step.phase, BL_STAGE_IDLE);
  world_close(&world);
}

static void test_a_restarted_stage_ends_the_run(void **state) {
  (void)state;
  world_open(&world, 8, "validate_every: 0");
  world.stages[0].run_ms = world.stages[1].run_ms = 30;
  world_start_driver(&world);
  world_wait(&world, first_step_told);
  fake_stage_kill(&world.stages[1]);
  fake_stage_start(&world.stages[1], world.rpc, &world.training, 1, world.stages[1].address);
  world_wait_end(&world);
  assert_int_equal(world.exit_code, 5);
  assert_told("stage 1");
  assert_told("checkpoint");
  // A new driver sees the same.
  world_kill_driver(&world);
  world_start_driver(&world);
  world_wait_end(&world);
  assert_int_equal(world.exit_code, 5);
  assert_told("stage 1");
  assert_told("checkpoint");
  world_close(&world);
}

static const char *struck_method; // NULL: it was struck

static bool strike(fake_stage_t *stage, const char *method, bool handled, void *context) {
  (void)stage;
  (void)handled;
  (void)context;
  if (struck_method != NULL && strcmp(method, struck_method) == 0) {
    struck_method = NULL;
  }
  return struck_method == NULL; // nothing is answered any more
}

static bool is_struck(driver_world_t *self) {
  (void)self;
  return struck_method == NULL;
}

// Does not say who it is before it is asked something else.
static bool keep_quiet(fake_stage_t *stage, const char *method, bool handled, void *context) {
  (void)handled;
  (void)context;
  bool looks = strcmp(method, "Status") == 0;
  if (!looks) {
    stage->hook = NULL;
  }
  return looks;
}

// Before its first step, too: what the new process says, that it knows no driver or has no configuration, is no fault
// of the job.
static void test_a_stage_restarted_in_setup_ends_the_run(void **state) {
  (void)state;
  static const char *const methods[] = {"Configure", "PreparePlan"};
  for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
    world_open(&world, 8, "validate_every: 0");
    struck_method = methods[i];
    world.stages[1].hook = strike;
    world_start_driver(&world);
    world_wait(&world, is_struck);
    fake_stage_kill(&world.stages[1]);
    fake_stage_start(&world.stages[1], world.rpc, &world.training, 1, world.stages[1].address);
    world.stages[1].hook = keep_quiet;
    world_wait_end(&world);
    assert_int_equal(world.exit_code, 5);
    assert_told("stage 1");
    assert_told("was restarted");
    world_close(&world);
  }
}

static unsigned first_looks;

static bool count_looks(fake_stage_t *stage, const char *method, bool handled, void *context) {
  (void)stage;
  (void)context;
  first_looks += handled && strcmp(method, "Status") == 0;
  return false;
}

static bool was_looked_at(driver_world_t *self) {
  (void)self;
  return first_looks > 0;
}

static bool was_looked_at_or_ended(driver_world_t *self) {
  return was_looked_at(self) || self->ended;
}

// Nothing was asked of it yet but who it is.
static void test_a_stage_restarted_while_others_come_up(void **state) {
  (void)state;
  world_open(&world, 2, "validate_every: 0");
  fake_stage_kill(&world.stages[1]);
  first_looks = 0;
  world.stages[0].hook = count_looks;
  world_start_driver(&world);
  world_wait(&world, was_looked_at);
  first_looks = 0; // called twice: the driver has the first answer
  world_wait(&world, was_looked_at);
  for (uint32_t i = 0; i < WORLD_STAGES; i++) {
    fake_stage_kill(&world.stages[i]);
    fake_stage_start(&world.stages[i], world.rpc, &world.training, i, world.stages[i].address);
    first_looks = 0;
    world.stages[i].hook = count_looks;
    world_wait(&world, was_looked_at_or_ended);
  }
  world_wait_end(&world);
  assert_int_equal(world.exit_code, 0);
  world_assert_complete(&world);
  world_close(&world);
}

static bool others_have_answered(driver_world_t *self) {
  return struck_method == NULL && strncmp(bl_driver_look(self->driver).waiting_for, "1 stage: ", 9) == 0;
}

// Whoever asks what is waited for is told the call that is not answered.
static void test_the_call_that_is_waited_for_is_named(void **state) {
  (void)state;
  static const char *const methods[] = {"Configure", "Connect"};
  for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
    world_open(&world, 1, "validate_every: 0");
    struck_method = methods[i];
    world.stages[1].hook = strike;
    world_start_driver(&world);
    world_wait(&world, others_have_answered);
    assert_string_equal(bl_driver_look(world.driver).waiting_for + strlen("1 stage: "), methods[i]);
    world_close(&world);
  }
}

static const char *awaited;

static bool has_waited(driver_world_t *self) {
  assert_false(self->ended);
  const bl_driver_view_t view = bl_driver_look(self->driver);
  return strstr(view.waiting_for, awaited) != NULL && view.waiting_ns > 150u * BL_NS_PER_MS; // more than a tick
}

static void test_every_wait_has_an_age(void **state) {
  (void)state;
  world_open(&world, 3, "validate_every: 0");
  fake_stage_kill(&world.stages[1]);
  world_start_driver(&world);
  awaited = "stage 1";
  world_wait(&world, has_waited);
  fake_stage_start(&world.stages[1], world.rpc, &world.training, 1, world.stages[1].address);
  struck_method = awaited = "Configure";
  world.stages[1].hook = strike;
  world_wait(&world, has_waited);
  world_close(&world);
  world_open(&world, 3, "validate_every: 0");
  world.hold_step = 2;
  world_start_driver(&world);
  awaited = "a watcher that has not acknowledged the last step";
  world_wait(&world, has_waited);
  world.hold_step = 0;
  bl_driver_poke(world.driver);
  world_wait_end(&world);
  assert_int_equal(world.exit_code, 0);
  world_close(&world);
}

static void test_a_stage_that_is_slow_is_not_dead(void **state) {
  (void)state;
  world_open(&world, 1, "validate_every: 0");
  world.stages[1].run_ms = BL_DRIVER_TIMEOUT_MS + 500;
  world_start_driver(&world);
  world_wait_end(&world);
  assert_int_equal(world.exit_code, 0);
  world_assert_complete(&world);
  world_close(&world);
}

static void test_a_loss_that_is_not_finite_ends_the_run(void **state) {
  (void)state;
  world_open(&world, 5, "validate_every: 0");
  world.stages[1].nonfinite_step = 3;
  world.stages[1].nonfinite_micro_batch = 2;
  world_start_driver(&world);
  world_wait_end(&world);
  assert_int_equal(world.exit_code, 4);
  assert_told("step 3");
  assert_told("micro-batch 2");
  assert_told("stage 1");
  for (unsigned s = 0; s < WORLD_STAGES; s++) {
    assert_int_equal(world.stages[s].applied_count, 2);
    assert_int_equal(world.stages[s].step.phase, BL_STAGE_IDLE); // and the gradients of step 3 are dropped
  }
  world_close(&world);
}

static void test_a_failed_attempt_is_run_again(void **state) {
  (void)state;
  world_open(&world, 3, "validate_every: 0");
  world.stages[1].fail_runs = 1;
  world.stages[1].fail_status = BL_DATA_LOSS;
  world.stages[0].run_ms = 10; // still running when the other fails: it is interrupted
  world_start_driver(&world);
  world_wait_end(&world);
  assert_int_equal(world.exit_code, 0);
  world_assert_complete(&world);
  assert_int_equal(world.stages[0].applied[0].attempt, 2);
  world_close(&world);
}

static void test_attempts_that_keep_failing_end_the_run(void **state) {
  (void)state;
  world_open(&world, 3, "validate_every: 0");
  world.stages[1].fail_runs = 100;
  world.stages[1].fail_status = BL_DATA_LOSS;
  world_start_driver(&world);
  world_wait_end(&world);
  assert_int_equal(world.exit_code, 1);
  assert_told("stage 1");
  assert_told("a fault made by the test");
  assert_int_equal(world.stages[1].runs, BL_DRIVER_ATTEMPTS_MIN);
  world_close(&world);
}

// One attempt for a connection to each of the other ranks, and one that succeeds.
static void test_ranks_may_lose_every_connection_once(void **state) {
  (void)state;
  for (size_t ranks = 1; ranks <= 8; ranks++) {
    assert_true(bl_driver_attempts(ranks) >= ranks && bl_driver_attempts(ranks) >= BL_DRIVER_ATTEMPTS_MIN);
  }
  assert_int_equal(bl_driver_attempts(1000), BL_DRIVER_ATTEMPTS_MAX);
}

static bool hide(fake_stage_t *stage, const char *method, bool handled, void *context) {
  (void)handled;
  (void)context;
  stage->fail_statuses = strcmp(method, "Run") == 0;
  return false;
}

// Each call that fails is asked again after the stage was looked for in vain, and the stage does not know it any more.
static void test_the_cause_is_that_of_the_call(void **state) {
  (void)state;
  world_open(&world, 3, "validate_every: 0");
  world.stages[1].fail_runs = 100;
  world.stages[1].fail_status = BL_UNAVAILABLE;
  world.stages[1].hook = hide;
  world_start_driver(&world);
  world_wait_end(&world);
  assert_int_equal(world.exit_code, 5);
  assert_told("failed on stage 1");
  assert_told("a fault made by the test");
  world_close(&world);
}

static void test_bad_data_is_not_tried_again(void **state) {
  (void)state;
  world_open(&world, 3, "validate_every: 0");
  world.stages[1].fail_runs = 100;
  world.stages[1].fail_status = BL_INVALID;
  world_start_driver(&world);
  world_wait_end(&world);
  assert_int_equal(world.exit_code, 2);
  assert_int_equal(world.stages[1].runs, 1);
  world_close(&world);
}

static void test_a_newer_driver_ends_this_one(void **state) {
  (void)state;
  world_open(&world, 8, "validate_every: 0");
  world.stages[0].run_ms = world.stages[1].run_ms = 20;
  world_start_driver(&world);
  world_wait(&world, first_step_told);
  for (unsigned s = 0; s < WORLD_STAGES; s++) {
    assert_true(bl_stage_step_takeover(&world.stages[s].step, (bl_driver_id_t){.epoch = 9, .id = 9}));
  }
  world_wait_end(&world);
  assert_int_equal(world.exit_code, 4);
  assert_told("newer driver");
  world_close(&world);
}

static void test_a_stop_leaves_a_run_that_can_go_on(void **state) {
  (void)state;
  world_open(&world, 4, "validate_every: 0");
  world.stages[0].run_ms = world.stages[1].run_ms = 20;
  world_start_driver(&world);
  world_wait(&world, first_step_told);
  bl_driver_stop(world.driver);
  world_wait_end(&world);
  assert_int_equal(world.exit_code, 130);
  assert_int_equal(world.stages[0].releases, 0);
  assert_int_equal(world.stages[0].applied_count, world.stages[1].applied_count); // a boundary
  assert_in_range(world.stages[0].applied_count, 1, 3);
  world_kill_driver(&world);
  world_start_driver(&world);
  world_wait_end(&world);
  assert_int_equal(world.exit_code, 0);
  world_assert_complete(&world);
  world_close(&world);
}

static void test_a_first_plan_that_is_refused_ends_the_run(void **state) {
  (void)state;
  world_open(&world, 2, "validate_every: 0");
  world.stages[1].refuse_plans = 1;
  world_start_driver(&world);
  world_wait_end(&world);
  assert_int_equal(world.exit_code, bl_status_exit_code(BL_EXHAUSTED));
  assert_non_null(strstr(world.error, "stage 1 ("));
  assert_non_null(strstr(world.error, "refuses: no room, says the test"));
  world_close(&world);
}

static void test_a_first_plan_waits_for_stores(void **state) {
  (void)state;
  world_open(&world, 2, "validate_every: 0");
  world.stages[1].refuse_plans = 2;
  world.stages[1].refuse_status = BL_UNAVAILABLE;
  world_start_driver(&world);
  world_wait_end(&world);
  assert_int_equal(world.exit_code, 0);
  world_assert_complete(&world);
  assert_int_equal(world.stages[1].refuse_plans, 0);
  world_close(&world);
}

// ---- policies of a run that is held ---------------------------------------------------------------------------------

typedef struct said {
  unsigned times;
  bl_status_t status;
  char text[BL_ERROR_TEXT_BYTES];
  bl_policy_record_t record;
  bool unchanged;
} said_t;

static void policy_said(const bl_policy_answer_t *answer, const bl_error_t *err, void *context) {
  said_t *said = context;
  said->times++;
  said->status = err->status;
  snprintf(said->text, sizeof said->text, "%s", err->status == BL_OK ? "" : err->text);
  if (answer != NULL) {
    said->record = *answer->record;
    said->unchanged = answer->unchanged;
  }
}

static said_t last_said;

static bool is_said(driver_world_t *self) {
  (void)self;
  return last_said.times > 0;
}

static const said_t *set_policy(bl_policy_request_t request) {
  last_said = (said_t){0};
  bl_driver_set_policy(world.driver, &request, policy_said, &last_said);
  world_wait(&world, is_said);
  return &last_said;
}

static bl_policy_request_t cap_of(uint32_t cap, uint64_t request) {
  return (bl_policy_request_t){.request = request, .policy = {.kind = BL_POLICY_CAP, .cap = cap}};
}

static void test_policies(void **state) {
  (void)state;
  world_open(&world, 6, "validate_every: 0");
  world_start_driver(&world);
  bl_driver_pause(world.driver, true, NULL, NULL);
  world_wait(&world, is_paused);
  uint64_t next = bl_driver_look(world.driver).step + 1;

  const said_t *said = set_policy(cap_of(2, 11));
  assert_int_equal(said->status, BL_OK);
  assert_int_equal(said->record.version, 2);
  assert_int_equal(said->record.from_step, next); // no step runs, and it is in force all the same
  said = set_policy(cap_of(2, 12));
  assert_true(said->unchanged);
  assert_int_equal(said->record.version, 2);

  world.stages[0].refuse_plans = 1;
  said = set_policy(cap_of(3, 13));
  assert_int_equal(said->status, BL_EXHAUSTED);
  assert_non_null(strstr(said->text, "policy cap 2 (version 2) stays in force, cap 3 was refused: stage 0 ("));
  said = set_policy(cap_of(3, 13)); // asked again, and not refused now: the number was not used up
  assert_int_equal(said->record.version, 3);
  said = set_policy(cap_of(4, 11)); // a wish that was carried out before is not carried out again
  assert_int_equal(said->record.version, 2);
  assert_int_equal(bl_driver_policies(world.driver).history->count, 3);

  bl_policy_request_t dry = cap_of(4, 0);
  dry.dry_run = true;
  said = set_policy(dry);
  assert_int_equal(said->status, BL_OK);
  assert_int_equal(said->record.from_step, 0);
  said = set_policy((bl_policy_request_t){.rollback = true});
  assert_int_equal(said->record.policy.cap, 2);
  assert_int_equal(said->record.version, 4);
  assert_int_equal(said->record.restores, 2);
  said = set_policy((bl_policy_request_t){.rollback = true, .to_version = 9});
  assert_int_equal(said->status, BL_NOT_FOUND);
  bl_policy_request_t nowhere = cap_of(2, 0);
  nowhere.policy.devices = 1u << 5;
  said = set_policy(nowhere);
  assert_int_equal(said->status, BL_NOT_FOUND);
  said = set_policy(cap_of(1, 0));
  assert_int_equal(said->status, BL_EXHAUSTED);
  assert_non_null(strstr(said->text, "the smallest that works is 2"));

  bl_driver_pause(world.driver, false, NULL, NULL);
  world_wait_end(&world);
  world_assert_complete(&world);
  assert_int_equal(world.steps[next].policy, 4);
  assert_true(next == 1 || world.steps[next - 1].policy == 1);
  world_close(&world);
}

// As whoever asks after the end: the caller was not interrupted.
static void test_a_change_that_the_end_of_a_run_overtakes_is_refused(void **state) {
  (void)state;
  world_open(&world, 6, "validate_every: 0");
  world_start_driver(&world);
  bl_driver_pause(world.driver, true, NULL, NULL);
  world_wait(&world, is_paused);
  last_said = (said_t){0};
  const bl_policy_request_t request = cap_of(2, 11);
  bl_driver_set_policy(world.driver, &request, policy_said, &last_said);
  assert_int_equal(last_said.times, 0);
  bl_driver_stop(world.driver);
  world_wait_end(&world);
  assert_int_equal(last_said.times, 1);
  assert_int_equal(last_said.status, BL_PRECONDITION);
  assert_string_equal(last_said.text, "the run has ended");
  world_close(&world);
}

// Asked for before the policies in force are known, it waits; and only looks all the same.
static void test_a_dry_run_before_the_first_plan_changes_nothing(void **state) {
  (void)state;
  world_open(&world, 3, "validate_every: 0");
  world_start_driver(&world);
  bl_policy_request_t request = cap_of(2, 11);
  request.dry_run = true;
  last_said = (said_t){0};
  bl_driver_set_policy(world.driver, &request, policy_said, &last_said);
  assert_int_equal(last_said.times, 0);
  world_wait_end(&world);
  assert_int_equal(last_said.times, 1);
  assert_int_equal(last_said.status, BL_OK);
  assert_int_equal(last_said.record.policy.cap, 2);
  assert_int_equal(last_said.record.version, 0);
  for (unsigned step = 1; step <= 3; step++) {
    assert_int_equal(world.steps[step].policy, 1);
  }
  world_close(&world);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_whole_run),
      cmocka_unit_test(test_owned_stages_end_with_the_run),
      cmocka_unit_test(test_a_pause_holds_the_run_between_steps),
      cmocka_unit_test(test_text_from_a_finished_run),
      cmocka_unit_test(test_a_failed_attempt_at_a_token_is_run_again),
      cmocka_unit_test(test_a_run_that_continues_ends_the_text),
      cmocka_unit_test(test_traces_are_of_the_last_step_not_of_the_validation_after_it),
      cmocka_unit_test(test_traces_that_come_late_are_not_those_of_the_next_step),
      cmocka_unit_test(test_a_dead_stage_ends_the_run),
      cmocka_unit_test(test_a_restarted_stage_ends_the_run),
      cmocka_unit_test(test_a_stage_restarted_in_setup_ends_the_run),
      cmocka_unit_test(test_a_stage_restarted_while_others_come_up),
      cmocka_unit_test(test_the_call_that_is_waited_for_is_named),
      cmocka_unit_test(test_every_wait_has_an_age),
      cmocka_unit_test(test_a_stage_that_is_slow_is_not_dead),
      cmocka_unit_test(test_a_loss_that_is_not_finite_ends_the_run),
      cmocka_unit_test(test_a_failed_attempt_is_run_again),
      cmocka_unit_test(test_attempts_that_keep_failing_end_the_run),
      cmocka_unit_test(test_ranks_may_lose_every_connection_once),
      cmocka_unit_test(test_the_cause_is_that_of_the_call),
      cmocka_unit_test(test_bad_data_is_not_tried_again),
      cmocka_unit_test(test_a_newer_driver_ends_this_one),
      cmocka_unit_test(test_a_stop_leaves_a_run_that_can_go_on),
      cmocka_unit_test(test_a_first_plan_that_is_refused_ends_the_run),
      cmocka_unit_test(test_a_first_plan_waits_for_stores),
      cmocka_unit_test(test_policies),
      cmocka_unit_test(test_a_change_that_the_end_of_a_run_overtakes_is_refused),
      cmocka_unit_test(test_a_dry_run_before_the_first_plan_changes_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
