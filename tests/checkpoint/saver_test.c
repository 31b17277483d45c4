// SPDX-License-Identifier: Apache-2.0
// Verifies that a copy which is still being written for a driver that has gone is no failure for the next driver: it is
// told to ask again, not what a full disk is told, and then gets its files. A driver that takes the same step once more
// gets them once more. Without memory for the checksums there is no checkpoint, and the files before are not taken for it.
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

static unsigned fails; // this calloc from now on gives NULL, once; 0: none

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

void *__wrap_calloc(size_t count, size_t bytes) {
  return fails > 0 && --fails == 0 ? NULL : __real_calloc(count, bytes);
}

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

// Creates a saver that has a copy of step 10.
static bl_saver_t *create(bl_worker_t **compute) {
  const bl_saver_observer_t observer = {.copied = copied, .written = written};
  bl_saver_t *saver;
  bl_error_t err;
  assert_int_equal(bl_loop_create(&loop, &err), BL_OK);
  assert_int_equal(bl_worker_create(loop, "compute", compute, &err), BL_OK);
  assert_int_equal(bl_saver_create(loop, *compute, &observer, &saver, &err), BL_OK);
  assert_int_equal(bl_saver_copy(saver, saved.snapshots[0], 10, &err), BL_STAGE_BEGIN);
  bl_loop_run(loop);
  return saver;
}

static void destroy(bl_saver_t *saver, bl_worker_t *compute) {
  bl_worker_destroy(compute);
  bl_saver_destroy(saver);
  bl_loop_destroy(loop);
}

static void test_a_copy_that_is_written_elsewhere(void **state) {
  (void)state;
  bl_worker_t *compute;
  bl_error_t err;
  bl_saver_t *saver = create(&compute);
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
  destroy(saver, compute);
}

static void test_no_memory_for_checksums(void **state) {
  (void)state;
  bl_worker_t *compute;
  bl_error_t err;
  bl_saver_t *saver = create(&compute);
  char other[sizeof folder + 1], path[sizeof other + 16];
  snprintf(other, sizeof other, "%s/", folder);
  const bl_saver_request_t before = {.step = 10, .folder = folder, .names = {"checked-0", "checked-1"}};
  const bl_saver_request_t after = {.step = 10, .folder = other, .names = {"none-0", "none-1"}};
  assert_int_equal(bl_saver_write(saver, &before, &err), BL_STAGE_BEGIN);
  bl_loop_run(loop);
  assert_int_equal(bl_saver_write(saver, &before, &err), BL_STAGE_ANSWER);
  for (unsigned nth = 1; nth <= 2; nth++) { // of either file
    fails = nth;
    assert_int_equal(bl_saver_write(saver, &after, &err), BL_STAGE_REFUSE);
    assert_int_equal(err.status, BL_INTERNAL);
    assert_string_equal(err.text, "no memory for the checksums of a checkpoint");
    assert_int_equal(fails, 0);
  }
  snprintf(path, sizeof path, "%snone-0", other);
  assert_int_equal(access(path, F_OK), -1);
  assert_int_equal(bl_saver_write(saver, &before, &err), BL_STAGE_BEGIN); // it has lost the checksums of those files
  bl_loop_run(loop);
  assert_non_null(bl_saver_file(saver, BL_CHECKPOINT_SHARD_OPTIMIZER).checksums->tensors);
  destroy(saver, compute);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_copy_that_is_written_elsewhere),
                                     cmocka_unit_test(test_no_memory_for_checksums)};
  return cmocka_run_group_tests(tests, make, clean);
}
