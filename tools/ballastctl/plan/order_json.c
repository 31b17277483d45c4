// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/plan/order_json.h"

#include "schedule/ir/op.h"

json_t *bl_ctl_order_json(const bl_schedule_t *schedule) {
  json_t *order = json_array();
  for (uint32_t s = 0; s < schedule->stages; s++) {
    json_t *cells = json_array();
    for (size_t i = 0; i < schedule->lists[s].count; i++) {
      char cell[BL_OP_TEXT];
      json_array_append_new(cells,
                            json_string(bl_op_format_slice(schedule->lists[s].ops[i], schedule->slices > 1, cell)));
    }
    json_array_append_new(order, cells);
  }
  return order;
}
