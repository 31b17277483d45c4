// SPDX-License-Identifier: Apache-2.0
// Says what a run waits for before its first step, so that nobody sits before a silent terminal: from 2 s on the driver
// is asked every 2 s, and what it waits for is told when it is something new.
//
//   bl_ctl_startup_progress_create(loop, driver, tell, context, &patience, err);      // begins
//   bl_ctl_startup_progress_end(patience);                                            // the run has begun
//   bl_ctl_startup_progress_destroy(patience);                                        // after the driver's client
//
// Thread: the loop's.
#ifndef BALLAST_BALLASTCTL_STARTUP_PROGRESS_H
#define BALLAST_BALLASTCTL_STARTUP_PROGRESS_H

#include "ballastctl/inspect/driver_wire.h"

typedef struct bl_ctl_startup_progress bl_ctl_startup_progress_t;

typedef void (*bl_ctl_tell_fn)(const char *text, void *context); // "waiting for stage 1 (...) to come up: ..."

// `driver` is borrowed, until patience has ended and the driver's client is destroyed.
BL_MUST_USE bl_status_t bl_ctl_startup_progress_create(bl_loop_t *loop, bl_ctl_driver_t *driver, bl_ctl_tell_fn tell,
                                                       void *context, bl_ctl_startup_progress_t **startup,
                                                       bl_error_t *err);
void bl_ctl_startup_progress_end(bl_ctl_startup_progress_t *startup);     // NULL is fine; may be called again
void bl_ctl_startup_progress_destroy(bl_ctl_startup_progress_t *startup); // NULL is fine

#endif
