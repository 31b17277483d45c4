// SPDX-License-Identifier: Apache-2.0
#include "lease/crossing.h"

#include "schedule/balance/balance.h"
#include "schedule/generate.h"
#include "schedule/ir/dependency.h"
#include "schedule/ir/stage_plan.h"

#include <stdlib.h>
#include <string.h>

#define VIRTUAL_STAGES 8
#define MICRO_BATCHES  6

typedef struct order {
  uint64_t (*draw)(void *context, uint64_t bound);
  void *context;
  bl_schedule_t *schedule;
  bool splits; // I and W apart
  bool done[VIRTUAL_STAGES][MICRO_BATCHES][BL_OP_TYPES];
  uint16_t away[VIRTUAL_STAGES][MICRO_BATCHES]; // at the store of, BL_STORE_NONE: here
} order_t;

static uint64_t draw(order_t *order, uint64_t bound) {
  return order->draw(order->context, bound);
}

static void append(order_t *order, uint32_t stage, bl_op_t op) {
  if (bl_schedule_append(order->schedule, stage, op) != BL_OK) {
    abort();
  }
}

// ---- any order that is legal -------------------------------------------------------------------------------------------

static bool is_done(const order_t *order, bl_op_t op, bl_op_type_t type) {
  return order->done[op.virtual_stage][op.micro_batch][type];
}

static bool can_run(const order_t *order, bl_op_t op) {
  bl_op_t needed;
  if (is_done(order, op, (bl_op_type_t)op.type) || (op.type != BL_OP_F && !is_done(order, op, BL_OP_F)) ||
      (op.type == BL_OP_W && !is_done(order, op, BL_OP_I))) {
    return false;
  }
  return !bl__op_dependency(order->schedule, op, &needed) || is_done(order, needed, (bl_op_type_t)needed.type);
}

// The operations that may come next, of all stages.
static size_t runnable(const order_t *order, bl_op_t *ops) {
  static const bl_op_type_t split[] = {BL_OP_F, BL_OP_I, BL_OP_W}, fused[] = {BL_OP_F, BL_OP_B};
  size_t count = 0;
  for (uint16_t v = 0; v < order->schedule->virtual_stages; v++) {
    for (uint32_t i = 0; i < order->schedule->micro_batches; i++) {
      for (size_t k = 0; k < (order->splits ? 3u : 2u); k++) {
        const bl_op_t op = {
            .type = (uint8_t)(order->splits ? split[k] : fused[k]), .virtual_stage = v, .micro_batch = i};
        if (can_run(order, op)) {
          ops[count++] = op;
        }
      }
    }
  }
  return count;
}

// Blocks of the stage come and go before its next operation, which needs `needed` here.
static void move_blocks(order_t *order, uint32_t stage, bl_op_t needed) {
  const bl_schedule_t *schedule = order->schedule;
  for (uint16_t v = 0; v < schedule->virtual_stages; v++) {
    for (uint32_t i = 0; i < schedule->micro_batches && schedule->stage_of[v] == stage; i++) {
      bl_op_t op = {.virtual_stage = v, .micro_batch = i};
      uint16_t *away = &order->away[v][i];
      bool wanted = needed.type != BL_OP_F && needed.virtual_stage == v && needed.micro_batch == i;
      if (*away != BL_STORE_NONE && (wanted || draw(order, 8) == 0)) {
        op.type = BL_OP_L;
        op.store = *away;
        *away = BL_STORE_NONE;
        append(order, stage, op);
      } else if (*away == BL_STORE_NONE && !wanted && is_done(order, op, BL_OP_F) && !is_done(order, op, BL_OP_I) &&
                 draw(order, 4) == 0) {
        op.type = BL_OP_E;
        op.store = (uint16_t)((stage + 1 + draw(order, schedule->stages - 1)) % schedule->stages);
        *away = op.store;
        append(order, stage, op);
      }
    }
  }
}

static void make_order(order_t *order) {
  static const bl_placement_t placements[] = {BL_PLACEMENT_LOOPED, BL_PLACEMENT_V, BL_PLACEMENT_CONTIGUOUS,
                                              BL_PLACEMENT_OTHER};
  const uint32_t stages = 2 + (uint32_t)draw(order, CROSSING_DEVICES - 1), chunks = 1 + (uint32_t)draw(order, 2);
  const bl_placement_t placement = placements[draw(order, 4)];
  if (bl_schedule_create("crossing", placement, stages, chunks, 1 + (uint32_t)draw(order, MICRO_BATCHES),
                         &order->schedule, NULL) != BL_OK) {
    abort();
  }
  for (uint32_t v = 0; placement == BL_PLACEMENT_OTHER && v < order->schedule->virtual_stages; v++) {
    order->schedule->stage_of[v] = (uint16_t)draw(order, stages);
  }
  order->splits = draw(order, 2) == 0;
  memset(order->away, 0xff, sizeof order->away);
  bl_op_t ops[VIRTUAL_STAGES * MICRO_BATCHES * 3];
  for (size_t count; (count = runnable(order, ops)) > 0;) {
    const bl_op_t op = ops[draw(order, count)];
    const uint32_t stage = order->schedule->stage_of[op.virtual_stage];
    move_blocks(order, stage, op);
    append(order, stage, op);
    order->done[op.virtual_stage][op.micro_batch][op.type] = true;
    if (op.type == BL_OP_B) { // dependencies speak of I
      order->done[op.virtual_stage][op.micro_batch][BL_OP_I] = true;
    }
  }
}

// ---- a schedule that people use ----------------------------------------------------------------------------------------

static void make_balanced(order_t *order) {
  static const char *const names[] = {"1f1b", "gpipe", "eager-1f1b", "interleaved"};
  const uint32_t stages = 2 + (uint32_t)draw(order, CROSSING_DEVICES - 1);
  bl_schedule_request_t request = {
      .name = names[draw(order, 4)], .stages = stages, .micro_batches = stages * (1 + (uint32_t)draw(order, 3))};
  bl_schedule_t *plain;
  uint32_t peaks[CROSSING_DEVICES], own[CROSSING_DEVICES], lent[CROSSING_DEVICES];
  uint16_t reach[CROSSING_DEVICES * CROSSING_DEVICES];
  if (bl_schedule_generate(&request, &plain, NULL) != BL_OK || bl_plan_counts(plain, peaks, NULL, NULL) != BL_OK) {
    abort();
  }
  for (uint32_t s = 0; s < stages; s++) {
    own[s] = 2 + (uint32_t)draw(order, peaks[s]);
    lent[s] = 1 + (uint32_t)draw(order, 2 * peaks[s]);
    const uint32_t first = (uint32_t)draw(order, stages - 1);
    for (uint32_t k = 0; k + 1 < stages; k++) {
      reach[s * (stages - 1) + k] = (uint16_t)((s + 1 + (first + k) % (stages - 1)) % stages);
    }
  }
  bl_balance_request_t wanted = {.mode = draw(order, 2) == 0 ? BL_BALANCE_OVERLAP : BL_BALANCE_FEWEST,
                                 .own = own,
                                 .lent = lent,
                                 .stores = stages,
                                 .reach = reach,
                                 .reach_count = stages - 1};
  bl_balance_result_t result;
  while (bl_balance(plain, &wanted, &result, NULL) != BL_OK) { // in the end everybody has what the schedule needs
    for (uint32_t s = 0; s < stages; s++) {
      own[s]++;
    }
  }
  order->schedule = result.schedule;
  result.schedule = NULL;
  bl_balance_result_cleanup(&result);
  bl_schedule_destroy(plain);
}

bl_schedule_t *crossing_schedule(uint64_t (*draw_number)(void *context, uint64_t bound), void *context) {
  order_t order = {.draw = draw_number, .context = context};
  if (draw(&order, 4) == 0) {
    make_balanced(&order);
  } else {
    make_order(&order);
  }
  return order.schedule;
}
