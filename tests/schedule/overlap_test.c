// SPDX-License-Identifier: Apache-2.0
// Verifies the loads of mode overlap: beside the operation before their backward where that leaves slots enough, else late,
// directly before it; a stage gets through with every number of slots that its operations leave it, no load is late where
// none has to be, and plans keep to those slots. On the schedules by name and on random orders.
#include "base/random.h"
#include "schedule/balance/balance.h"
#include "schedule/generated.h"
#include "schedule/ir/dependency.h"
#include "schedule/ir/peaks.h"
#include "schedule/ir/stage_plan.h"
#include "schedule/ir/validate.h"
#include "seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define STAGES_MAX 8
#define BLOCKS_MAX 512
#define ORDERS     400

// `stage` has `own` slots, others what they need, and stores have room for all.
static bl_status_t balance(const bl_schedule_t *schedule, uint32_t stage, uint32_t own, bl_balance_result_t *result,
                           bl_error_t *err) {
  uint32_t slots[STAGES_MAX], lent[STAGES_MAX];
  uint16_t reach[STAGES_MAX * STAGES_MAX];
  assert_int_equal(bl_schedule_peak_slots(schedule, slots), BL_OK);
  slots[stage] = own;
  for (uint32_t s = 0; s < schedule->stages; s++) {
    lent[s] = BLOCKS_MAX;
    reach[s] = (uint16_t)((s + 1) % schedule->stages);
  }
  const bl_balance_request_t request = {
      .own = slots, .lent = lent, .stores = schedule->stages, .reach = reach, .reach_count = 1};
  return bl_balance(schedule, &request, result, err);
}

// What no plan can do without: the blocks that operation `index` uses, those between their I and W, and the one that the
// operation before has made. With `beside`, loads that end before their backward begins, the block that is used next too.
static uint32_t needed_at(const bl_op_list_t *list, uint32_t index, const bl_schedule_t *schedule, bool beside) {
  bool held[BLOCKS_MAX] = {false};
  uint32_t count = 0;
  for (uint32_t i = 0; i <= index + 1 && i < list->count; i++) {
    const bl_op_t op = list->ops[i];
    const size_t block = bl_schedule_block(schedule, op);
    const bool starts = bl_op_type_starts_backward((bl_op_type_t)op.type),
               ends = bl_op_type_ends_block((bl_op_type_t)op.type);
    const bool counts =
        i == index || (i == index + 1 ? beside && starts : (starts && !ends) || (i + 1 == index && op.type == BL_OP_F));
    held[block] = counts || (held[block] && !(ends && i < index));
  }
  for (uint32_t block = 0; block < BLOCKS_MAX; block++) {
    count += held[block];
  }
  return count;
}

static uint32_t needed(const bl_schedule_t *schedule, uint32_t stage, bool beside) {
  uint32_t most = 0;
  assert_in_range(bl_schedule_block_count(schedule), 1, BLOCKS_MAX);
  for (uint32_t i = 0; i < schedule->lists[stage].count; i++) {
    const uint32_t here = needed_at(&schedule->lists[stage], i, schedule, beside);
    most = here > most ? here : most;
  }
  return most;
}

// Loads stand before their backward or before the operation in front of it.
static uint32_t count_late(const bl_op_list_t *list) {
  uint32_t late = 0;
  for (size_t i = 0; i < list->count; i++) {
    if (list->ops[i].type != BL_OP_L) {
      continue;
    }
    uint32_t computing = 0;
    size_t at = i + 1;
    for (;; at++) {
      const bl_op_t op = list->ops[at];
      computing += bl_op_type_computes((bl_op_type_t)op.type);
      if (bl_op_type_starts_backward((bl_op_type_t)op.type) && op.virtual_stage == list->ops[i].virtual_stage &&
          op.micro_batch == list->ops[i].micro_batch && op.slice == list->ops[i].slice) {
        break;
      }
    }
    assert_in_range(computing, 1, 2);
    late += computing == 1;
  }
  return late;
}

static void check_plans(const bl_balance_result_t *result, uint32_t stage, uint32_t own) {
  const bl_schedule_t *schedule = result->schedule;
  bl_stage_plan_t plans[STAGES_MAX];
  uint32_t peaks[STAGES_MAX];
  bl_error_t err;
  if (bl_schedule_validate(schedule, NULL, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(bl_schedule_peak_slots(schedule, peaks), BL_OK);
  assert_in_range(peaks[stage], 0, own);
  assert_int_equal(count_late(&schedule->lists[stage]), result->late[stage]);
  for (uint32_t s = 0; s < schedule->stages; s++) {
    const bl_plan_limits_t limits = {.slots = s == stage ? own : 0, .prefetch = 1};
    if (bl_stage_plan_init(schedule, s, limits, &plans[s], &err) != BL_OK) {
      fail_msg("%s", err.text);
    }
    assert_int_equal(plans[s].slots, peaks[s]);
  }
  if (bl_plan_check_deadlock(schedule, plans, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  for (uint32_t s = 0; s < schedule->stages; s++) {
    bl_stage_plan_cleanup(&plans[s]);
  }
}

// Every number of slots from none to what the stage holds without evictions. Returns the late loads of all.
static uint32_t check_stage(const bl_schedule_t *schedule, uint32_t stage) {
  const uint32_t least = needed(schedule, stage, false), enough = needed(schedule, stage, true);
  uint32_t peaks[STAGES_MAX], late = 0;
  assert_int_equal(bl_schedule_peak_slots(schedule, peaks), BL_OK);
  for (uint32_t own = 0; own <= peaks[stage]; own++) {
    bl_balance_result_t result;
    bl_error_t err;
    const bl_status_t status = balance(schedule, stage, own, &result, &err);
    if (status != (own < least ? BL_EXHAUSTED : BL_OK)) {
      fail_msg("%s, stage %u of %u: %u slots, at least %u: %s", schedule->name, stage, schedule->stages, own, least,
               status == BL_OK ? "works" : err.text);
    }
    if (status != BL_OK) {
      continue;
    }
    check_plans(&result, stage, own);
    if ((result.late[stage] > 0) != (own < enough)) {
      fail_msg("%s, stage %u of %u: %u late loads in %u slots, none needed from %u on", schedule->name, stage,
               schedule->stages, result.late[stage], own, enough);
    }
    late += result.late[stage];
    bl_balance_result_cleanup(&result);
  }
  return late;
}

// Two slots: late are the loads at the last stage, behind the last warm-up forward, and behind the last forward.
static void two_slots_are_enough_for_1f1b(void **state) {
  (void)state;
  bl_schedule_t *schedule = generate("1f1b", 4, 6);
  bl_balance_result_t result;
  bl_error_t err;
  if (balance(schedule, 0, 2, &result, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  expect_row(result.schedule, 0,
             "0F0 0E0@1 0F1 0E1@1 0F2 0E2@1 0F3 0L0@1 0E3@1 0B0 0L1@1 0F4 0E4@1 0B1 0L2@1 0F5 0E5@1 0B2 0L3@1 0L4@1 "
             "0B3 0L5@1 0B4 0B5");
  bl_balance_result_cleanup(&result);
  bl_schedule_destroy(schedule);
}

static void schedules_by_name(void **state) {
  (void)state;
  size_t count;
  uint32_t late = 0;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  for (size_t n = 0; n < count; n++) {
    for (uint32_t p = 2; p <= 8; p *= 2) {
      bl_schedule_t *schedule = generate(infos[n].name, p, 2 * p);
      for (uint32_t s = 0; s < p; s++) {
        late += check_stage(schedule, s);
      }
      bl_schedule_destroy(schedule);
    }
  }
  assert_in_range(late, 100, 1000000);
}

// ---- random orders

typedef struct order {
  bl_schedule_t *schedule;
  uint64_t key, drawn;
  bool splits;
  bool done[BLOCKS_MAX][BL_OP_TYPES];
} order_t;

static uint32_t draw(order_t *order, uint32_t bound) {
  return (uint32_t)bl_random_below(order->key, order->drawn++, bound);
}

static bool is_done(const order_t *order, bl_op_t op, bl_op_type_t type) {
  return order->done[bl_schedule_block(order->schedule, op)][type];
}

static bool can_run(const order_t *order, bl_op_t op) {
  bl_op_t wanted;
  if (is_done(order, op, (bl_op_type_t)op.type) || (op.type != BL_OP_F && !is_done(order, op, BL_OP_F)) ||
      (op.type == BL_OP_W && !is_done(order, op, BL_OP_I))) {
    return false;
  }
  return !bl__op_dependency(order->schedule, op, &wanted) || is_done(order, wanted, (bl_op_type_t)wanted.type);
}

// One of the operations that may come next, forwards first or not. False: all are done.
static bool next_op(order_t *order, bl_op_t *op) {
  static const bl_op_type_t split[] = {BL_OP_F, BL_OP_I, BL_OP_W}, fused[] = {BL_OP_F, BL_OP_B};
  const bl_op_type_t *types = order->splits ? split : fused;
  const uint32_t kinds = order->splits ? 3 : 2, first = draw(order, kinds);
  uint32_t found = 0;
  for (uint32_t k = 0; k < kinds && found == 0; k++) {
    for (uint32_t v = 0; v < order->schedule->virtual_stages; v++) {
      for (uint32_t i = 0; i < order->schedule->micro_batches; i++) {
        const bl_op_t one = {
            .type = (uint8_t)types[(first + k) % kinds], .virtual_stage = (uint16_t)v, .micro_batch = i};
        if (can_run(order, one) && draw(order, ++found) == 0) {
          *op = one;
        }
      }
    }
  }
  return found > 0;
}

static bl_schedule_t *random_order(uint64_t key) {
  static order_t order;
  bl_op_t op;
  order = (order_t){.key = key};
  const uint32_t stages = 2 + draw(&order, 3), chunks = 1 + draw(&order, 2);
  const bl_placement_t placement = draw(&order, 2) == 0 ? BL_PLACEMENT_LOOPED : BL_PLACEMENT_V;
  assert_int_equal(bl_schedule_create("random", placement, stages, chunks, 1 + draw(&order, 8), &order.schedule, NULL),
                   BL_OK);
  order.splits = draw(&order, 2) == 0;
  while (next_op(&order, &op)) {
    assert_int_equal(bl_schedule_append(order.schedule, order.schedule->stage_of[op.virtual_stage], op), BL_OK);
    bool *done = order.done[bl_schedule_block(order.schedule, op)];
    done[op.type] = true;
    done[BL_OP_I] = done[BL_OP_I] || op.type == BL_OP_B; // dependencies speak of I
  }
  return order.schedule;
}

static void random_orders(void **state) {
  (void)state;
  const uint64_t seed = test_seed(23);
  uint32_t late = 0;
  for (uint64_t n = 0; n < ORDERS; n++) {
    bl_schedule_t *schedule = random_order(seed + n);
    for (uint32_t s = 0; s < schedule->stages; s++) {
      late += check_stage(schedule, s);
    }
    bl_schedule_destroy(schedule);
  }
  assert_in_range(late, 100, 1000000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(two_slots_are_enough_for_1f1b),
      cmocka_unit_test(schedules_by_name),
      cmocka_unit_test(random_orders),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
