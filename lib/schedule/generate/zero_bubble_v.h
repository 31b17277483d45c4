// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: the heuristic of ZB-V (Qi et al., ICLR 2024, section 6) as a base order for the search.
#ifndef BALLAST_SCHEDULE_ZERO_BUBBLE_V_H
#define BALLAST_SCHEDULE_ZERO_BUBBLE_V_H

#include "schedule/ir/costs.h"
#include "schedule/ir/schedule.h"

// Fills the lists of `base` (V-shaped, two chunks) within limits[stages] in blocks. With `fill_forward` a W may fill a
// shorter gap before an F, with `fill_backward` a shorter gap before an I of the second chunk. BL_NOT_FOUND if the
// heuristic gets stuck, as it does below 2 p blocks or with few micro-batches; BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__zero_bubble_v(const bl_costs_t *costs, const uint32_t *limits, bool fill_forward,
                                          bool fill_backward, bl_schedule_t *base);

#endif
