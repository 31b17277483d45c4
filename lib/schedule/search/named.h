// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: the orders that other schedule names make of a request, for a search that must not be slower
// than any of them within the same memory.
#ifndef BALLAST_SCHEDULE_NAMED_H
#define BALLAST_SCHEDULE_NAMED_H

#include "schedule/ir/request.h"

// Makes the orders of all names with one copy of the weights, unsliced sequences and up to two chunks a stage, each
// with its default memory and the search effort of the request. Puts the fastest of those that end before *t_end and
// stay within `limits` [stages] of blocks into `best`, as two chunks a stage, and sets *t_end to its end. Does not make
// an order whose lower bound is not before *t_end; with request->keep_placement makes only those on a V. `looped`: the
// full search of grouped-interleaved within the limits was done, with the largest groups that fit. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl__take_named(const bl_schedule_request_t *request, const uint32_t *limits, bool looped,
                                       bl_schedule_t *best, double *t_end);

#endif
