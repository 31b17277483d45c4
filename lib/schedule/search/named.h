// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: what other names make of a request, for a search that is to be no slower than any of
// them within the same memory.
#ifndef BALLAST_SCHEDULE_NAMED_H
#define BALLAST_SCHEDULE_NAMED_H

#include "schedule/ir/request.h"

// Makes the orders of all names with one copy of the weights, whole sequences and up to two chunks a stage, each with the memory
// that is its default and the search of the request, and puts the one that ends the earliest before *t_end, of those that
// stay within `limits` [stages] of blocks, into `best`, two chunks a stage. One that cannot do so for its lower bound is not
// made. With request->keep_placement only those on a V are. `looped`: the whole search of grouped-interleaved within the limits has
// been done, with the largest groups that fit. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__take_named(const bl_schedule_request_t *request, const uint32_t *limits, bool looped,
                                       bl_schedule_t *best, double *t_end);

#endif
