// SPDX-License-Identifier: Apache-2.0
// Verifies what balanced lists take of every device: own and lent slots within the cap the lists were made for, the
// same reservations as the pass made or fewer, and stores that do not exist refused.
#include "schedule/balance/device_slots.h"

#include "schedule/balance/balance.h"
#include "schedule/generated.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void without_evictions_nothing_is_lent(void **state) {
  (void)state;
  bl_schedule_t *schedule = generate("1f1b", 4, 8);
  bl_device_slots_t device_slots;
  assert_int_equal(bl_device_slots_init(&device_slots, schedule, NULL), BL_OK);
  assert_false(bl_device_slots_move(&device_slots));
  for (uint32_t d = 0; d < 4; d++) {
    assert_int_equal(device_slots.own[d], 4 - d);
    assert_int_equal(device_slots.lent[d], 0);
  }
  bl_error_t err;
  assert_int_equal(bl_device_slots_check(&device_slots, 4, &err), BL_OK);
  assert_int_equal(bl_device_slots_check(&device_slots, 3, &err), BL_EXHAUSTED);
  assert_non_null(strstr(err.text, "device 0: 4 own slots and 0 lent are"));
  bl_device_slots_cleanup(&device_slots);
  bl_schedule_destroy(schedule);
}

// Every device within the cap, in both modes, with pairs and with many acceptors.
static void budgets_hold(void **state) {
  (void)state;
  for (uint32_t p = 3; p <= 9; p++) {
    bl_schedule_t *schedule = generate("1f1b", p, 16);
    for (int way = 0; way < 4; way++) {
      uint32_t cap = bl_balance_bpipe_cap(p), evicted = 0;
      bl_balance_result_t result;
      bl_error_t err;
      if (bl_balance_cap(schedule, cap, way % 2, way / 2 ? BL_BALANCE_FEWEST : BL_BALANCE_OVERLAP, &result, &err)) {
        fail_msg("p = %u: %s", p, err.text);
      }
      bl_device_slots_t device_slots;
      assert_int_equal(bl_device_slots_init(&device_slots, result.schedule, &err), BL_OK);
      if (bl_device_slots_check(&device_slots, cap, &err) != BL_OK) {
        fail_msg("p = %u: %s", p, err.text);
      }
      for (uint32_t s = 0; s < p; s++) {
        assert_int_equal(device_slots.evicted[s], result.evictions[s]);
        evicted += device_slots.evicted[s];
        for (uint32_t d = 0; d < p; d++) {
          assert_in_range(bl_device_slots_reserved(&device_slots, s, d), 0, result.reserved[s * p + d]);
        }
      }
      assert_int_equal(bl_device_slots_move(&device_slots), evicted > 0);
      bl_device_slots_cleanup(&device_slots);
      bl_balance_result_cleanup(&result);
    }
    bl_schedule_destroy(schedule);
  }
}

static void stores_of_no_device_are_refused(void **state) {
  (void)state;
  for (uint16_t store = 0; store < 8; store++) {
    const uint32_t hosts = store / 4;
    bl_schedule_t *schedule = NULL;
    assert_int_equal(bl_schedule_create("x", BL_PLACEMENT_LOOPED, 2, 1, 1, &schedule, NULL), BL_OK);
    schedule->hosts = hosts;
    const bl_op_t ops[] = {
        {.type = BL_OP_F}, {.type = BL_OP_E, .store = store % 4}, {.type = BL_OP_L, .store = store % 4}};
    for (size_t i = 0; i < 3; i++) {
      assert_int_equal(bl_schedule_append(schedule, 0, ops[i]), BL_OK);
    }
    bl_device_slots_t device_slots;
    bl_error_t err;
    bl_status_t status = bl_device_slots_init(&device_slots, schedule, &err);
    assert_int_equal(status, store % 4 == 1 || (hosts == 1 && store % 4 == 2) ? BL_OK : BL_INVALID);
    if (status == BL_OK) {
      for (uint32_t of = 0; of < 4; of++) { // store 3 is none of the plan's
        assert_int_equal(bl_device_slots_reserved(&device_slots, 0, of), of == store % 4);
        assert_int_equal(bl_device_slots_lent(&device_slots, of), of == store % 4);
      }
      assert_true(bl_device_slots_move(&device_slots));
      assert_int_equal(bl_device_slots_check(&device_slots, 1, NULL), BL_OK);
      bl_device_slots_cleanup(&device_slots);
    } else {
      assert_non_null(strstr(err.text, "names store"));
    }
    bl_schedule_destroy(schedule);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(without_evictions_nothing_is_lent),
      cmocka_unit_test(budgets_hold),
      cmocka_unit_test(stores_of_no_device_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
