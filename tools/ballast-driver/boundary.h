// SPDX-License-Identifier: Apache-2.0
// Chooses what follows between two attempts: a step, a validation, a token, a pause, the end.
//
// Thread: the driver's loop.
#ifndef BALLAST_DRIVER_BOUNDARY_H
#define BALLAST_DRIVER_BOUNDARY_H

#include "driver.h"

// A validation on held-out data.
typedef struct bl__validation {
  uint64_t step;         // that was validated last
  uint64_t windows_seen; // its micro-batches that are done
  double sum;
  bool runs;
} bl__validation_t;

// What callers requested of the run.
typedef struct bl__control {
  bl_driver_held_fn held;
  void *held_context;
  int exit_code;
  uint64_t leave_by_ms;
  uint64_t stop_by_ms; // for a stop before this driver's first step; 0: none
  bool paused, stopping;
} bl__control_t;

void bl__boundary(bl_driver_t *driver);
void bl__decide(bl_driver_t *driver);
// Returns the call to make for the attempt that runs.
bl_stage_run_text_t bl__run_text(const bl_driver_t *driver, const bl_driver_request_t *request);

#endif
