// SPDX-License-Identifier: Apache-2.0
// A timer of the loop. Lifetime and thread rules: loop.h.
//
//   bl_timer_create(loop, on_tick, self, &timer, err);
//   bl_timer_start(timer, 100, 1000);   // after 100 ms, then every second
//   bl_timer_start(timer, 50, 0);       // restarts the timer: replaces the earlier start
//   bl_timer_destroy(timer);
#ifndef BALLAST_LOOP_TIMER_H
#define BALLAST_LOOP_TIMER_H

#include "loop/loop.h"

typedef struct bl_timer bl_timer_t;
typedef void (*bl_timer_fn)(bl_timer_t *timer, void *context);

BL_MUST_USE bl_status_t bl_timer_create(bl_loop_t *loop, bl_timer_fn fire, void *context, bl_timer_t **timer,
                                        bl_error_t *err);
void bl_timer_destroy(bl_timer_t *timer); // NULL is fine

// Fires once after `delay_ms` from now, then every `repeat_ms` unless that is 0.
void bl_timer_start(bl_timer_t *timer, uint64_t delay_ms, uint64_t repeat_ms);
void bl_timer_stop(bl_timer_t *timer);
bool bl_timer_is_active(const bl_timer_t *timer);

#endif
