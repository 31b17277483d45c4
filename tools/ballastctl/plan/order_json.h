// SPDX-License-Identifier: Apache-2.0
// The order of a schedule as scripts read it.
#ifndef BALLAST_BALLASTCTL_ORDER_JSON_H
#define BALLAST_BALLASTCTL_ORDER_JSON_H

#include "schedule/ir/schedule.h"

#include <jansson.h>

// Per stage a list of cells such as "0F3", evictions, loads and recomputations among them.
json_t *bl_ctl_order_json(const bl_schedule_t *schedule);

#endif
