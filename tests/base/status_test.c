// SPDX-License-Identifier: Apache-2.0
// Verifies that the status table is complete and that statuses survive the way through gRPC codes.
#include "base/error.h"
#include "base/exit.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void every_status_has_a_row(void **state) {
  (void)state;
  for (int i = 0; i < BL_STATUS_COUNT; i++) {
    assert_non_null(bl_status_name((bl_status_t)i));
    assert_true(strlen(bl_status_text((bl_status_t)i)) > 0);
    assert_in_range(bl_status_grpc_code((bl_status_t)i), 0, 16);
  }
  assert_int_equal(bl_status_exit_code(BL_INVALID), 2);
  assert_int_equal(bl_status_exit_code(BL_UNAVAILABLE), 5);
}

static void every_exit_code_has_a_meaning(void **state) {
  (void)state;
  bool used[BL_EXITS] = {false};
  for (int i = 0; i < BL_STATUS_COUNT; i++) {
    size_t row = 0;
    while (row < BL_EXITS && bl_exits[row].code != bl_status_exit_code((bl_status_t)i)) {
      row++;
    }
    assert_in_range(row, 0, BL_EXITS - 1);
    used[row] = true;
    assert_false(bl_exits[row].final && bl_status_retryable((bl_status_t)i));
  }
  for (size_t row = 0; row < BL_EXITS; row++) {
    assert_true(used[row] && strlen(bl_exits[row].meaning) > 0);
    assert_true(row == 0 || bl_exits[row].code > bl_exits[row - 1].code);
  }
}

static void grpc_codes_come_back(void **state) {
  (void)state;
  const bl_status_t unique[] = {BL_OK,       BL_INVALID, BL_NOT_FOUND, BL_PRECONDITION, BL_FENCED,    BL_UNAVAILABLE,
                                BL_DEADLINE, BL_DENIED,  BL_EXHAUSTED, BL_CANCELLED,    BL_DATA_LOSS, BL_INTERNAL};
  for (size_t i = 0; i < sizeof unique / sizeof unique[0]; i++) {
    assert_int_equal(bl_status_from_grpc_code(bl_status_grpc_code(unique[i])), unique[i]);
  }
  assert_int_equal(bl_status_from_grpc_code(99), BL_INTERNAL);
  assert_int_equal(bl_status_from_errno(ENOSPC), BL_EXHAUSTED);
}

static void long_messages_are_cut_visibly(void **state) {
  (void)state;
  bl_error_t err;
  char text[3000];
  memset(text, 'x', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  assert_int_equal(bl_error_set(&err, BL_INVALID, "%s", text), BL_INVALID);
  assert_int_equal(strlen(err.text), BL_ERROR_TEXT_BYTES - 1);
  assert_string_equal(err.text + BL_ERROR_TEXT_BYTES - 4, "...");
}

static void prefix_adds_context(void **state) {
  (void)state;
  bl_error_t err;
  (void)bl_error_set(&err, BL_NOT_FOUND, "no such file");
  assert_int_equal(bl_error_prefix(&err, "job %s", "a.yaml"), BL_NOT_FOUND);
  assert_string_equal(err.text, "job a.yaml: no such file");
  assert_int_equal(bl_error_set(NULL, BL_IO, "nobody listens"), BL_IO);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_status_has_a_row), cmocka_unit_test(every_exit_code_has_a_meaning),
      cmocka_unit_test(grpc_codes_come_back),   cmocka_unit_test(long_messages_are_cut_visibly),
      cmocka_unit_test(prefix_adds_context),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
