// SPDX-License-Identifier: Apache-2.0
// Setup of stages that may hold anything: configure, connect, then plans. At the end of a run, their release. One call
// to every stage at a time.
//
// Thread: the driver's loop.
#ifndef BALLAST_DRIVER_SETUP_H
#define BALLAST_DRIVER_SETUP_H

#include "driver.h"

typedef enum {
  BL__ROUND_FORGET, // releases what stages hold of a run that starts over
  BL__ROUND_CONFIGURE,
  BL__ROUND_CONNECT,
  BL__ROUND_ABORT, // of a run that failed
  BL__ROUND_LEAVE, // release or stop
} bl__round_t;

typedef struct bl__setup {
  char *job_text, *own_order, *other_order; // configuration of the stages
  bl__round_t round;
  size_t round_open;  // answers still to come
  bool *round_retry;  // [stage_count]
  bool anew;          // a stage lacked this job's configuration, or all start over
  unsigned failures;  // of calls since one was answered
  bl_error_t failure; // the last one of them
} bl__setup_t;

BL_MUST_USE bl_status_t bl__setup_prepare(bl_driver_t *driver, bl_error_t *err);
void bl__setup_begin(bl_driver_t *driver);
void bl__setup_tick(bl_driver_t *driver);
void bl__setup_cleanup(bl_driver_t *driver);
// Begins to leave: aborts the attempt that runs (`abort`), then ends owned stages, or releases the job (`release`).
void bl__leave_begin(bl_driver_t *driver, bool abort, bool release);

// Ends setup: steps begin.
void bl__setup_end(bl_driver_t *driver);

#endif
