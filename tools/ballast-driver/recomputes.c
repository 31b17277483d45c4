// SPDX-License-Identifier: Apache-2.0
#include "recomputes.h"

#define MINUTE_NS (60 * UINT64_C(1000000000))

// Clears minutes that are more than an hour old.
static void advance(bl_recomputes_t *recomputes, uint64_t now_ns) {
  uint64_t minute = now_ns / MINUTE_NS;
  for (unsigned i = 0; recomputes->minute < minute && i < BL_RECOMPUTES_MINUTES; i++) {
    recomputes->counts[++recomputes->minute % BL_RECOMPUTES_MINUTES] = 0;
  }
  recomputes->minute = minute > recomputes->minute ? minute : recomputes->minute;
}

void bl_recomputes_add(bl_recomputes_t *recomputes, uint64_t now_ns, uint64_t count) {
  advance(recomputes, now_ns);
  recomputes->counts[recomputes->minute % BL_RECOMPUTES_MINUTES] += count;
}

uint64_t bl_recomputes_count(bl_recomputes_t *recomputes, uint64_t now_ns) {
  advance(recomputes, now_ns);
  uint64_t count = 0;
  for (unsigned i = 0; i < BL_RECOMPUTES_MINUTES; i++) {
    count += recomputes->counts[i];
  }
  return count;
}
