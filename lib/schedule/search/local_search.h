// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: local search on the order of a schedule, by simulated annealing. It moves operations, mostly
// those on the critical path, past others of their stage, within the memory limits. Deterministic.
#ifndef BALLAST_SCHEDULE_LOCAL_SEARCH_H
#define BALLAST_SCHEDULE_LOCAL_SEARCH_H

#include "schedule/search/dispatch.h"

typedef enum bl__local_search_rounds {
  BL__LOCAL_SEARCH_FRESH,   // for an order that was not improved yet
  BL__LOCAL_SEARCH_FURTHER, // for one that was improved
  BL__LOCAL_SEARCH_LAST,    // for one whose end other orders were improved to as well
} bl__local_search_rounds_t;

// Changes the lists of `schedule`, which must be valid, within `limits` [stages] of blocks. Stops after timing
// `evaluations` orders or when the end is at most `goal`. Sets *t_end to the end of the best order, which it leaves in
// the lists. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__local_search(bl_schedule_t *schedule, const bl_costs_t *costs, const uint32_t *limits,
                                         bl__recompute_options_t recompute, bl__local_search_rounds_t rounds,
                                         size_t evaluations, double goal, double *t_end);

#endif
