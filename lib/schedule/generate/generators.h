// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: the generators of orders that are known from the shape alone, and what they and those
// that search (search/searched.h) share.
#ifndef BALLAST_SCHEDULE_GENERATORS_H
#define BALLAST_SCHEDULE_GENERATORS_H

#include "schedule/ir/request.h"

// A generator fills the lists of `schedule`, which has its shape and placement. All defaults of `request` are filled
// in, costs are never NULL and checked.
typedef bl_status_t bl__generator_t(const bl_schedule_request_t *request, bl_schedule_t *schedule, bl_error_t *err);

bl__generator_t bl__generate_gpipe;
bl__generator_t bl__generate_1f1b;
bl__generator_t bl__generate_eager_1f1b;
bl__generator_t bl__generate_interleaved;
bl__generator_t bl__generate_dualpipe;
bl__generator_t bl__generate_dualpipe_v;

// A schedule of one pipe on `placement`, filled by `generate`, in which `request` has its defaults. BL_EXHAUSTED, and what
// `generate` says of the request.
BL_MUST_USE bl_status_t bl__generate_with(bl__generator_t *generate, bl_placement_t placement,
                                          const bl_schedule_request_t *request, bl_schedule_t **schedule,
                                          bl_error_t *err);

// Appends {verb, virtual_stage, micro_batch} to the stage that holds the virtual stage.
BL_MUST_USE bl_status_t bl__schedule_emit(bl_schedule_t *schedule, bl_verb_t verb, uint32_t virtual_stage,
                                          uint32_t micro_batch);

#endif
