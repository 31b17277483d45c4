// SPDX-License-Identifier: Apache-2.0
#include "sys/clock.h"

#include <time.h>

static uint64_t read_clock(clockid_t id) {
  struct timespec now;
  clock_gettime(id, &now);
  return (uint64_t)now.tv_sec * BL_NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t bl_clock_now_ns(void) {
  return read_clock(CLOCK_MONOTONIC);
}

uint64_t bl_clock_wall_ns(void) {
  return read_clock(CLOCK_REALTIME);
}
