// SPDX-License-Identifier: Apache-2.0
// The clocks. Deadlines, durations and traces use the monotonic clock only. Wall time is for people to read.
// Thread: any.
#ifndef BALLAST_SYS_CLOCK_H
#define BALLAST_SYS_CLOCK_H

#include <stdint.h>

#define BL_NS_PER_MS UINT64_C(1000000) // 64 bits, so that a product with a plain int does not wrap
#define BL_NS_PER_S  UINT64_C(1000000000)

uint64_t bl_clock_now_ns(void);  // CLOCK_MONOTONIC; the same for all processes of a machine
uint64_t bl_clock_wall_ns(void); // CLOCK_REALTIME, since 1970-01-01

#endif
