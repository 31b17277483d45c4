// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: the position of an operation in an error message. It is given in terms that the reader
// knows: stage and index in the list, or row and column of the file that the operation was read from.
#ifndef BALLAST_SCHEDULE_LOCATED_H
#define BALLAST_SCHEDULE_LOCATED_H

#include "schedule/ir/validate.h"

#define BL__NOWHERE    UINT32_MAX
#define BL__PLACE_TEXT 64

// How positions are formatted. `at.index` is BL__NOWHERE for the list of a stage as a whole.
typedef struct bl__places {
  void (*say)(const void *context, bl_op_ref_t at, char text[BL__PLACE_TEXT]);
  const void *context;
} bl__places_t;

// Writes "stage 0, operation 3", or what `places` writes unless it is NULL. Returns `text`.
const char *bl__place_text(const bl__places_t *places, bl_op_ref_t at, char text[BL__PLACE_TEXT]);

// Finds `op` in the list of its stage; type I finds an I or a B. Returns false, with at->index BL__NOWHERE, if the list
// does not have it.
bool bl__op_find(const bl_schedule_t *schedule, bl_op_t op, bl_op_ref_t *at);

// Like bl_schedule_validate and bl_schedule_topological_order; `places` formats the positions in messages.
BL_MUST_USE bl_status_t bl__schedule_validate_at(const bl_schedule_t *schedule, bl_schedule_facts_t *facts,
                                                 const bl__places_t *places, bl_error_t *err);
BL_MUST_USE bl_status_t bl__schedule_topological_order_at(const bl_schedule_t *schedule, bl_op_ref_t *order,
                                                          const bl__places_t *places, bl_error_t *err);

#endif
