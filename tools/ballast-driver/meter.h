// SPDX-License-Identifier: Apache-2.0
// The metrics of a run, from the driver's journal and views.
// Thread: the loop's.
#ifndef BALLAST_DRIVER_METER_H
#define BALLAST_DRIVER_METER_H

#include "driver.h"

#include "observe/registry.h"

extern const bl_metric_row_t bl_meter_rows[];
extern const size_t bl_meter_row_count;

// Adds what the journal has beyond *revision, updates *revision, and reads the present values. Call it whenever the
// journal has changed, so that no event is overwritten before it is counted. `driver` NULL: there is none yet.
void bl_meter_collect(bl_registry_t *registry, const bl_driver_t *driver, uint64_t *revision);

#endif
