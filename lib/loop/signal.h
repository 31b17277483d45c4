// SPDX-License-Identifier: Apache-2.0
// A signal of the process (SIGINT, SIGTERM, ...) as an event of the loop. Lifetime and thread rules: loop.h.
#ifndef BALLAST_LOOP_SIGNAL_H
#define BALLAST_LOOP_SIGNAL_H

#include "loop/loop.h"

typedef struct bl_signal bl_signal_t;
typedef void (*bl_signal_fn)(bl_signal_t *signal, int number, void *context);

// Replaces the signal's default action: until bl_signal_destroy, each delivery calls `fire` on the loop. BL_INVALID:
// the signal cannot be caught.
BL_MUST_USE bl_status_t bl_signal_create(bl_loop_t *loop, int number, bl_signal_fn fire, void *context,
                                         bl_signal_t **signal, bl_error_t *err);
void bl_signal_destroy(bl_signal_t *signal); // NULL is fine

#endif
