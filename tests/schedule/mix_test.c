// SPDX-License-Identifier: Apache-2.0
// Verifies plans in which some blocks are parked and others made again: all that leaves is one or the other, once;
// slots, stores and buffers hold under every cap and in both modes, for every name; short copies park what stores have
// room for, long ones nothing; what stores lack in room is made again where parking alone is refused; and what is
// refused still.
#include "schedule/balance/balance.h"

#include "schedule/balance/device_slots.h"
#include "schedule/balance/drop.h"
#include "schedule/generated.h"
#include "schedule/ir/peaks.h"
#include "schedule/ir/recompute.h"
#include "schedule/ir/stage_plan.h"
#include "schedule/ir/validate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define P 4

// What is neither parked nor made again is the unbalanced order; what is, is so once, and never both.
static void check_operations(const bl_schedule_t *plain, const bl_balance_result_t *result, uint32_t s) {
  const bl_schedule_t *schedule = result->schedule;
  uint8_t *seen = calloc(bl_schedule_block_count(schedule), 1);
  uint32_t evicted = 0, loaded = 0, recompute = 0;
  size_t next = 0;
  for (size_t i = 0; i < schedule->lists[s].count; i++) {
    bl_op_t op = schedule->lists[s].ops[i];
    if (op.type == BL_OP_E || op.type == BL_OP_R) {
      uint8_t *block = &seen[bl_schedule_block(schedule, op)];
      assert_int_equal(*block, 0);
      *block = 1;
    }
    evicted += op.type == BL_OP_E;
    loaded += op.type == BL_OP_L;
    recompute += op.type == BL_OP_R;
    if (bl_op_type_computes((bl_op_type_t)op.type) && op.type != BL_OP_R) {
      assert_memory_equal(&op, &plain->lists[s].ops[next++], sizeof op);
    }
  }
  free(seen);
  assert_int_equal(next, plain->lists[s].count);
  assert_int_equal(evicted, result->evictions[s]);
  assert_int_equal(loaded, evicted);
  assert_int_equal(recompute, result->dropped[s]);
}

static void check(const bl_schedule_t *plain, const bl_balance_result_t *result, uint32_t cap) {
  const bl_schedule_t *schedule = result->schedule;
  uint32_t slots[P], peaks[P];
  bl_error_t err;
  if (bl_schedule_validate(schedule, NULL, &err) != BL_OK || bl_plan_counts(schedule, slots, NULL, &err) != BL_OK) {
    fail_msg("%s, cap %u: %s", schedule->name, cap, err.text);
  }
  assert_int_equal(bl_schedule_peak_slots(schedule, peaks), BL_OK);
  bl_device_slots_t device_slots;
  assert_int_equal(bl_device_slots_init(&device_slots, schedule, &err), BL_OK);
  for (uint32_t s = 0; s < P; s++) {
    check_operations(plain, result, s);
    assert_int_equal(slots[s], peaks[s]);
    assert_int_equal(device_slots.evicted[s], result->evictions[s]);
    assert_int_equal(device_slots.dropped[s], result->dropped[s]);
    if (device_slots.own[s] + device_slots.lent[s] > cap) {
      fail_msg("%s, cap %u, device %u: %u own and %u lent slots", schedule->name, cap, s, device_slots.own[s],
               device_slots.lent[s]);
    }
  }
  bl_device_slots_cleanup(&device_slots);
}

static uint32_t sum_of(const uint32_t *values) {
  uint32_t sum = 0;
  for (uint32_t s = 0; s < P; s++) {
    sum += values[s];
  }
  return sum;
}

static void every_schedule_fits(void **state) {
  (void)state;
  static const double lengths[] = {0.01, 0.5, 1, 1.5, 2.5, 100};
  size_t count, mixed = 0;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t n = 0; n < count; n++) {
    bl_schedule_t *plain = generate(infos[n].name, P, 8);
    uint32_t peaks[P], most = 0;
    assert_int_equal(bl_schedule_peak_slots(plain, peaks), BL_OK);
    for (uint32_t s = 0; s < P; s++) {
      most = peaks[s] > most ? peaks[s] : most;
    }
    for (uint32_t cap = most; cap > 0; cap--) {
      for (size_t way = 0; way < 2 * sizeof lengths / sizeof lengths[0]; way++) {
        const bl_balance_cap_t within = {
            .slots = cap, .mode = way % 2 == 0 ? BL_BALANCE_OVERLAP : BL_BALANCE_FEWEST, .copy = lengths[way / 2]};
        bl_balance_result_t result;
        if (bl_balance_within(plain, &within, &result, NULL) == BL_OK) {
          check(plain, &result, cap);
          mixed += sum_of(result.evictions) > 0 && sum_of(result.dropped) > 0;
          bl_balance_result_cleanup(&result);
        }
      }
    }
    bl_schedule_destroy(plain);
  }
  print_message("%zu plans park and give up\n", mixed);
  assert_true(mixed > 40);
}

static bl_balance_result_t within(const bl_schedule_t *plain, uint32_t cap, double copy) {
  bl_balance_result_t result;
  bl_error_t err;
  if (bl_balance_within(plain, &(bl_balance_cap_t){.slots = cap, .copy = copy}, &result, &err) != BL_OK) {
    fail_msg("cap %u: %s", cap, err.text);
  }
  check(plain, &result, cap);
  return result;
}

static void copies_that_hide_are_made(void **state) {
  (void)state;
  bl_schedule_t *plain = generate("1f1b", P, 16);
  bl_balance_result_t parked = within(plain, 3, 0), fast = within(plain, 3, 0.5), slow = within(plain, 3, 50);
  assert_memory_equal(fast.evictions, parked.evictions, P * sizeof(uint32_t));
  assert_int_equal(sum_of(fast.dropped) + sum_of(slow.evictions) + sum_of(parked.dropped), 0);
  assert_in_range(sum_of(slow.dropped), 1, sum_of(parked.evictions)); // an R takes its slot later than an L
  bl_balance_result_t between = within(plain, 3, 1.25);               // hidden where the stage waits anyway
  assert_true(sum_of(between.evictions) > 0 && sum_of(between.evictions) < sum_of(parked.evictions));
  bl_balance_result_cleanup(&between);
  bl_balance_result_cleanup(&slow);
  bl_balance_result_cleanup(&fast);
  bl_balance_result_cleanup(&parked);
  bl_schedule_destroy(plain);
}

// With a limit a stage parks no more than so many blocks of a step, and gives the others up, within the same slots.
static void no_more_are_parked_than_asked_for(void **state) {
  (void)state;
  size_t parked = 0, count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t n = 0; n < count; n++) {
    bl_schedule_t *plain = generate(infos[n].name, P, 8);
    for (uint32_t way = 0; way < 24; way++) {
      const uint32_t slots = 1 + way / 4, parks = 1 + way / 2 % 2;
      const bl_balance_cap_t cap = {.slots = slots, .mode = (bl_balance_mode_t)(way % 2), .copy = 0.01, .parks = parks};
      bl_balance_result_t result;
      if (bl_balance_within(plain, &cap, &result, NULL) != BL_OK) {
        continue;
      }
      check(plain, &result, slots);
      for (uint32_t s = 0; s < P; s++) {
        if (result.evictions[s] > parks) {
          fail_msg("%s, %u slots: stage %u parks %u blocks of %u and makes %u again", infos[n].name, slots, s,
                   result.evictions[s], parks, result.dropped[s]);
        }
        parked += result.evictions[s] == parks && result.dropped[s] > 0;
      }
      bl_balance_result_cleanup(&result);
    }
    bl_schedule_destroy(plain);
  }
  assert_true(parked > 20);
}

// At two slots stage 0 and 1 of four have three blocks too many in all, and only stage 3 has room for one.
static void what_has_no_room_is_made_again(void **state) {
  (void)state;
  bl_schedule_t *plain = generate("1f1b", P, 16), *dropped;
  bl_balance_result_t result;
  assert_int_equal(bl_balance_within(plain, &(bl_balance_cap_t){.slots = 2}, &result, NULL), BL_EXHAUSTED);
  const bl_balance_cap_t fewest = {.slots = 2, .mode = BL_BALANCE_FEWEST, .copy = 0.1};
  assert_int_equal(bl_balance_within(plain, &fewest, &result, NULL), BL_OK);
  check(plain, &result, 2);
  assert_true(sum_of(result.evictions) > 0);
  assert_in_range(sum_of(result.parked_peak), 1, 1);
  assert_int_equal(result.parked_peak[0], 1); // from which most blocks leave
  uint32_t recompute[P];
  assert_int_equal(bl_schedule_drop(plain, 2, &dropped, recompute, NULL), BL_OK);
  assert_true(sum_of(result.dropped) < sum_of(recompute));
  bl_schedule_destroy(dropped);
  bl_balance_result_cleanup(&result);
  bl_schedule_destroy(plain);
}

static void what_cannot_be_is_refused(void **state) {
  (void)state;
  bl_schedule_t *plain = generate("1f1b", P, 8);
  bl_balance_result_t result;
  bl_error_t err;
  bl_balance_cap_t cap = {.slots = 0, .copy = 1};
  assert_int_equal(bl_balance_within(plain, &cap, &result, &err), BL_EXHAUSTED);
  assert_non_null(strstr(err.text, "the smallest that works is "));
  cap = (bl_balance_cap_t){.slots = 3, .copy = NAN};
  assert_int_equal(bl_balance_within(plain, &cap, &result, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "the time of a copy must be a number of forwards from 0 on"));
  cap.copy = 1;
  assert_int_equal(bl_schedule_recompute(plain, &err), BL_OK);
  assert_int_equal(bl_balance_within(plain, &cap, &result, &err), BL_INVALID);
  bl_schedule_destroy(plain);
}

// A machine's host has room for few blocks of its own stages: they give up what is left, those of the other one
// nothing.
static void every_host_is_shared_by_its_own_stages(void **state) {
  (void)state;
  const uint16_t host_of[] = {0, 0, 1, 1};
  bl_schedule_t *schedule = generate("gpipe", 4, 8);
  for (uint32_t room = 0; room <= 14; room++) {
    const bl_balance_cap_t cap = {.slots = 3,
                                  .mode = BL_BALANCE_FEWEST,
                                  .copy = 0.01,
                                  .hosts = 2,
                                  .host_of = host_of,
                                  .host_slots = room,
                                  .host_only = true};
    bl_balance_result_t result;
    bl_error_t err;
    if (bl_balance_within(schedule, &cap, &result, &err) != BL_OK) {
      fail_msg("room for %u: %s", room, err.text);
    }
    assert_int_equal(bl_schedule_validate(result.schedule, NULL, NULL), BL_OK);
    uint32_t held[2] = {0, 0};
    for (uint32_t s = 0; s < 4; s++) {
      held[host_of[s]] += result.reserved[6 * s + 4 + host_of[s]];
      assert_int_equal(result.reserved[6 * s + 4 + 1 - host_of[s]], 0);
    }
    // Two stages want 5 each.
    const uint32_t expected = room < 10 ? room : 10;
    assert_in_range(held[0], expected / 2, expected);
    assert_in_range(held[1], expected / 2, expected);
    assert_true(room < 10 || (held[0] == 10 && held[1] == 10));
    assert_int_equal(result.dropped[0] + result.dropped[1] > 0, room < 10);
    bl_balance_result_cleanup(&result);
  }
  bl_schedule_destroy(schedule);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_schedule_fits),
      cmocka_unit_test(copies_that_hide_are_made),
      cmocka_unit_test(every_host_is_shared_by_its_own_stages),
      cmocka_unit_test(no_more_are_parked_than_asked_for),
      cmocka_unit_test(what_has_no_room_is_made_again),
      cmocka_unit_test(what_cannot_be_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
