// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: local search on the order of a schedule, by simulated annealing: moves operations,
// mostly those on the critical path, past others of their stage, within the memory limits. Deterministic.
#ifndef BALLAST_SCHEDULE_LOCAL_SEARCH_H
#define BALLAST_SCHEDULE_LOCAL_SEARCH_H

#include "schedule/search/dispatch.h"

typedef enum bl__local_search_rounds {
  BL__LOCAL_SEARCH_FRESH,   // an order as it was made
  BL__LOCAL_SEARCH_FURTHER, // one that was improved
  BL__LOCAL_SEARCH_LAST,    // one that others were improved to, too
} bl__local_search_rounds_t;

// Changes the lists of `schedule`, which must be valid, within `limits` [stages] of blocks. Stops after `evaluations`
// orders were timed or when t_end is at most `goal`. *t_end is the end of the order that is left. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__local_search(bl_schedule_t *schedule, const bl_costs_t *costs, const uint32_t *limits,
                                         bl__recompute_options_t recompute, bl__local_search_rounds_t rounds,
                                         size_t evaluations, double goal, double *t_end);

#endif
