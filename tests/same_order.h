// SPDX-License-Identifier: Apache-2.0
// Whether two schedules are the same, operation for operation.
#ifndef BALLAST_TESTS_SAME_ORDER_H
#define BALLAST_TESTS_SAME_ORDER_H

#include "schedule/ir/schedule.h"

static inline bool same_order(const bl_schedule_t *a, const bl_schedule_t *b) {
  bool same = a->stages == b->stages;
  for (uint32_t s = 0; s < a->stages && same; s++) {
    same = a->lists[s].count == b->lists[s].count;
    for (size_t i = 0; i < a->lists[s].count && same; i++) {
      const bl_op_t x = a->lists[s].ops[i], y = b->lists[s].ops[i];
      same = x.type == y.type && x.slice == y.slice && x.virtual_stage == y.virtual_stage &&
             x.micro_batch == y.micro_batch && x.store == y.store;
    }
  }
  return same;
}

#endif
