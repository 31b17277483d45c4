// SPDX-License-Identifier: Apache-2.0
// The metrics of a store. Times are recorded as calls end; everything else is read from the lease table and the data
// connections on request. Thread: the loop's.
#ifndef BALLAST_ACTIVATION_STORE_METER_H
#define BALLAST_ACTIVATION_STORE_METER_H

#include "connections.h"
#include "lease/table.h"
#include "observe/registry.h"

extern const bl_metric_row_t bl_meter_rows[];
extern const size_t bl_meter_row_count;

typedef enum bl_meter_call { BL_METER_RESERVE, BL_METER_EVICT, BL_METER_LOAD, BL_METER_RELEASE } bl_meter_call_t;
const char *bl_meter_call_name(unsigned call); // "reserve"; `call` is a bl_meter_call_t
// Records that a call of a holder that arrived at `began_ns` was answered. `registry` NULL: does nothing.
void bl_meter_answered(bl_registry_t *registry, bl_meter_call_t call, uint64_t began_ns);
// Updates everything else.
void bl_meter_collect(bl_registry_t *registry, bl_lease_table_t *table, const bl_connections_counters_t *data);

#endif
