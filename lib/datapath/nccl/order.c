// SPDX-License-Identifier: Apache-2.0
#include "datapath/nccl/order.h"

static uint32_t lower(const bl_nccl_way_t *way) {
  return way->from < way->to ? way->from : way->to;
}

static uint32_t higher(const bl_nccl_way_t *way) {
  return way->from < way->to ? way->to : way->from;
}

int bl_nccl_way_compare(const bl_nccl_way_t *a, const bl_nccl_way_t *b) {
  const uint32_t keys[3][2] = {{lower(a), lower(b)}, {higher(a), higher(b)}, {a->from, b->from}};
  for (int i = 0; i < 3; i++) {
    if (keys[i][0] != keys[i][1]) {
      return keys[i][0] < keys[i][1] ? -1 : 1;
    }
  }
  return 0;
}
