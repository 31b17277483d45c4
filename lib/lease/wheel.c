// SPDX-License-Identifier: Apache-2.0
#include "lease/wheel.h"

#include <stdbool.h>
#include <stdlib.h>

bl_status_t bl_wheel_init(bl_wheel_t *wheel, uint32_t capacity, uint64_t now_ns) {
  bl_wheel_timer_t *timers = calloc((size_t)capacity + 1, sizeof *timers);
  if (timers == NULL) {
    return BL_EXHAUSTED;
  }
  *wheel = (bl_wheel_t){.timers = timers, .now = now_ns >> BL_WHEEL_TICK_BITS};
  return BL_OK;
}

void bl_wheel_cleanup(bl_wheel_t *wheel) {
  free(wheel->timers);
  *wheel = (bl_wheel_t){0};
}

// A timer is kept at the level of the highest digit (base 64) in which its tick differs from now, in the slot of its
// own digit there. So all timers of a level are in slots above now's digit, except those due now, at level 0.
static void hang(bl_wheel_t *wheel, uint32_t id) {
  bl_wheel_timer_t *timer = &wheel->timers[id];
  uint64_t tick = timer->tick > wheel->now ? timer->tick : wheel->now;
  uint64_t difference = tick ^ wheel->now;
  unsigned level = difference == 0 ? 0 : (63 - (unsigned)__builtin_clzll(difference)) / 6;
  unsigned slot = (unsigned)(tick >> (6 * level)) & 63;
  uint32_t first = wheel->first[level][slot];
  timer->next = first;
  timer->previous = 0;
  if (first != 0) {
    wheel->timers[first].previous = id;
  }
  wheel->first[level][slot] = id;
  wheel->occupied[level] |= UINT64_C(1) << slot;
  timer->slot = (uint16_t)(level * 64 + slot + 1);
}

void bl_wheel_set(bl_wheel_t *wheel, uint32_t id, uint64_t deadline_ns) {
  bl_wheel_clear(wheel, id);
  uint64_t tick = (deadline_ns >> BL_WHEEL_TICK_BITS) + ((deadline_ns & (BL_WHEEL_TICK_NS - 1)) != 0 ? 1 : 0);
  wheel->timers[id].tick = tick;
  hang(wheel, id);
}

void bl_wheel_clear(bl_wheel_t *wheel, uint32_t id) {
  bl_wheel_timer_t *timer = &wheel->timers[id];
  if (timer->slot == 0) {
    return;
  }
  unsigned level = (timer->slot - 1u) / 64, slot = (timer->slot - 1u) % 64;
  if (timer->previous != 0) {
    wheel->timers[timer->previous].next = timer->next;
  } else {
    wheel->first[level][slot] = timer->next;
  }
  if (timer->next != 0) {
    wheel->timers[timer->next].previous = timer->previous;
  }
  if (wheel->first[level][slot] == 0) {
    wheel->occupied[level] &= ~(UINT64_C(1) << slot);
  }
  timer->slot = 0;
}

// Finds the lowest level with a timer, and its first slot: these timers are due next. False: no timer is set.
static bool find_next(const bl_wheel_t *wheel, unsigned *level, unsigned *slot) {
  for (unsigned i = 0; i < BL_WHEEL_LEVELS; i++) {
    if (wheel->occupied[i] != 0) {
      *level = i;
      *slot = (unsigned)__builtin_ctzll(wheel->occupied[i]);
      return true;
    }
  }
  return false;
}

// Returns the first tick that a slot of a level covers, if it is ahead of now.
static uint64_t first_tick(const bl_wheel_t *wheel, unsigned level, unsigned slot) {
  uint64_t above = wheel->now >> (6 * level) >> 6 << 6;
  return (above | slot) << (6 * level);
}

uint32_t bl_wheel_pop(bl_wheel_t *wheel, uint64_t now_ns) {
  uint64_t goal = now_ns >> BL_WHEEL_TICK_BITS;
  unsigned level, slot;
  while (find_next(wheel, &level, &slot)) {
    uint64_t tick = first_tick(wheel, level, slot);
    if (tick > goal) {
      break;
    }
    wheel->now = tick > wheel->now ? tick : wheel->now;
    uint32_t id = wheel->first[level][slot];
    if (level == 0) {
      bl_wheel_clear(wheel, id);
      return id;
    }
    while ((id = wheel->first[level][slot]) != 0) { // to a lower level
      bl_wheel_clear(wheel, id);
      hang(wheel, id);
    }
  }
  // No occupied slot begins before the goal, so every timer keeps its level when the time moves there.
  wheel->now = goal > wheel->now ? goal : wheel->now;
  return 0;
}

uint64_t bl_wheel_next_ns(const bl_wheel_t *wheel) {
  unsigned level, slot;
  if (!find_next(wheel, &level, &slot)) {
    return UINT64_MAX;
  }
  return first_tick(wheel, level, slot) << BL_WHEEL_TICK_BITS;
}
