// SPDX-License-Identifier: Apache-2.0
// What the stores of a run hold, for the page: requested on demand, one call per store at a time. The last answers are
// kept.
// Thread: the loop's.
#ifndef BALLAST_DRIVER_PAGE_STORES_WIRE_H
#define BALLAST_DRIVER_PAGE_STORES_WIRE_H

#include "config/job.h"
#include "rpc/rpc.h"

#include <jansson.h>

typedef struct bl_page_stores bl_page_stores_t;

// All stores of the job. BL_EXHAUSTED, BL_INVALID.
BL_MUST_USE bl_status_t bl_page_stores_create(bl_rpc_t *rpc, const bl_job_t *job, bl_page_stores_t **stores,
                                              bl_error_t *err);
void bl_page_stores_destroy(bl_page_stores_t *stores); // NULL is fine

// Calls every store that has no call in flight.
void bl_page_stores_refresh(bl_page_stores_t *stores);
// Returns one object per store: {"store", "address", "reachable", "draining", "capacity_bytes", "held_bytes",
// "free_bytes", "in_flight_bytes", "leases": {state: n}, "sessions", "error"}. The caller owns it.
json_t *bl_page_stores_json(const bl_page_stores_t *stores);

#endif
