// SPDX-License-Identifier: Apache-2.0
// Operations of the last step, as the stages recorded them.
//
// Thread: the driver's loop.
#ifndef BALLAST_DRIVER_TRACES_H
#define BALLAST_DRIVER_TRACES_H

#include "driver.h"

typedef struct bl__tracing {
  bl_stage_trace_t *stages; // [stage_count]
  uint64_t step;            // that they are of
  size_t open;              // answers still to come
  struct bl__trace_wait *waits;
} bl__tracing_t;

// True when the traces of the last step are here, or there is none; else collects them and pumps when they are.
bool bl__traces_ready(bl_driver_t *driver);
void bl__traces_answer(bl_driver_t *driver, const bl_error_t *err);
void bl__traces_cleanup(bl_driver_t *driver);

#endif
