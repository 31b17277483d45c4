// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: micro-batches in consecutive groups, each with all of its forwards before its backwards.
// These are the base orders for a search when nothing else fits in memory.
#ifndef BALLAST_SCHEDULE_GROUPS_H
#define BALLAST_SCHEDULE_GROUPS_H

#include "schedule/ir/schedule.h"

// Replaces the lists of `base`, of one pipe, by groups of `group` micro-batches, with split backwards. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__groups_fill(bl_schedule_t *base, uint32_t group);

#endif
