// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: turns an order of micro-batches into one of slices of sequences (sliced.c).
#ifndef BALLAST_SCHEDULE_SLICED_H
#define BALLAST_SCHEDULE_SLICED_H

#include "schedule/ir/schedule.h"

// Both functions fill the lists of `sliced`, which has m micro-batches, from those of `units`, which have only F, B, I
// and W, on the same placement.
// From slices x m units; delays backwards by forwards. BL_NOT_FOUND: stages would wait for ever; BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__schedule_cut(const bl_schedule_t *units, uint32_t slices, bl_schedule_t *sliced);
// From at least slices - 1 units more; delays backwards by units. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__schedule_cut_by_units(const bl_schedule_t *units, uint32_t slices, bl_schedule_t *sliced);

#endif
