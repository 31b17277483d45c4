// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: local search on the order of a schedule, by simulated annealing: moves operations,
// mostly those on the critical path, past others of their stage, within the memory limits. Deterministic.
#ifndef BALLAST_SCHEDULE_POLISH_H
#define BALLAST_SCHEDULE_POLISH_H

#include "schedule/search/dispatch.h"

typedef enum bl__polish_rounds {
  BL__POLISH_FRESH,   // an order as it was made
  BL__POLISH_FURTHER, // one that was polished
  BL__POLISH_LAST,    // one that others were polished to, too
} bl__polish_rounds_t;

// Changes the lists of `schedule`, which must be valid, within `limits` [stages] of blocks. Stops after `evaluations`
// orders were timed or when t_end is at most `goal`. *t_end is the end of the order that is left. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__polish(bl_schedule_t *schedule, const bl_costs_t *costs, const uint32_t *limits,
                                   bl__again_t again, bl__polish_rounds_t rounds, size_t evaluations, double goal,
                                   double *t_end);

#endif
