// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: the start times of the operations of an order, each as early as the order allows. They equal
// those of lib/simulate for the same order without evictions. Passes that compare orders use them.
//
//   bl__timing_t timing;
//   status = bl__timing_init(&timing, schedule, &costs);
//   timing.starts[stage][operation]
//   bl__timing_cleanup(&timing);
#ifndef BALLAST_SCHEDULE_TIMING_H
#define BALLAST_SCHEDULE_TIMING_H

#include "schedule/ir/costs.h"
#include "schedule/ir/schedule.h"

typedef struct bl__timing {
  double **starts; // [stages][operations]
  double t_end;
} bl__timing_t;

// Precondition: the schedule is valid and evicts nothing. BL_EXHAUSTED without memory.
BL_MUST_USE bl_status_t bl__timing_init(bl__timing_t *timing, const bl_schedule_t *schedule, const bl_costs_t *costs);
void bl__timing_cleanup(bl__timing_t *timing); // a zeroed struct is fine
// Sets *t_end of such a schedule alone.
BL_MUST_USE bl_status_t bl__makespan(const bl_schedule_t *schedule, const bl_costs_t *costs, double *t_end);

#endif
