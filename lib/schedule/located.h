// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: validation that says where, so that the CSV reader can name row and column.
#ifndef BALLAST_SCHEDULE_LOCATED_H
#define BALLAST_SCHEDULE_LOCATED_H

#include "schedule/validate.h"

#define BL__NOWHERE UINT32_MAX

// As bl_schedule_validate, but the message starts with the cell and *where is the operation at fault; where->stage is
// BL__NOWHERE when it is not one operation.
BL_MUST_USE bl_status_t bl__schedule_validate_at(const bl_schedule_t *schedule, bl_schedule_facts_t *facts,
                                                 bl_op_ref_t *where, bl_error_t *err);

#endif
