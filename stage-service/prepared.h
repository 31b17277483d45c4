// SPDX-License-Identifier: Apache-2.0
// A plan made ready on a stage: its operations, the stage's own slots in it, and the store slots that it reserves at
// stores.
//
//   bl_prepared_create(engine, &request, &ahead, runtime, &prepared, err);  // slots are there, store slots are reserved
//   bl_prepared_use(prepared, engine);                       // from its first run on: no more slots than it needs
//   bl_prepared_destroy(prepared);                           // its store slots are free soon
//
// The next plan is made ready while the one before still counts: until that is destroyed, both have what they need.
//
// A step boundary does not wait for stores. A request with a reservation that finds some store not answering at once is
// refused with BL_DEADLINE, and reserving goes on beside the steps of the plan before (`ahead`); asked again under the
// same reservation it takes what has come of that.
//
// Thread: the compute thread, or any while nothing runs.
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

// Store slots that are being reserved for a plan that is not prepared yet. All zero: none.
typedef struct bl_reserving {
  uint64_t reservation, digest; // of the requests
  bl_store_parking_t *parking;
  uint32_t steady_slots; // those that stay whatever runs meanwhile: blocks may leave from them
  uint32_t runs;         // since it was asked for last
} bl_reserving_t;
// Gives them back.
void bl_reserving_drop(bl_reserving_t *ahead);

// Fills in what `request` lacks of the stage. As bl_executor_plan_create, bl_engine_hold_slots and
// bl_store_parking_await; `runtime` does the work of sessions with stores. On failure nothing has changed but `ahead`.
BL_MUST_USE bl_status_t bl_prepared_create(bl_engine_t *engine, const bl_executor_plan_request_t *request,
                                           bl_reserving_t *ahead, struct bl_client_runtime *runtime,
                                           bl_prepared_t **prepared, bl_error_t *err);
void bl_prepared_destroy(bl_prepared_t *prepared); // NULL is fine
void bl_prepared_use(const bl_prepared_t *prepared, bl_engine_t *engine);

#endif
