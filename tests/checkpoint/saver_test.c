// SPDX-License-Identifier: Apache-2.0
// Verifies that a copy which is still being written for a driver that has gone is no failure for the next driver: it is
// told to ask again, not what a full disk is told, and then gets its files. A driver that takes the same step once more
// gets them once more.
#include "checkpoint/saved_model.h"
#include "saver.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/ballast-saver-XXXXXX";
static saved_model_t saved;
static bl_loop_t *loop;

static int make(void **state) {
  (void)state;
  return mkdtemp(folder) != NULL && saved_model_init(&saved, 10) ? 0 : -1;
}

static int clean(void **state) {
  (void)state;
  saved_model_cleanup(&saved);
  char command[64];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command);
}

static void copied(void *context) {
  (void)context;
  bl_loop_stop(loop);
}

static void written(void *context, const bl_error_t *err) {
  (void)context;
  assert_int_equal(err->status, BL_OK);
  bl_loop_stop(loop);
}

static void test_a_copy_that_is_written_elsewhere(void **state) {
  (void)state;
  const bl_saver_observer_t observer = {.copied = copied, .written = written};
  bl_worker_t *compute;
  bl_saver_t *saver;
  bl_error_t err;
  assert_int_equal(bl_loop_create(&loop, &err), BL_OK);
  assert_int_equal(bl_worker_create(loop, "compute", &compute, &err), BL_OK);
  assert_int_equal(bl_saver_create(loop, compute, &observer, &saver, &err), BL_OK);
  assert_int_equal(bl_saver_copy(saver, saved.snapshots[0], 10, &err), BL_STAGE_BEGIN);
  bl_loop_run(loop);
  const bl_saver_request_t before = {.step = 10, .folder = folder, .names = {"before-0", "before-1"}};
  char other[sizeof folder + 1];
  snprintf(other, sizeof other, "%s/", folder);
  const bl_saver_request_t after = {.step = 10, .folder = other, .names = {"after-0", "after-1"}};
  assert_int_equal(bl_saver_write(saver, &before, &err), BL_STAGE_BEGIN);
  assert_int_equal(bl_saver_write(saver, &before, &err), BL_STAGE_WAIT);
  assert_int_equal(bl_saver_write(saver, &after, &err), BL_STAGE_REFUSE);
  assert_int_equal(err.status, BL_UNAVAILABLE);
  bl_loop_run(loop);
  assert_int_equal(bl_saver_write(saver, &after, &err), BL_STAGE_BEGIN);
  bl_loop_run(loop);
  assert_int_equal(bl_saver_write(saver, &after, &err), BL_STAGE_ANSWER);
  char path[sizeof other + 16];
  snprintf(path, sizeof path, "%safter-1", other);
  assert_int_equal(access(path, F_OK), 0);
  // Another stage found the disk full, so the driver has deleted the folder.
  assert_int_equal(unlink(path), 0);
  assert_int_equal(bl_saver_copy(saver, saved.snapshots[0], 10, &err), BL_STAGE_ANSWER);
  assert_int_equal(bl_saver_write(saver, &after, &err), BL_STAGE_BEGIN);
  bl_loop_run(loop);
  assert_int_equal(access(path, F_OK), 0);
  bl_worker_destroy(compute);
  bl_saver_destroy(saver);
  bl_loop_destroy(loop);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_copy_that_is_written_elsewhere)};
  return cmocka_run_group_tests(tests, make, clean);
}
