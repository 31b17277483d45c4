// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: an order of micro-batches as one of slices of sequences (sliced.c).
#ifndef BALLAST_SCHEDULE_SLICED_H
#define BALLAST_SCHEDULE_SLICED_H

#include "schedule/ir/schedule.h"

// Both fill the lists of `sliced`, of m micro-batches, from those of `units`, with F, B, I and W alone, on the same placement.
// From slices x m units, backwards put off by forwards. BL_NOT_FOUND: stages would wait for ever; BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__schedule_cut(const bl_schedule_t *units, uint32_t slices, bl_schedule_t *sliced);
// From at least slices - 1 units more, put off by units. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__schedule_cut_by_units(const bl_schedule_t *units, uint32_t slices, bl_schedule_t *sliced);

#endif
