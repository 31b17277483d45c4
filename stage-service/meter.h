// SPDX-License-Identifier: Apache-2.0
// The metrics of a stage. Counters are updated at each event, gauges when metrics are collected.
// Thread: the loop's.
#ifndef BALLAST_STAGE_SERVICE_METER_H
#define BALLAST_STAGE_SERVICE_METER_H

#include "observe/registry.h"
#include "stage.h"

extern const bl_metric_row_t bl_meter_rows[];
extern const size_t bl_meter_row_count;

// Counts a run that has ended. Its trace is that of the last run.
void bl_meter_ran(bl_registry_t *registry, const bl_stage_t *stage, bl_stage_outcome_t outcome);
// Counts a commit. `ahead`: the step was applied before its commit arrived.
void bl_meter_committed(bl_registry_t *registry, const bl_stage_t *stage, bool ahead);
// Updates gauges.
void bl_meter_collect(bl_registry_t *registry, const bl_stage_t *stage);

#endif
