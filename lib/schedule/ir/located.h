// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: where an operation stands, in the words of whoever reads the message: its stage and
// place in the list, or row and column of the file that it came from.
#ifndef BALLAST_SCHEDULE_LOCATED_H
#define BALLAST_SCHEDULE_LOCATED_H

#include "schedule/ir/validate.h"

#define BL__NOWHERE    UINT32_MAX
#define BL__PLACE_TEXT 64

// How places are said. `at.index` is BL__NOWHERE for the list of a stage as a whole.
typedef struct bl__places {
  void (*say)(const void *context, bl_op_ref_t at, char text[BL__PLACE_TEXT]);
  const void *context;
} bl__places_t;

// "stage 0, operation 3", or as `places` (may be NULL) says it. Returns `text`.
const char *bl__place_text(const bl__places_t *places, bl_op_ref_t at, char text[BL__PLACE_TEXT]);

// Where the list of its stage has `op`; with verb I its I or its B. False if it has not: at->index is BL__NOWHERE.
bool bl__op_find(const bl_schedule_t *schedule, bl_op_t op, bl_op_ref_t *at);

// As bl_schedule_validate and bl_schedule_topological_order, with places said by `places`.
BL_MUST_USE bl_status_t bl__schedule_validate_at(const bl_schedule_t *schedule, bl_schedule_facts_t *facts,
                                                 const bl__places_t *places, bl_error_t *err);
BL_MUST_USE bl_status_t bl__schedule_topological_order_at(const bl_schedule_t *schedule, bl_op_ref_t *order,
                                                          const bl__places_t *places, bl_error_t *err);

#endif
