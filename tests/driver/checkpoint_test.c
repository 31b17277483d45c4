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

static bool both_write(driver_world_t *self) {
  return self->stages[0].writing != NULL && self->stages[1].writing != NULL;
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
      cmocka_unit_test_setup_teardown(test_a_driver_that_ends_leaves_nothing, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(test_a_dead_stage_ends_it, make_folder, remove_folder),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
