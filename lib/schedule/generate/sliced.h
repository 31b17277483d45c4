// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: an order of micro-batches as one of slices of sequences (sliced.c).
#ifndef BALLAST_SCHEDULE_SLICED_H
#define BALLAST_SCHEDULE_SLICED_H

#include "schedule/ir/schedule.h"

// Fills the empty lists of `sliced`, of m micro-batches, from those of `units`, of slices x m of them with F, B, I and W alone,
// on the same placement. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__schedule_cut(const bl_schedule_t *units, uint32_t slices, bl_schedule_t *sliced);

#endif
