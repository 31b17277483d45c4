// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: the heuristic of ZB-V (Qi et al., ICLR 2024, section 6) as a base order for the
// search.
#ifndef BALLAST_SCHEDULE_ZERO_BUBBLE_V_H
#define BALLAST_SCHEDULE_ZERO_BUBBLE_V_H

#include "schedule/ir/costs.h"
#include "schedule/ir/schedule.h"

// Fills the lists of `base` (V-shaped, two chunks) within `limits` [stages] of blocks. With `fill_forward` or
// `fill_backward` a W may fill a gap before an F, or before an I of the second chunk, that is shorter than the W.
// BL_NOT_FOUND when the heuristic gets stuck, which it does below 2 p blocks or with few micro-batches; BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__zero_bubble_v(const bl_costs_t *costs, const uint32_t *limits, bool fill_forward,
                                          bool fill_backward, bl_schedule_t *base);

#endif
