// SPDX-License-Identifier: Apache-2.0
// Verifies that no checkpoint is written with a number that is not finite, wherever it is: the tensor is named, nothing
// is left of the checkpoint, and the one before stays.
#include "checkpoint/saved_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/ballast-finite-XXXXXX";
static saved_model_t saved;

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

static void take(void) {
  bl_error_t err;
  for (int stage = 0; stage < SAVED_STAGES; stage++) {
    assert_int_equal(bl_snapshot_take(saved.snapshots[stage], &err), BL_OK);
  }
}

// The weights and both moments of a tensor, its last element.
static void check(float value) {
  static const char *const parts[BL_CHECKPOINT_PARTS] = {"", ".exp_avg", ".exp_avg_sq"};
  uint64_t offset = 0;
  for (uint32_t i = 0; i < bl_parameter_count(&saved.model); i++) {
    const bl_parameter_t parameter = bl_parameter_get(&saved.model, i);
    for (int part = 0; part < BL_CHECKPOINT_PARTS; part++) {
      offset += parameter.elements;
      const float before = saved.values[offset - 1];
      saved.values[offset - 1] = value;
      take();
      bl_error_t err = {0};
      assert_int_equal(saved_model_write(&saved, folder, 20, 1, &err), BL_DATA_LOSS);
      char expected[BL_ERROR_TEXT_BYTES];
      snprintf(expected, sizeof expected, "%s%s are not finite", parameter.name, parts[part]);
      if (strstr(err.text, expected) == NULL) {
        fail_msg("'%s' does not say '%s'", err.text, expected);
      }
      if (saved_model_read(folder, &err) != 10) {
        fail_msg("the checkpoint before: %s", err.text);
      }
      saved.values[offset - 1] = before;
    }
  }
}

static void test_nothing_but_finite_numbers_is_saved(void **state) {
  (void)state;
  bl_error_t err = {0};
  assert_int_equal(saved_model_write(&saved, folder, 10, 1, &err), BL_OK);
  check(NAN);
  check(-INFINITY);
  saved.values[0] = 3.4028235e38f; // the largest there is
  take();
  assert_int_equal(saved_model_write(&saved, folder, 20, 1, &err), BL_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_nothing_but_finite_numbers_is_saved, make, clean),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
