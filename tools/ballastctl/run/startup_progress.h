// SPDX-License-Identifier: Apache-2.0
// Reports what a run waits for before its first step, so that the terminal does not stay silent, and from then on a
// driver that does not answer. From 2 s on it asks the driver every 2 s, and reports each new answer, or that there was
// none for 6 s.
//
//   bl_ctl_startup_progress_create(loop, driver, pid, tell, context, &startup, err); // begins
//   bl_ctl_startup_progress_begun(startup);                                          // the run has begun
//   bl_ctl_startup_progress_end(startup);                                            // the run has ended
//   bl_ctl_startup_progress_destroy(startup);                                        // after the driver's client
//
// Thread: the loop's.
#ifndef BALLAST_BALLASTCTL_STARTUP_PROGRESS_H
#define BALLAST_BALLASTCTL_STARTUP_PROGRESS_H

#include "ballastctl/inspect/driver_wire.h"

typedef struct bl_ctl_startup_progress bl_ctl_startup_progress_t;

typedef void (*bl_ctl_tell_fn)(const char *text, void *context); // "waiting for stage 1 (...) to come up: ..."

// `driver` is borrowed until bl_ctl_startup_progress_end was called and the driver's client is destroyed. `driver_pid`:
// 0 if another process started it.
BL_MUST_USE bl_status_t bl_ctl_startup_progress_create(bl_loop_t *loop, bl_ctl_driver_t *driver, int64_t driver_pid,
                                                       bl_ctl_tell_fn tell, void *context,
                                                       bl_ctl_startup_progress_t **startup, bl_error_t *err);
void bl_ctl_startup_progress_begun(bl_ctl_startup_progress_t *startup);
void bl_ctl_startup_progress_end(bl_ctl_startup_progress_t *startup);     // NULL is fine; may be called again
void bl_ctl_startup_progress_destroy(bl_ctl_startup_progress_t *startup); // NULL is fine

#endif
