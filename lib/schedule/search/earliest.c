// SPDX-License-Identifier: Apache-2.0
#include "schedule/search/earliest.h"

#include <math.h>
#include <stdlib.h>

bl_status_t bl__earliest_init(bl__earliest_t *earliest, uint32_t stages) {
  uint32_t leaves = 2;
  while (leaves < stages) {
    leaves *= 2;
  }
  earliest->leaves = leaves;
  earliest->times = malloc(leaves * sizeof earliest->times[0]);
  earliest->winners = malloc(leaves * sizeof earliest->winners[0]);
  if (earliest->times == NULL || earliest->winners == NULL) {
    bl__earliest_cleanup(earliest);
    return BL_EXHAUSTED;
  }
  bl__earliest_fill(earliest, stages, INFINITY);
  return BL_OK;
}

void bl__earliest_cleanup(bl__earliest_t *earliest) {
  free(earliest->times);
  free(earliest->winners);
  *earliest = (bl__earliest_t){0};
}

void bl__earliest_fill(bl__earliest_t *earliest, uint32_t stages, double time) {
  for (uint32_t s = 0; s < earliest->leaves; s++) {
    earliest->times[s] = s < stages ? time : INFINITY;
  }
  for (uint32_t node = earliest->leaves; node-- > 1;) {
    uint32_t left = 2 * node < earliest->leaves ? earliest->winners[2 * node] : 2 * node - earliest->leaves;
    uint32_t right = 2 * node < earliest->leaves ? earliest->winners[2 * node + 1] : left + 1;
    earliest->winners[node] = earliest->times[left] <= earliest->times[right] ? left : right;
  }
}
