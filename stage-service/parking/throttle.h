// SPDX-License-Identifier: Apache-2.0
// A path of limited rate, to measure with a slower one: transfers follow each other, and each takes its bytes divided
// by the rate.
//
//   uint64_t over_ns = bl_throttle_take(&throttle, bl_clock_now_ns(), bytes);
//   ... move the bytes, then wait until over_ns ...
//
// Pure. Thread: one at a time.
#ifndef BALLAST_PARKING_THROTTLE_H
#define BALLAST_PARKING_THROTTLE_H

#include <stdint.h>

typedef struct bl_throttle {
  uint64_t bytes_per_second; // 0: no limit
  uint64_t free_ns;          // when the path is free again
} bl_throttle_t;

// Returns when a transfer that begins now is over at the earliest; `now_ns` if there is no limit.
uint64_t bl_throttle_take(bl_throttle_t *throttle, uint64_t now_ns, uint64_t bytes);

#endif
