// SPDX-License-Identifier: Apache-2.0
// The order of a schedule as JSON, for scripts.
#ifndef BALLAST_BALLASTCTL_ORDER_JSON_H
#define BALLAST_BALLASTCTL_ORDER_JSON_H

#include "schedule/ir/schedule.h"

#include <jansson.h>

// Returns a list of cells such as "0F3" per stage, including evictions, loads and recomputations.
json_t *bl_ctl_order_json(const bl_schedule_t *schedule);

#endif
