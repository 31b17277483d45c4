// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: one time per stage, and the stage whose time is the earliest, the first of several
// with the same. Changing a time takes log(stages).
#ifndef BALLAST_SCHEDULE_EARLIEST_H
#define BALLAST_SCHEDULE_EARLIEST_H

#include "base/error.h"

#include <stdint.h>

typedef struct bl__earliest {
  double *times;     // [leaves] infinite beyond the stages; to read
  uint32_t *winners; // [leaves] of the subtree below, [1] of all
  uint32_t leaves;   // a power of two
} bl__earliest_t;

// All times are infinite. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__earliest_init(bl__earliest_t *earliest, uint32_t stages);
void bl__earliest_cleanup(bl__earliest_t *earliest); // a zeroed one is fine
// All times are `time`.
void bl__earliest_fill(bl__earliest_t *earliest, uint32_t stages, double time);

static inline void bl__earliest_set(bl__earliest_t *earliest, uint32_t stage, double time) {
  earliest->times[stage] = time;
  uint32_t node = (earliest->leaves + stage) / 2, left = stage & ~1u, right = left + 1;
  for (;;) {
    uint32_t winner = earliest->times[left] <= earliest->times[right] ? left : right;
    earliest->winners[node] = winner;
    if (node == 1) {
      return;
    }
    left = (node & 1) == 0 ? winner : earliest->winners[node - 1];
    right = (node & 1) == 0 ? earliest->winners[node + 1] : winner;
    node /= 2;
  }
}

static inline uint32_t bl__earliest_stage(const bl__earliest_t *earliest) {
  return earliest->winners[1];
}

#endif
