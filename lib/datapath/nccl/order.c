// SPDX-License-Identifier: Apache-2.0
#include "datapath/nccl/order.h"

#include <stdlib.h>

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

static int compare(const void *a, const void *b) {
  return bl_nccl_way_compare(a, b);
}

size_t bl_nccl_order(bl_nccl_way_t *ways, size_t count) {
  size_t kept = 0;
  if (count > 0) {
    qsort(ways, count, sizeof *ways, compare);
  }
  for (size_t i = 0; i < count; i++) {
    bool again = kept > 0 && bl_nccl_way_compare(&ways[i], &ways[kept - 1]) == 0;
    if (!again && ways[i].from != ways[i].to) {
      ways[kept++] = ways[i];
    }
  }
  return kept;
}
