// SPDX-License-Identifier: Apache-2.0
#include "parking/throttle.h"

uint64_t bl_throttle_take(bl_throttle_t *throttle, uint64_t now_ns, uint64_t bytes) {
  if (throttle->bytes_per_second == 0) {
    return now_ns;
  }
  uint64_t start_ns = throttle->free_ns > now_ns ? throttle->free_ns : now_ns;
  throttle->free_ns = start_ns + (uint64_t)((double)bytes * 1e9 / (double)throttle->bytes_per_second);
  return throttle->free_ns;
}
