// SPDX-License-Identifier: Apache-2.0
// The metrics of a stage: what happened is added as it happens, what is true now is read when somebody asks.
// Thread: the loop's.
#ifndef BALLAST_STAGE_SERVICE_METER_H
#define BALLAST_STAGE_SERVICE_METER_H

#include "observe/registry.h"
#include "stage.h"

extern const bl_metric_row_t bl_meter_rows[];
extern const size_t bl_meter_row_count;

// A run has ended; its trace is that of the last run.
void bl_meter_ran(bl_registry_t *registry, const bl_stage_t *stage, bl_stage_outcome_t outcome);
// `ahead`: the step was applied before its commit came.
void bl_meter_committed(bl_registry_t *registry, const bl_stage_t *stage, bool ahead);
// Brings gauges up to date.
void bl_meter_collect(bl_registry_t *registry, const bl_stage_t *stage);

#endif
