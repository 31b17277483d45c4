// SPDX-License-Identifier: Apache-2.0
// A prepared plan: the operation list that one stage follows for one kind of run, checked against what the stage has.
//
// Thread: created and destroyed on the loop's thread; read-only in between, also on the compute thread.
#ifndef BALLAST_EXECUTOR_PLAN_H
#define BALLAST_EXECUTOR_PLAN_H

#include "base/error.h"
#include "schedule/ir/schedule.h"
#include "schedule/ir/stage_plan.h"
#include "step/record.h"

#include <stdint.h>

typedef struct bl_executor_plan {
  uint64_t version;
  bl_run_kind_t kind;
  bl_schedule_t *schedule; // of all stages
  bl_stage_plan_t stage;   // operations of this stage
} bl_executor_plan_t;

// Returns what a plan may use: the stage's slots, and receives of activations posted one operation early, so that they
// overlap with compute.
bl_plan_limits_t bl_executor_plan_limits(uint32_t slots);

typedef struct bl_executor_plan_request {
  uint64_t version, digest;
  bl_run_kind_t kind;
  uint64_t policy, follows; // as in bl_plan_record_t
  // Not 0: the same number as in an earlier request for the same plan, and preparation does not wait for stores.
  uint64_t reservation;
  const char *csv; // schedule of all stages, with the mode of its transfers
  size_t csv_bytes;
  uint32_t stage;
  const bl_schedule_t *configured; // the job's schedule; the plan must have the same placement
  uint32_t slots, edges;           // that the stage has
  uint32_t pages, page_gradients;  // of its KV cache
  uint32_t hosts;                  // host stores that a plan may name (job/hosts.h)
  bool parks;                      // the stage has a parking (executor/parking.h)
  bool recomputes;                 // the workspace has space for a forward that keeps nothing (BL_RECOMPUTE_FULL)
} bl_executor_plan_request_t;

// BL_INVALID: not a schedule, or not one for these stages. BL_UNAVAILABLE: it evicts, but the stage has no parking.
// BL_EXHAUSTED: it needs more slots or edge buffers than there are. BL_UNIMPLEMENTED: an operation that this version
// does not run. On failure nothing is created.
BL_MUST_USE bl_status_t bl_executor_plan_create(const bl_executor_plan_request_t *request, bl_executor_plan_t **plan,
                                                bl_error_t *err);
void bl_executor_plan_destroy(bl_executor_plan_t *plan); // NULL is fine

#endif
