// SPDX-License-Identifier: Apache-2.0
// Verifies giving blocks up: which ones and where their R stands, that every schedule stays valid, within its slots and
// free of deadlock down to the fewest slots that work, that plans free the slot of such an F at its end, that CSV
// carries it, and what is refused.
#include "schedule/balance/drop.h"

#include "schedule/csv/csv.h"
#include "schedule/generated.h"
#include "schedule/ir/peaks.h"
#include "schedule/ir/stage_plan.h"
#include "schedule/ir/validate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define P 4

static void the_block_used_last_goes(void **state) {
  (void)state;
  bl_schedule_t *plain = generate("1f1b", 3, 4), *schedule;
  uint32_t dropped[3];
  assert_int_equal(bl_schedule_drop(plain, 2, &schedule, dropped, NULL), BL_OK);
  expect_row(schedule, 0, "0F0 0F1 0F2 0B0 0F3 0R1 0B1 0B2 0R3 0B3");
  expect_row(schedule, 1, "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3"); // has room
  assert_true(dropped[0] == 2 && dropped[1] == 0 && dropped[2] == 0);
  bl_schedule_destroy(schedule);
  bl_schedule_destroy(plain);
}

// Operations but R are the same in the same order, no stage holds more than it has, and all facts hold.
static void check(const char *name, const bl_schedule_t *plain, const bl_schedule_t *schedule, uint32_t cap,
                  const uint32_t *dropped) {
  bl_schedule_facts_t facts;
  bl_error_t err;
  uint32_t slots[P], peaks[P];
  if (bl_schedule_validate(schedule, &facts, &err) != BL_OK || bl_plan_counts(schedule, slots, NULL, &err) != BL_OK) {
    fail_msg("%s: %s", name, err.text);
  }
  assert_int_equal(bl_schedule_peak_slots(schedule, peaks), BL_OK);
  for (uint32_t s = 0; s < P; s++) {
    uint32_t made = 0;
    size_t next = 0;
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      bl_op_t op = schedule->lists[s].ops[i];
      if (op.type == BL_OP_R) {
        made++;
        continue;
      }
      assert_memory_equal(&op, &plain->lists[s].ops[next++], sizeof op);
    }
    assert_int_equal(next, plain->lists[s].count);
    if (made != dropped[s] || peaks[s] > cap || slots[s] != peaks[s]) {
      fail_msg("%s, %u slots, stage %u: %u R of %u blocks, peak %u, planned %u", name, cap, s, made, dropped[s],
               peaks[s], slots[s]);
    }
  }
}

static void every_schedule_fits(void **state) {
  (void)state;
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t n = 0; n < count; n++) {
    bl_schedule_t *plain = generate(infos[n].name, P, 8);
    uint32_t peaks[P], most = 0, tried = 0;
    assert_int_equal(bl_schedule_peak_slots(plain, peaks), BL_OK);
    for (uint32_t s = 0; s < P; s++) {
      most = peaks[s] > most ? peaks[s] : most;
    }
    for (uint32_t cap = most; cap > 0; cap--) {
      uint32_t dropped[P];
      bl_schedule_t *schedule;
      bl_error_t err = {0};
      if (bl_schedule_drop(plain, cap, &schedule, dropped, &err) != BL_OK) {
        char wanted[48];
        snprintf(wanted, sizeof wanted, "; the smallest that works is %u", cap + 1);
        assert_non_null(strstr(err.text, wanted)); // the one before did
        assert_int_equal(bl_schedule_drop(plain, 1, &schedule, dropped, &err), BL_EXHAUSTED);
        assert_non_null(strstr(err.text, wanted)); // not of the first stage alone
        break;
      }
      check(infos[n].name, plain, schedule, cap, dropped);
      bl_schedule_destroy(schedule);
      tried++;
    }
    assert_true(tried > 0);
    bl_schedule_destroy(plain);
  }
}

static void plans_free_the_slot_of_its_forward(void **state) {
  (void)state;
  bl_schedule_t *plain = generate("1f1b", 3, 4), *schedule, *read;
  uint32_t dropped[3];
  bl_stage_plan_t plan;
  bl_error_t err;
  char *text;
  size_t bytes;
  assert_int_equal(bl_schedule_drop(plain, 2, &schedule, dropped, NULL), BL_OK);
  assert_int_equal(bl_csv_write(schedule, &text, &bytes), BL_OK);
  assert_int_equal(bl_csv_read(text, bytes, "plan", &read, &err), BL_OK);
  read->forward_slots = true; // what a row cannot say: whoever reads it knows
  assert_int_equal(bl_stage_plan_init(read, 0, (bl_plan_limits_t){.slots = 2}, &plan, &err), BL_OK);
  assert_int_equal(plan.slots, 2);
  for (size_t i = 0; i < plan.op_count; i++) {
    const bl_planned_op_t *op = &plan.ops[i];
    bool gone = op->op.type == BL_OP_F && (op->op.micro_batch == 1 || op->op.micro_batch == 3);
    assert_int_not_equal(op->slot, BL_NONE);
    assert_int_equal(op->releases_slot, gone || op->op.type == BL_OP_B);
  }
  bl_stage_plan_cleanup(&plan);
  free(text);
  bl_schedule_destroy(read);
  bl_schedule_destroy(schedule);
  bl_schedule_destroy(plain);
}

static void what_cannot_be_is_refused(void **state) {
  (void)state;
  bl_schedule_t *plain = generate("1f1b", 2, 4), *schedule, *recompute;
  uint32_t dropped[2];
  bl_error_t err;
  assert_int_equal(bl_schedule_drop(plain, 0, &schedule, dropped, &err), BL_EXHAUSTED);
  assert_non_null(strstr(err.text, "stage 0, operation 0 (0F0): no slot is free among the stage's own 0"));
  assert_int_equal(bl_schedule_drop(plain, 1, &schedule, dropped, &err), BL_OK);
  assert_int_equal(bl_schedule_drop(schedule, 1, &recompute, dropped, &err), BL_INVALID);
  bl_schedule_destroy(schedule);
  bl_schedule_destroy(plain);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_block_used_last_goes),
      cmocka_unit_test(every_schedule_fits),
      cmocka_unit_test(plans_free_the_slot_of_its_forward),
      cmocka_unit_test(what_cannot_be_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
