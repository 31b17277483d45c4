// SPDX-License-Identifier: Apache-2.0
// Verifies that validation finds every kind of broken schedule and names where it is broken.
#include "schedule/generate.h"
#include "schedule/ir/validate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

// Builds a schedule of two stages from space separated cells.
static bl_schedule_t *build(uint32_t micro_batches, const char *stage_0, const char *stage_1) {
  bl_schedule_t *schedule;
  assert_int_equal(bl_schedule_create("test", BL_PLACEMENT_LOOPED, 2, 1, micro_batches, &schedule, NULL), BL_OK);
  const char *const lists[] = {stage_0, stage_1};
  for (uint32_t s = 0; s < 2; s++) {
    for (const char *at = lists[s]; *at != '\0';) {
      size_t length = strcspn(at, " ");
      bl_op_t op;
      assert_true(bl_op_parse(at, length, &op));
      assert_int_equal(bl_schedule_append(schedule, s, op), BL_OK);
      at += length + (at[length] == ' ');
    }
  }
  return schedule;
}

static void refuse(uint32_t micro_batches, const char *stage_0, const char *stage_1, const char *where,
                   const char *why) {
  bl_schedule_t *schedule = build(micro_batches, stage_0, stage_1);
  bl_error_t err;
  bl_error_clear(&err);
  assert_int_equal(bl_schedule_validate(schedule, NULL, &err), BL_INVALID);
  if (strstr(err.text, where) == NULL || strstr(err.text, why) == NULL) {
    fail_msg("\"%s\" does not say \"%s\" and \"%s\"", err.text, where, why);
  }
  bl_schedule_destroy(schedule);
}

static void misplaced_operations_are_named(void **state) {
  (void)state;
  refuse(1, "0F0 0F0 0B0", "1F0 1B0", "stage 0, operation 1: 0F0", "second forward");
  refuse(1, "0F0 0B0", "1B0 1F0", "stage 1, operation 0: 1B0", "before its forward");
  refuse(1, "0F0 0B0 0B0", "1F0 1B0", "stage 0, operation 2: 0B0", "second backward");
  refuse(1, "0F0 0W0 0I0", "1F0 1B0", "stage 0, operation 1: 0W0", "before that for the input");
  refuse(1, "0F0 1F0 0B0", "1B0", "stage 0, operation 1: 1F0", "on stage 1, not on stage 0");
  refuse(1, "0F1 0B1", "1F0 1B0", "stage 0, operation 0: 0F1", "is only 1 micro-batch");
  refuse(1, "0F0 0B0", "1F0 5B0", "stage 1, operation 1: 5B0", "only 2 virtual stages");
}

static void missing_operations_are_named(void **state) {
  (void)state;
  refuse(2, "0F0 0F1 0B0 0B1", "1F0 1B0", "stage 1: virtual stage 1, micro-batch 1", "its forward (1F1) is missing");
  refuse(1, "0F0", "1F0 1B0", "stage 0, operation 0: 0F0: virtual stage 0, micro-batch 0", "its backward is missing");
  refuse(1, "0F0 0I0", "1F0 1B0", "stage 0, operation 1: 0I0", "its backward for the weights is missing");
}

static void blocks_that_are_away_are_not_used(void **state) {
  (void)state;
  refuse(1, "0F0 0E0@1 0B0", "1F0 1B0", "stage 0, operation 2: 0B0", "evicted and not loaded");
  refuse(1, "0E0 0F0 0B0", "1F0 1B0", "stage 0, operation 0: 0E0", "between a forward and its backward");
  refuse(1, "0F0 0I0 0E0 0W0", "1F0 1B0", "stage 0, operation 2: 0E0", "between a forward and its backward");
  refuse(1, "0F0 0L0 0B0", "1F0 1B0", "stage 0, operation 1: 0L0", "not evicted");
  refuse(1, "0F0 0E0@0 0L0@0 0B0", "1F0 1B0", "stage 0, operation 1: 0E0@0", "the stage's own device");
  refuse(1, "0F0 0E0@99 0L0@99 0B0", "1F0 1B0", "stage 0, operation 1: 0E0@99", "no store 99");
  refuse(1, "0F0 0E0@1 0L0@0 0B0", "1F0 1B0", "stage 0, operation 2: 0L0@0", "the stage's own device");
  refuse(1, "0F0 0E0 0L0@1 0B0", "1F0 1B0", "stage 0, operation 2: 0L0@1", "its evict does not name");
  refuse(1, "0F0 0B0 0R0", "1F0 1B0", "stage 0, operation 2: 0R0", "recomputation");
}

static void cycles_are_named(void **state) {
  (void)state;
  refuse(2, "0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1",
         "cycle: 0B0 (stage 0, operation 1) waits for 1B0 (stage 1, operation 2)",
         ", behind 1F1 (stage 1, operation 1), which waits for 0F1 (stage 0, operation 2), behind 0B0 (stage 0, "
         "operation 1)");
}

// A loop of two rounds whose first stage starts with the second round.
static void long_cycles_are_shortened(void **state) {
  (void)state;
  enum { STAGES = 200 };
  bl_schedule_t *schedule;
  bl_error_t err;
  assert_int_equal(bl_schedule_create("long", BL_PLACEMENT_LOOPED, STAGES, 2, 1, &schedule, NULL), BL_OK);
  for (uint32_t s = 0; s < STAGES; s++) {
    for (uint32_t i = 0; i < 4; i++) {
      bool second = s == 0 ? i % 2 == 0 : i == 1 || i == 2;
      bl_op_t op = {.type = i < 2 ? BL_OP_F : BL_OP_B, .virtual_stage = (uint16_t)(s + (second ? STAGES : 0))};
      assert_int_equal(bl_schedule_append(schedule, s, op), BL_OK);
    }
  }
  assert_int_equal(bl_schedule_validate(schedule, NULL, &err), BL_INVALID);
  assert_string_equal(err.text,
                      "the lists cannot run, a cycle: 200F0 (stage 0, operation 0) waits for 199F0 (stage 199, "
                      "operation 0), which waits for 198F0 (stage 198, operation 0), which waits for 197F0 "
                      "(stage 197, operation 0), which waits for 196F0 (stage 196, operation 0) ... (193 waits "
                      "more) ... 3F0 (stage 3, operation 0), which waits for 2F0 (stage 2, operation 0), which "
                      "waits for 1F0 (stage 1, operation 0), which waits for 0F0 (stage 0, operation 1), behind "
                      "200F0 (stage 0, operation 0)");
  bl_schedule_destroy(schedule);
}

static void facts_tell_what_the_schedule_does(void **state) {
  (void)state;
  bl_schedule_t *schedule = build(2, "0F0 0F1 0B1 0B0", "1F0 1F1 1I1 1W1 1I0 1W0");
  bl_schedule_facts_t facts;
  bl_error_t err;
  assert_int_equal(bl_schedule_validate(schedule, &facts, &err), BL_OK);
  assert_false(facts.ascending);
  assert_int_equal(facts.not_ascending.virtual_stage, 0);
  assert_int_equal(facts.not_ascending.micro_batch, 0);
  assert_true(facts.splits_backward);
  assert_false(facts.transfers || facts.recomputes);
  bl_schedule_destroy(schedule);

  schedule = build(2, "0F0 0F1 0E1@1 0B0 0L1@1 0B1", "1F0 1R0 1B0 1F1 1B1");
  assert_int_equal(bl_schedule_validate(schedule, &facts, &err), BL_OK);
  assert_true(facts.ascending && facts.transfers && facts.recomputes && !facts.splits_backward);
  bl_schedule_destroy(schedule);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(misplaced_operations_are_named),    cmocka_unit_test(missing_operations_are_named),
      cmocka_unit_test(blocks_that_are_away_are_not_used), cmocka_unit_test(cycles_are_named),
      cmocka_unit_test(long_cycles_are_shortened),         cmocka_unit_test(facts_tell_what_the_schedule_does),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
