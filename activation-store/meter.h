// SPDX-License-Identifier: Apache-2.0
// The metrics of a store: times are observed as calls end, all else is read from the lease table and the data
// connections when somebody asks. Thread: the loop's.
#ifndef BALLAST_ACTIVATION_STORE_METER_H
#define BALLAST_ACTIVATION_STORE_METER_H

#include "connections.h"
#include "lease/table.h"
#include "observe/registry.h"

extern const bl_metric_row_t bl_meter_rows[];
extern const size_t bl_meter_row_count;

typedef enum bl_meter_call { BL_METER_RESERVE, BL_METER_EVICT, BL_METER_LOAD, BL_METER_RELEASE } bl_meter_call_t;
// A call of a holder was answered, `began_ns` being when it came. `registry` NULL: nobody measures.
void bl_meter_answered(bl_registry_t *registry, bl_meter_call_t call, uint64_t began_ns);
// Brings everything else up to date.
void bl_meter_collect(bl_registry_t *registry, bl_lease_table_t *table, const bl_connections_counters_t *data);

#endif
