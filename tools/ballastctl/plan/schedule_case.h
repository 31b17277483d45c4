// SPDX-License-Identifier: Apache-2.0
// The schedule that the flags of `ballastctl schedule` ask for: generated or read, balanced, validated and timed.
#ifndef BALLAST_BALLASTCTL_SCHEDULE_CASE_H
#define BALLAST_BALLASTCTL_SCHEDULE_CASE_H

#include "ballastctl/plan/block_file.h"
#include "ballastctl/plan/schedule_limits.h"
#include "ballastctl/plan/schedule_request.h"

#include "schedule/balance/balance.h"
#include "schedule/balance/device_slots.h"
#include "schedule/ir/validate.h"
#include "simulate/simulate.h"

typedef struct bl_ctl_schedule_case {
  bl_schedule_t *schedule;
  bl_ctl_block_file_t block;    // building block that was given; block.times is NULL if there was none
  bl_balance_result_t balanced; // owns the balanced schedule
  uint32_t cap;                 // of the balanced schedule, in slots; 0: not balanced
  bl_schedule_facts_t facts;
  bl_costs_t costs;
  bl_ctl_limits_t limits;         // of --memory
  bl_chunk_costs_t *chunk_costs;  // borrowed by costs.chunks
  double *copies;                 // [stages * stages] duration of one evict or load; NULL: costs.path
  double *host_paths;             // [stages] duration of one evict or load at the host; NULL: costs.path
  bl_device_slots_t device_slots; // if there are host stores, else zeroed
  bl_simulation_t simulation;
} bl_ctl_schedule_case_t;

// Call bl_ctl_schedule_case_cleanup after errors too.
BL_MUST_USE bl_status_t bl_ctl_schedule_case_init(bl_ctl_schedule_case_t *shown, const bl_ctl_schedule_flags_t *flags,
                                                  bl_error_t *err);
void bl_ctl_schedule_case_cleanup(bl_ctl_schedule_case_t *shown);
// Returns the number of blocks that hosts need memory for: the sum over stages of the maximum at a host at once.
uint32_t bl_ctl_schedule_case_at_hosts(const bl_ctl_schedule_case_t *shown);

// Draws the timeline for --svg.
BL_MUST_USE bl_status_t bl_ctl_schedule_case_draw(const bl_ctl_schedule_case_t *shown,
                                                  const bl_ctl_schedule_flags_t *flags, bl_error_t *err);

#endif
