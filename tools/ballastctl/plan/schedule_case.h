// SPDX-License-Identifier: Apache-2.0
// A schedule as the flags of `ballastctl schedule` ask for it: generated or read, balanced, validated and timed.
#ifndef BALLAST_BALLASTCTL_SCHEDULE_CASE_H
#define BALLAST_BALLASTCTL_SCHEDULE_CASE_H

#include "ballastctl/plan/block_file.h"
#include "ballastctl/plan/schedule_limits.h"
#include "ballastctl/plan/schedule_request.h"

#include "schedule/balance/balance.h"
#include "schedule/balance/holdings.h"
#include "schedule/ir/validate.h"
#include "simulate/simulate.h"

typedef struct bl_ctl_schedule_case {
  bl_schedule_t *schedule;
  bl_ctl_block_file_t block;    // the building block that was given; block.times is NULL if there was none
  bl_balance_result_t balanced; // its schedule is the one above
  uint32_t cap;                 // slots to which it is balanced; 0: it is not
  bl_schedule_facts_t facts;
  bl_costs_t costs;
  bl_ctl_limits_t limits;        // of --memory
  bl_chunk_costs_t *chunk_costs; // what costs.chunks borrows
  double *copies;                // [stages * stages] of one evict or load; NULL: costs.path
  double *host_paths;            // [stages] of one evict or load at the host; NULL: costs.path
  bl_holdings_t holdings;        // of a schedule with host stores, else zeroed
  bl_simulation_t simulation;
} bl_ctl_schedule_case_t;

// Call bl_ctl_schedule_case_cleanup after errors too.
BL_MUST_USE bl_status_t bl_ctl_schedule_case_init(bl_ctl_schedule_case_t *shown, const bl_ctl_schedule_flags_t *flags,
                                                  bl_error_t *err);
void bl_ctl_schedule_case_cleanup(bl_ctl_schedule_case_t *shown);
// Blocks for which hosts must have room: of every stage the most that are away there at once.
uint32_t bl_ctl_schedule_case_at_hosts(const bl_ctl_schedule_case_t *shown);

// The timeline, as --svg asks for it.
BL_MUST_USE bl_status_t bl_ctl_schedule_case_draw(const bl_ctl_schedule_case_t *shown,
                                                  const bl_ctl_schedule_flags_t *flags, bl_error_t *err);

#endif
