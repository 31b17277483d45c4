// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: groups of micro-batches that follow each other, each through all of its forwards before
// its backwards. The base orders for where nothing else fits in memory.
#ifndef BALLAST_SCHEDULE_GROUPS_H
#define BALLAST_SCHEDULE_GROUPS_H

#include "schedule/ir/schedule.h"

// Replaces the lists of `base`, of one pipe, by groups of `group` micro-batches, backward split. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__groups_fill(bl_schedule_t *base, uint32_t group);

#endif
