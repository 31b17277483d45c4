// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: the generators behind bl_schedule_generate and what they share.
#ifndef BALLAST_SCHEDULE_GENERATORS_H
#define BALLAST_SCHEDULE_GENERATORS_H

#include "schedule/generate.h"

// A generator fills the lists of `schedule`, which has its shape and placement. All defaults of `request` are filled
// in, costs are never NULL and checked.
typedef bl_status_t bl__generator_t(const bl_schedule_request_t *request, bl_schedule_t *schedule, bl_error_t *err);

bl__generator_t bl__generate_gpipe;
bl__generator_t bl__generate_1f1b;
bl__generator_t bl__generate_eager_1f1b;
bl__generator_t bl__generate_interleaved;
bl__generator_t bl__generate_zero_bubble;
bl__generator_t bl__generate_zb_v;
bl__generator_t bl__generate_v_zb;
bl__generator_t bl__generate_v_half;
bl__generator_t bl__generate_v_min;
bl__generator_t bl__generate_chimera;
bl__generator_t bl__generate_dualpipe;
bl__generator_t bl__generate_dualpipe_v;
bl__generator_t bl__generate_seq1f1b;
bl__generator_t bl__generate_grouped_interleaved;
bl__generator_t bl__generate_1f1b_v;
bl__generator_t bl__generate_adaptive;

// bl_schedule_generate without the R's of a request that recomputes: they are counted, but not in the lists.
BL_MUST_USE bl_status_t bl__schedule_make(const bl_schedule_request_t *request, bl_schedule_t **schedule,
                                          bl_error_t *err);
// The fastest order found on a V of two chunks within `memory` device-micro-batches. BL_INVALID: below 1.
BL_MUST_USE bl_status_t bl__generate_v_within(const bl_schedule_request_t *request, double memory,
                                              bl_schedule_t *schedule, bl_error_t *err);

// With recomputation the orders of 1f1b and of the same cut in two chunks differ: one R makes both blocks before the
// backward, or each has its own directly before its part. Replaces *made, which has its R's, by the cut of what 1f1b is
// with its own, where that ends earlier within the memory of the request. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__adaptive_take_1f1b(const bl_schedule_request_t *request, bl_schedule_t **made);

// The timetable of grouped-interleaved on `base`, for any cost. BL_INVALID: a group of that size cannot run.
BL_MUST_USE bl_status_t bl__grouped_interleaved_base(bl_schedule_t *base, uint32_t group);

// Appends {verb, virtual_stage, micro_batch} to the stage that holds the virtual stage.
BL_MUST_USE bl_status_t bl__schedule_emit(bl_schedule_t *schedule, bl_verb_t verb, uint32_t virtual_stage,
                                          uint32_t micro_batch);

#endif
