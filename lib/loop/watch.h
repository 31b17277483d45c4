// SPDX-License-Identifier: Apache-2.0
// Tells when a descriptor can be read or written. Lifetime and thread rules: loop.h.
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
// `events` also has both bits when the descriptor is broken or its other end gone: reading says how, and until it was
// read to that, or the watch is destroyed, this is told again.
typedef void (*bl_watch_fn)(bl_watch_t *watch, unsigned events, void *context);

// Tells nothing until bl_watch_set. BL_EXHAUSTED, BL_IO.
BL_MUST_USE bl_status_t bl_watch_create(bl_loop_t *loop, int fd, bl_watch_fn ready, void *context, bl_watch_t **watch,
                                        bl_error_t *err);
void bl_watch_destroy(bl_watch_t *watch); // NULL is fine
// What is told from now on; 0 is nothing. Setting it again to the same costs nothing.
void bl_watch_set(bl_watch_t *watch, unsigned events);

#endif
