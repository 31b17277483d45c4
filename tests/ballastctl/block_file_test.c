// SPDX-License-Identifier: Apache-2.0
// Verifies that files with building blocks are read: the example in the documentation, and what is said about files
// that miss an offset, hold a negative one, or mix fused and split backwards.
#include "ballastctl/plan/block_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define SHAPE "stages: 2\ninterval: 3\nplacement: [0, 1]\n"

static void the_example_is_read(void **state) {
  (void)state;
  bl_ctl_block_file_t file;
  bl_error_t err;
  bl_error_clear(&err);
  if (bl_ctl_block_file_read(BALLAST_SOURCE_DIR "/examples/building-block.yaml", &file, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(file.block.stages, 4);
  assert_int_equal(file.block.virtual_stages, 8);
  assert_int_equal(file.block.interval, 6);
  assert_int_equal(file.block.placement[7], 0);
  assert_int_equal(file.block.forward[7], 7);
  assert_non_null(file.block.weight);
  bl_ctl_block_file_cleanup(&file);
}

static void expect(const char *text, const char *reason) {
  char path[] = "/tmp/ballast-block-XXXXXX";
  bl_ctl_block_file_t file;
  bl_error_t err;
  int descriptor = mkstemp(path);
  assert_true(descriptor >= 0);
  assert_int_equal(write(descriptor, text, strlen(text)), (int)strlen(text));
  close(descriptor);
  bl_error_clear(&err);
  bl_status_t status = bl_ctl_block_file_read(path, &file, &err);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(status, reason == NULL ? BL_OK : BL_INVALID);
  if (reason != NULL && strstr(err.text, reason) == NULL) {
    fail_msg("\"%s\" does not say \"%s\"", err.text, reason);
  }
  bl_ctl_block_file_cleanup(&file);
}

static void faults_are_named(void **state) {
  (void)state;
  expect(SHAPE "forward: [0, 1]\nbackward: [4, 2]\n", NULL);
  expect(SHAPE "forward: [0]\nbackward: [4, 2]\n", "forward: virtual stage 1 has no offset");
  expect(SHAPE "forward: [0, 1]\ninput: [4, 2]\n", "weight: virtual stage 0 has no offset");
  expect(SHAPE "forward: [0, 1]\nbackward: [4, 2, 7]\n", "backward: has 3 offsets; there are 2 in placement");
  expect(SHAPE "forward: [0, -1]\nbackward: [4, 2]\n", ":4:14: forward");
  expect(SHAPE "forward: [0, 1]\nbackward: [4, 2]\nweight: [6, 3]\n", "one or the other");
  expect(SHAPE "forward: [0, 1]\nbackwards: [4, 2]\n", "did you mean 'backward'");
  expect(SHAPE "forward: [0, 1]\nbackward: [3, 2]\n", "0B starts at 3, but needs 1B");
  expect(SHAPE "lengths: [1, 1]\nforward: [0, 1]\nbackward: [4, 2]\n", "lengths: must be three");
  expect("stages: 2\ninterval: 3\nforward: [0, 1]\nbackward: [4, 2]\n", "placement");
  expect("stages: 1\ninterval: 3\nplacement: [0, 1]\nforward: [0, 1]\nbackward: [4, 2]\n",
         "stage 1, which does not exist");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_example_is_read),
      cmocka_unit_test(faults_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
