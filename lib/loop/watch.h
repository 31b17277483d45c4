// SPDX-License-Identifier: Apache-2.0
// Notifies when a descriptor can be read or written. Lifetime and thread rules: loop.h.
//
//   bl_watch_create(loop, fd, on_ready, self, &watch, err);
//   bl_watch_set(watch, BL_WATCH_READ);
//   ... on_ready(watch, BL_WATCH_READ, self): read until it would block ...
//   bl_watch_destroy(watch);            // before the descriptor is closed
#ifndef BALLAST_LOOP_WATCH_H
#define BALLAST_LOOP_WATCH_H

#include "loop/loop.h"

#define BL_WATCH_READ  1u
#define BL_WATCH_WRITE 2u

typedef struct bl_watch bl_watch_t;
// `events` has both bits if the descriptor is broken or its peer has closed it: reading returns the cause. The callback
// fires repeatedly until the cause was read or the watch is destroyed.
typedef void (*bl_watch_fn)(bl_watch_t *watch, unsigned events, void *context);

// Reports nothing until bl_watch_set. BL_EXHAUSTED, BL_IO.
BL_MUST_USE bl_status_t bl_watch_create(bl_loop_t *loop, int fd, bl_watch_fn ready, void *context, bl_watch_t **watch,
                                        bl_error_t *err);
void bl_watch_destroy(bl_watch_t *watch); // NULL is fine
// Sets the events to report from now on; 0: none. Setting the same value costs nothing.
void bl_watch_set(bl_watch_t *watch, unsigned events);

#endif
