// SPDX-License-Identifier: Apache-2.0
// Verifies what a driver does with a checkpoint that cannot be finished: it waits for the stages that still write, removes
// everything, tells the first cause, and goes on or ends; one that ends in the middle of it leaves nothing behind.
#include "driver/driver_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WRITE_MS 300

static driver_world_t world;
static char folder[64];

static int make_folder(void **state) {
  (void)state;
  snprintf(folder, sizeof folder, "/tmp/ballast-save-XXXXXX");
  return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command);
}

static void open_world(unsigned steps, unsigned every) {
  char extra[256];
  snprintf(extra, sizeof extra, "validate_every: 0}\ncheckpoint: {folder: %s, every: %u", folder, every);
  world_open(&world, steps, extra);
  for (int i = 0; i < WORLD_STAGES; i++) {
    world.stages[i].write_ms = WRITE_MS;
  }
}

// What is in the folder, with blanks between the names; in a buffer of its own.
static const char *listing(void) {
  static char text[1024];
  DIR *stream = opendir(folder);
  assert_non_null(stream);
  text[0] = '\0';
  for (const struct dirent *item; (item = readdir(stream)) != NULL;) {
    if (item->d_name[0] != '.') {
      snprintf(text + strlen(text), sizeof text - strlen(text), "%s ", item->d_name);
    }
  }
  closedir(stream);
  return text;
}

static void test_the_last_checkpoint_fails(void **state) {
  (void)state;
  open_world(2, 0);
  world.stages[0].write_fails = true;
  world_start_driver(&world);
  world_wait_end(&world);
  assert_int_equal(world.exit_code, bl_status_exit_code(BL_EXHAUSTED));
  assert_non_null(strstr(world.error, "could not be saved"));
  assert_non_null(strstr(world.error, "no room, says the test"));
  assert_int_equal(world.stages[1].writes, 1);
  assert_int_equal(world.stages[1].whole_writes, 1); // the folder was there until it had written
  assert_string_equal(listing(), "");
  world_close(&world);
}

static void test_a_failed_checkpoint_changes_nothing(void **state) {
  (void)state;
  open_world(3, 1);
  world.stages[1].write_fails = true;
  world_start_driver(&world);
  world_wait_end(&world);
  world_assert_complete(&world);
  assert_int_equal(world.stages[0].writes, 3);
  assert_int_equal(world.stages[0].whole_writes, 3);
  assert_string_equal(listing(), "");
  world_close(&world);
}

// A checkpoint without one of its files could not be read again, and the ones before it would be deleted.
static void test_files_that_were_not_asked_for(void **state) {
  (void)state;
  open_world(2, 1);
  world.stages[1].wrong_name = world.stages[1].names[0];
  world_start_driver(&world);
  world_wait_end(&world);
  assert_string_equal(listing(), "");
  assert_non_null(strstr(world.error, "other files than those asked for"));
  world_close(&world);
}

// A stage whose numbers are not finite: later checkpoints could not be written either, and none is deleted for it.
static void test_what_is_not_finite_ends_the_run(void **state) {
  (void)state;
  open_world(16, 1);
  world.stages[1].write_fails = true;
  world.stages[1].write_status = BL_DATA_LOSS;
  world_start_driver(&world);
  world_wait_end(&world);
  assert_int_equal(world.exit_code, bl_status_exit_code(BL_PRECONDITION));
  const char *parts[] = {"step 1 is not saved: stage 1", "lower train.lr or train.clip"};
  for (size_t i = 0; i < 2; i++) {
    if (strstr(world.error, parts[i]) == NULL) {
      fail_msg("'%s' does not say '%s'", world.error, parts[i]);
    }
  }
  assert_int_equal(world.stages[0].writes, 1);
  assert_string_equal(listing(), "");
  world_close(&world);
}

// Runs until the loss of `step` is not finite, with a checkpoint every so many steps; `left` is what the folder has then.
static void run_to_bad_loss(unsigned every, uint64_t step, uint64_t write_ms, fake_hook_fn hook, const char *left) {
  open_world(16, every);
  for (int i = 0; i < WORLD_STAGES; i++) {
    world.stages[i].write_ms = write_ms;
    world.stages[i].run_ms = 50;
    world.stages[i].nonfinite_step = step;
    world.stages[i].nonfinite_micro_batch = 0;
    world.stages[i].hook = hook;
  }
  world_start_driver(&world);
  world_wait_end(&world);
  assert_int_equal(world.exit_code, bl_status_exit_code(BL_PRECONDITION));
  for (int i = 0; i < WORLD_STAGES; i++) {
    assert_int_equal(world.stages[i].whole_writes, (step - 1) / every);
  }
  bl_driver_destroy(world.driver);
  world.driver = NULL;
  assert_string_equal(listing(), left);
  world_close(&world);
}

// The weights of step 2 make the loss of step 3: their checkpoint, whole long before that, must not replace that of
// step 1.
static void test_weights_that_end_the_run_are_not_saved(void **state) {
  (void)state;
  run_to_bad_loss(1, 3, 1, NULL, "step-000001 ");
}

static bool finish_writes_at_abort(fake_stage_t *stage, const char *method, bool handled, void *context) {
  (void)context;
  if (!handled && strcmp(method, "Commit") == 0 && stage->step.applied == 1) {
    stage->write_ms = 10 * WORLD_LIMIT_MS;
  }
  for (int i = 0; i < WORLD_STAGES && !handled && strcmp(method, "Abort") == 0; i++) {
    if (world.stages[i].writing != NULL) {
      fake_stage_finish_write(&world.stages[i]);
    }
  }
  return false;
}

// The same where it is whole only after the loss is known, and before the attempt at step 3 is given up.
static void test_weights_that_end_the_run_while_they_are_written(void **state) {
  (void)state;
  run_to_bad_loss(1, 3, 1, finish_writes_at_abort, "step-000001 ");
}

static bool finish_write_in_step_4(fake_stage_t *stage, const char *method, bool handled, void *context) {
  (void)context;
  if (!handled && strcmp(method, "Run") == 0 && stage->step.applied == 3 && stage->writing != NULL) {
    fake_stage_finish_write(stage);
  }
  return false;
}

// With the weights of step 2 the loss of step 3 was finite, before their files were complete.
static void test_earlier_weights_are_kept(void **state) {
  (void)state;
  run_to_bad_loss(2, 4, 10 * WORLD_LIMIT_MS, finish_write_in_step_4, "step-000002 ");
}

// Step 3 does not end. Counts what stage 0 is asked while it runs, after all have written the checkpoint of step 2.
static bool hold_step_3(fake_stage_t *stage, const char *method, bool handled, void *context) {
  unsigned *asked = context;
  stage->run_ms = stage->step.applied == 2 ? 10 * WORLD_LIMIT_MS : 0;
  *asked += stage == &world.stages[0] && !handled && strcmp(method, "Status") == 0 && stage->running_count > 0 &&
            world.stages[0].whole_writes == 2 && world.stages[1].whole_writes == 2;
  return false;
}

static unsigned asked;

static bool was_asked_twice(driver_world_t *self) {
  (void)self;
  return asked >= 2; // so the driver knows of all that is written
}

// A stage dies in step 3, which says nothing against the weights of step 2.
static void test_a_death_keeps_what_is_written(void **state) {
  (void)state;
  open_world(16, 1);
  for (int i = 0; i < WORLD_STAGES; i++) {
    world.stages[i].write_ms = 1;
    world.stages[i].hook = hold_step_3;
    world.stages[i].hook_context = &asked;
  }
  world_start_driver(&world);
  world_wait(&world, was_asked_twice);
  fake_stage_kill(&world.stages[1]);
  world_wait_end(&world);
  assert_int_equal(world.exit_code, bl_status_exit_code(BL_UNAVAILABLE));
  bl_driver_destroy(world.driver);
  world.driver = NULL;
  if (strstr(listing(), "step-000002 ") == NULL || strstr(listing(), "partial") != NULL) {
    fail_msg("'%s'", listing());
  }
  world_close(&world);
}

// Held-out data are evaluated first, so that no checkpoint replaces another one then.
static void test_a_held_out_loss_that_is_not_finite_ends_the_run(void **state) {
  (void)state;
  open_world(2, 0);
  for (int i = 0; i < WORLD_STAGES; i++) {
    world.stages[i].nonfinite_validation = true;
  }
  world_start_driver(&world);
  world_wait_end(&world);
  assert_int_equal(world.exit_code, bl_status_exit_code(BL_PRECONDITION));
  if (strstr(world.error, "the held-out loss after step 2 is not finite; lower train.lr") == NULL) {
    fail_msg("'%s'", world.error);
  }
  assert_int_equal(world.validation_count, 0);
  assert_int_equal(world.stages[0].writes, 0);
  assert_string_equal(listing(), "");
  world_close(&world);
}

static bool stop_in_last_step(fake_stage_t *stage, const char *method, bool handled, void *context) {
  (void)context;
  if (!handled && strcmp(method, "Run") == 0 && stage->step.applied == 1) {
    bl_driver_stop(world.driver);
    if (stage->writing != NULL) { // the checkpoint of step 1
      fake_stage_finish_write(stage);
    }
  }
  return false;
}

static void run_and_stop_in_last_step(void) {
  for (int i = 0; i < WORLD_STAGES; i++) {
    world.stages[i].write_ms = 1;
    world.stages[i].hook = stop_in_last_step;
  }
  world_start_driver(&world);
  world_wait_end(&world);
}

// The same if the run is asked to stop in its last step: all steps are done, and held-out data tell.
static void test_a_stop_in_the_last_step_keeps_the_order(void **state) {
  (void)state;
  open_world(2, 1);
  world.stages[0].nonfinite_validation = world.stages[1].nonfinite_validation = true;
  run_and_stop_in_last_step();
  assert_int_equal(world.exit_code, bl_status_exit_code(BL_PRECONDITION));
  bl_driver_destroy(world.driver);
  world.driver = NULL;
  assert_string_equal(listing(), "step-000001 ");
  world_close(&world);
}

static void test_a_stop_in_the_last_step_hides_no_failure(void **state) {
  (void)state;
  open_world(2, 0);
  world.stages[0].write_fails = true;
  run_and_stop_in_last_step();
  assert_int_equal(world.exit_code, bl_status_exit_code(BL_EXHAUSTED));
  assert_non_null(strstr(world.error, "could not be saved"));
  world_close(&world);
}

static bool both_write(driver_world_t *self) {
  return self->stages[0].writing != NULL && self->stages[1].writing != NULL;
}

static bool hold_only_step_3(fake_stage_t *stage, const char *method, bool handled, void *context) {
  (void)method;
  (void)handled;
  (void)context;
  stage->run_ms = stage->step.applied == 2 ? 10 * WORLD_LIMIT_MS : 0;
  return false;
}

static bool both_run_and_write(driver_world_t *self) {
  return both_write(self) && self->stages[0].running_count > 0 && self->stages[1].running_count > 0;
}

static uint64_t saved_step;

static void saved(uint64_t step, const char *path, const bl_error_t *err, void *context) {
  (void)path;
  (void)context;
  assert_int_equal(err->status, BL_OK);
  saved_step = step;
}

// One is requested in step 3, while that of step 2 is being written.
static void test_a_request_gets_no_earlier_checkpoint(void **state) {
  (void)state;
  open_world(6, 2);
  for (int i = 0; i < WORLD_STAGES; i++) {
    world.stages[i].write_ms = 10 * WORLD_LIMIT_MS;
    world.stages[i].hook = hold_only_step_3;
  }
  world_start_driver(&world);
  world_wait(&world, both_run_and_write);
  bl_error_t err;
  saved_step = 0;
  assert_int_equal(bl_driver_checkpoint(world.driver, saved, NULL, &err), BL_OK);
  for (int i = 0; i < WORLD_STAGES; i++) {
    world.stages[i].write_ms = 1;
    fake_stage_finish_write(&world.stages[i]);
    bl_timer_start(world.stages[i].timer, 1, 0);
  }
  world_wait_end(&world);
  assert_int_equal(world.exit_code, 0);
  assert_int_equal(saved_step, 3);
  world_close(&world);
}

static void test_a_driver_that_ends_leaves_nothing(void **state) {
  (void)state;
  open_world(2, 0);
  world.stages[0].write_ms = world.stages[1].write_ms = 10 * WORLD_LIMIT_MS;
  world_start_driver(&world);
  world_wait(&world, both_write);
  assert_non_null(strstr(listing(), ".partial-"));
  bl_driver_destroy(world.driver);
  world.driver = NULL;
  assert_string_equal(listing(), "");
  world_close(&world);
}

static bool both_are_asked_again(driver_world_t *self) {
  return self->ended || (self->stages[0].refused_writes > 1 && self->stages[1].refused_writes > 1);
}

// The last checkpoint is the next driver's to finish, however long stages still write for the one before.
static void test_a_driver_that_dies_while_it_is_written(void **state) {
  (void)state;
  open_world(2, 0);
  world.stages[0].write_ms = world.stages[1].write_ms = 10 * WORLD_LIMIT_MS;
  world_start_driver(&world);
  world_wait(&world, both_write);
  world_kill_driver(&world);
  world_start_driver(&world);
  world_wait(&world, both_are_asked_again);
  for (int i = 0; i < WORLD_STAGES; i++) {
    world.stages[i].write_ms = 1;
    fake_stage_finish_write(&world.stages[i]);
  }
  world_wait_end(&world);
  assert_int_equal(world.exit_code, 0);
  assert_string_equal(listing(), "step-000002 ");
  world_close(&world);
}

static bool is_finished(driver_world_t *self) {
  return strcmp(self->phase, "finished") == 0;
}

// Nor is it needed again when the disk is full by then.
static void test_the_next_driver_saves_no_step_again(void **state) {
  (void)state;
  open_world(2, 0);
  world.linger = true;
  world.stages[0].write_ms = world.stages[1].write_ms = 1;
  world_start_driver(&world);
  world_wait(&world, is_finished);
  world_kill_driver(&world);
  world.stages[0].write_fails = true;
  world.linger = false;
  world_start_driver(&world);
  world_wait_end(&world);
  assert_int_equal(world.exit_code, 0);
  assert_int_equal(world.stages[0].writes, 1);
  assert_string_equal(listing(), "step-000002 ");
  world_close(&world);
}

static void test_a_dead_stage_ends_it(void **state) {
  (void)state;
  open_world(2, 0);
  world.stages[1].write_ms = 10 * WORLD_LIMIT_MS;
  world_start_driver(&world);
  world_wait(&world, both_write);
  fake_stage_kill(&world.stages[0]);
  world_wait_end(&world);
  assert_int_equal(world.exit_code, bl_status_exit_code(BL_UNAVAILABLE));
  bl_driver_destroy(world.driver);
  world.driver = NULL;
  assert_string_equal(listing(), "");
  world_close(&world);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_the_last_checkpoint_fails, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(test_a_failed_checkpoint_changes_nothing, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(test_files_that_were_not_asked_for, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(test_what_is_not_finite_ends_the_run, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(test_weights_that_end_the_run_are_not_saved, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(test_weights_that_end_the_run_while_they_are_written, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(test_earlier_weights_are_kept, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(test_a_death_keeps_what_is_written, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(test_a_held_out_loss_that_is_not_finite_ends_the_run, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(test_a_stop_in_the_last_step_keeps_the_order, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(test_a_stop_in_the_last_step_hides_no_failure, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(test_a_request_gets_no_earlier_checkpoint, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(test_a_driver_that_ends_leaves_nothing, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(test_a_driver_that_dies_while_it_is_written, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(test_the_next_driver_saves_no_step_again, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(test_a_dead_stage_ends_it, make_folder, remove_folder),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
