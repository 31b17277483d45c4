// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: the generators of orders that follow from the shape alone, and functions that they share
// with the generators that search (search/searched.h).
#ifndef BALLAST_SCHEDULE_GENERATORS_H
#define BALLAST_SCHEDULE_GENERATORS_H

#include "schedule/ir/request.h"

// A generator fills the lists of `schedule`, which has its shape and placement. All defaults of `request` are filled
// in; its costs are checked and not NULL.
typedef bl_status_t bl__generator_t(const bl_schedule_request_t *request, bl_schedule_t *schedule, bl_error_t *err);

bl__generator_t bl__generate_gpipe;
bl__generator_t bl__generate_1f1b;
bl__generator_t bl__generate_eager_1f1b;
bl__generator_t bl__generate_interleaved;
bl__generator_t bl__generate_dualpipe;
bl__generator_t bl__generate_dualpipe_v;

// Creates a schedule of one pipe on `placement` and fills it with `generate`. `request` has its defaults filled in.
// BL_EXHAUSTED, and the errors of `generate`.
BL_MUST_USE bl_status_t bl__generate_with(bl__generator_t *generate, bl_placement_t placement,
                                          const bl_schedule_request_t *request, bl_schedule_t **schedule,
                                          bl_error_t *err);

// Appends {type, virtual_stage, micro_batch} to the stage that holds the virtual stage.
BL_MUST_USE bl_status_t bl__schedule_emit(bl_schedule_t *schedule, bl_op_type_t type, uint32_t virtual_stage,
                                          uint32_t micro_batch);

#endif
