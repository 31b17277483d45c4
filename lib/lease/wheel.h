// SPDX-License-Identifier: Apache-2.0
// A hierarchical timer wheel (Varghese and Lauck, SOSP 1987): deadlines of up to `capacity` timers, numbered from 1,
// set and cleared in O(1). A timer fires at the first tick at or after its deadline: never early, less than a tick
// late.
//
//   bl_wheel_set(&wheel, session, deadline_ns);
//   while ((session = bl_wheel_pop(&wheel, now_ns)) != 0) expired(session);
//   sleep_until(bl_wheel_next_ns(&wheel));
//
// Thread: one owner. Memory: all allocated by init.
#ifndef BALLAST_LEASE_WHEEL_H
#define BALLAST_LEASE_WHEEL_H

#include "base/status.h"

#include <stdint.h>

#define BL_WHEEL_TICK_BITS 20 // a tick is 2^20 ns, about a millisecond
#define BL_WHEEL_TICK_NS   (UINT64_C(1) << BL_WHEEL_TICK_BITS)
#define BL_WHEEL_LEVELS    8 // of 64 slots each: 2^48 ticks, more than any uptime

typedef struct bl_wheel_timer {
  uint64_t tick;
  uint32_t next, previous; // within the slot's ring
  uint16_t slot;           // level * 64 + slot, plus 1; 0 when not set
} bl_wheel_timer_t;

typedef struct bl_wheel {
  bl_wheel_timer_t *timers; // [0] is unused
  uint64_t now;             // tick up to which everything has fired
  uint64_t occupied[BL_WHEEL_LEVELS];
  uint32_t first[BL_WHEEL_LEVELS][64];
} bl_wheel_t;

BL_MUST_USE bl_status_t bl_wheel_init(bl_wheel_t *wheel, uint32_t capacity, uint64_t now_ns);
void bl_wheel_cleanup(bl_wheel_t *wheel);

// Sets timer `id`, also if it is set already. A deadline that has passed fires at the next pop.
void bl_wheel_set(bl_wheel_t *wheel, uint32_t id, uint64_t deadline_ns);
void bl_wheel_clear(bl_wheel_t *wheel, uint32_t id); // also when it is not set
// Returns the next timer whose deadline has passed at `now_ns`, and clears it. 0: none. `now_ns` never goes back.
uint32_t bl_wheel_pop(bl_wheel_t *wheel, uint64_t now_ns);
// Returns when to call pop next: no timer is due before. UINT64_MAX: none is set.
uint64_t bl_wheel_next_ns(const bl_wheel_t *wheel);

#endif
