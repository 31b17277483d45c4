// SPDX-License-Identifier: Apache-2.0
// The operations of the last step, as recorded by the stages.
//
// Thread: the driver's loop.
#ifndef BALLAST_DRIVER_TRACES_H
#define BALLAST_DRIVER_TRACES_H

#include "driver.h"

typedef struct bl__tracing {
  bl_stage_trace_t *stages; // [stage_count]
  uint64_t step;            // to which they belong; another one may have run before they arrive
  size_t open;              // answers that have not arrived yet
  struct bl__trace_wait *waits;
} bl__tracing_t;

// Returns true if the traces of the last step have arrived, or there is no step. Otherwise collects them and pumps when
// they arrive.
bool bl__traces_ready(bl_driver_t *driver);
void bl__traces_answer(bl_driver_t *driver, const bl_error_t *err);
void bl__traces_cleanup(bl_driver_t *driver);

#endif
