// SPDX-License-Identifier: Apache-2.0
// A prepared plan: the operation list one stage follows for one kind of run, checked against what the stage has.
//
// Thread: made and destroyed on the loop's thread; read-only in between, also on the compute thread.
#ifndef BALLAST_EXECUTOR_PLAN_H
#define BALLAST_EXECUTOR_PLAN_H

#include "base/error.h"
#include "schedule/ir/schedule.h"
#include "schedule/ir/slots.h"
#include "step/record.h"

#include <stdint.h>

typedef struct bl_executor_plan {
  uint64_t version;
  uint64_t digest;
  bl_run_kind_t kind;
  bl_schedule_t *schedule; // of all stages
  bl_stage_plan_t stage;   // what this one does
} bl_executor_plan_t;

// What a plan may use: the stage's slots, and receives of activations posted one operation early, so that they overlap
// with compute.
bl_plan_limits_t bl_executor_plan_limits(uint32_t slots);

typedef struct bl_executor_plan_request {
  uint64_t version, digest;
  bl_run_kind_t kind;
  uint64_t policy, follows; // as in bl_plan_record_t
  uint64_t reservation;     // not 0: the same as of an earlier request for the same plan, and stores are not waited for
  const char *csv;          // schedule of all stages, with the mode of its transfers
  size_t csv_bytes;
  uint32_t stage;
  const bl_schedule_t *configured; // the job's schedule: placement must agree
  uint32_t slots, edges;           // what the stage has
  uint32_t pages, page_gradients;  // of its KV cache
  uint32_t hosts;                  // host stores that a plan may name (job/hosts.h)
  bool parks;                      // it has where evicted blocks go (executor/parking.h)
  bool recomputes;                 // its workspace has room for a forward that keeps nothing (BL_RECOMPUTE_FULL)
} bl_executor_plan_request_t;

// BL_INVALID: not a schedule, or not one for these stages; BL_UNAVAILABLE: it evicts, and there is nowhere to;
// BL_EXHAUSTED: needs more slots or edge buffers than there are; BL_UNIMPLEMENTED: an operation that this version does
// not run. On failure nothing is made.
BL_MUST_USE bl_status_t bl_executor_plan_create(const bl_executor_plan_request_t *request, bl_executor_plan_t **plan,
                                                bl_error_t *err);
void bl_executor_plan_destroy(bl_executor_plan_t *plan); // NULL is fine

#endif
