// SPDX-License-Identifier: Apache-2.0
// A plan prepared on a stage: its operations, the stage's own slots in it, and the slots that it reserves at stores.
//
//   bl_prepared_create(engine, &request, &ahead, runtime, &prepared, err);  // slots exist, store slots are reserved
//   bl_prepared_use(prepared, engine);                       // from its first run on: no more slots than it needs
//   bl_prepared_destroy(prepared);                           // its store slots are free soon after
//
// The next plan is prepared while the current one is still in force. Until the current one is destroyed, both hold what
// they need.
//
// A step boundary does not wait for stores. If a request with a reservation finds a store that does not answer at once,
// it is refused with BL_DEADLINE, and reserving continues during the steps of the current plan (`ahead`). The next
// request with the same reservation takes what was reserved meanwhile.
//
// Thread: the compute thread, or any thread while nothing runs.
#ifndef BALLAST_STAGE_SERVICE_PREPARED_H
#define BALLAST_STAGE_SERVICE_PREPARED_H

#include "executor/engine.h"
#include "executor/plan.h"
#include "parking/store_parking.h"

typedef struct bl_prepared {
  bl_executor_plan_t *plan;
  bl_store_parking_t *parking; // NULL: nothing is evicted
  uint32_t own_slots;
} bl_prepared_t;

// Store slots that are being reserved for a plan that is not yet prepared. All zero: none.
typedef struct bl_reserving {
  uint64_t reservation, digest; // of the requests
  bl_store_parking_t *parking;
  uint32_t steady_slots; // own slots that stay whatever runs meanwhile, because blocks may leave from them
  uint32_t runs;         // runs since the last request
} bl_reserving_t;
// Releases them.
void bl_reserving_drop(bl_reserving_t *ahead);

// Adds what `request` lacks of the stage. Statuses as bl_executor_plan_create, bl_engine_resize_slots and
// bl_store_parking_await. `runtime` serves the sessions with stores. On failure only `ahead` has changed.
BL_MUST_USE bl_status_t bl_prepared_create(bl_engine_t *engine, const bl_executor_plan_request_t *request,
                                           bl_reserving_t *ahead, struct bl_client_runtime *runtime,
                                           bl_prepared_t **prepared, bl_error_t *err);
void bl_prepared_destroy(bl_prepared_t *prepared); // NULL is fine
void bl_prepared_use(const bl_prepared_t *prepared, bl_engine_t *engine);

#endif
