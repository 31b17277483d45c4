// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: the heuristic of the Zero Bubble paper (Qi et al., ICLR 2024, section 3.1) as a base order
// for the search.
#ifndef BALLAST_SCHEDULE_ZERO_BUBBLE_HEURISTIC_H
#define BALLAST_SCHEDULE_ZERO_BUBBLE_HEURISTIC_H

#include "schedule/ir/costs.h"
#include "schedule/ir/schedule.h"

// The heuristic's three switches; the paper tries all eight settings.
typedef struct bl__heuristic_switches {
  bool wait_for_first;  // the last warm-up F may not delay the first I
  bool prefer_backward; // skip an F that would delay the next I too much
  bool fill_gaps;       // a W fills a gap shorter than itself even if no other stage has a larger gap
} bl__heuristic_switches_t;

// Fills the lists of `base` (one chunk a stage) within limits[stages] in blocks, each at least 1. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__zero_bubble_heuristic(const bl_costs_t *costs, const uint32_t *limits,
                                                  bl__heuristic_switches_t switches, bl_schedule_t *base);

#endif
