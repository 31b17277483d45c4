// SPDX-License-Identifier: Apache-2.0
// Verifies how the choices of auto are kept: what it stands for survives the way to the stages and back, is told to
// people, and counts as one policy for a rollback.
#include "policy_records_wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static bl_policy_t automatic(bl_policy_kind_t chosen, bl_balance_mode_t mode) {
  return (bl_policy_t){.kind = BL_POLICY_AUTO, .chosen = chosen, .mode = mode};
}

static bl_policy_history_t history_of(const bl_policy_t *policies, size_t count) {
  bl_policy_history_t history = {0};
  for (size_t i = 0; i < count; i++) {
    bl_policy_history_add(&history, &(bl_policy_record_t){.policy = policies[i], .from_step = i + 1});
  }
  return history;
}

static void choices_travel_with_the_book(void **state) {
  (void)state;
  const bl_policy_t policies[] = {automatic(BL_POLICY_NONE, BL_BALANCE_OVERLAP),
                                  automatic(BL_POLICY_BPIPE, BL_BALANCE_FEWEST),
                                  automatic(BL_POLICY_CAP, BL_BALANCE_OVERLAP),
                                  {.kind = BL_POLICY_AUTO, .chosen = BL_POLICY_MIX, .copy = 75},
                                  {.kind = BL_POLICY_AUTO, .chosen = BL_POLICY_MIX, .copy = 150},
                                  {.kind = BL_POLICY_AUTO, .chosen = BL_POLICY_MIX, .copy = BL_POLICY_COPY_PROBE},
                                  {.kind = BL_POLICY_BPIPE, .cap = 3}};
  const size_t count = sizeof policies / sizeof policies[0];
  const bl_policy_history_t history = history_of(policies, count);
  static bl_policy_history_wire_t wire;
  bl_policy_history_t back;
  bl_policy_history_to_wire(&history, &wire);
  assert_true(bl_policy_history_from_wire(wire.pointers, wire.count, &back));
  assert_int_equal(back.count, count);
  for (size_t i = 0; i < count; i++) {
    assert_int_equal(bl_policy_probes(&back.records[i].policy), i == 5);
    assert_true(bl_policy_equal(&back.records[i].policy, &policies[i]));
    assert_true(i == 0 || !bl_policy_equal(&back.records[i - 1].policy, &back.records[i].policy));
  }
}

static void choices_are_told(void **state) {
  (void)state;
  char text[BL_POLICY_TEXT];
  const bl_policy_t none = automatic(BL_POLICY_NONE, BL_BALANCE_FEWEST);
  const bl_policy_t fewest = automatic(BL_POLICY_BPIPE, BL_BALANCE_FEWEST);
  assert_string_equal(bl_policy_format(&none, text), "auto: none");
  assert_string_equal(bl_policy_format(&fewest, text), "auto: bpipe, fewest");
}

static void a_rollback_goes_back_before_auto(void **state) {
  (void)state;
  const bl_policy_t policies[] = {{.kind = BL_POLICY_NONE},
                                  automatic(BL_POLICY_BPIPE, BL_BALANCE_OVERLAP),
                                  automatic(BL_POLICY_BPIPE, BL_BALANCE_FEWEST)};
  bl_policy_history_t history = history_of(policies, 3);
  const bl_policy_record_t *record;
  bl_error_t err;
  assert_int_equal(bl_policy_history_rollback(&history, 0, &record, &err), BL_OK);
  assert_int_equal(record->version, 1);
  assert_int_equal(bl_policy_history_rollback(&history, 2, &record, &err), BL_OK);
  assert_int_equal(record->version, 2);
  history = history_of(policies + 1, 2); // nothing else before
  assert_int_equal(bl_policy_history_rollback(&history, 0, &record, &err), BL_NOT_FOUND);
  history = history_of((bl_policy_t[]){policies[1], policies[2], policies[0]}, 3);
  assert_int_equal(bl_policy_history_rollback(&history, 0, &record, &err), BL_OK);
  assert_int_equal(record->version, 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(choices_travel_with_the_book),
      cmocka_unit_test(choices_are_told),
      cmocka_unit_test(a_rollback_goes_back_before_auto),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
