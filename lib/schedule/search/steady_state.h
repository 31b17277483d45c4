// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: an order for more micro-batches from a good one for fewer. In the middle of a step
// stages repeat themselves: where from some moment on each of them runs every pass `period` times before it runs one
// once more, that piece of the order can be run again, with the following micro-batches, as often as needed.
#ifndef BALLAST_SCHEDULE_STEADY_STATE_H
#define BALLAST_SCHEDULE_STEADY_STATE_H

#include "schedule/generate/generators.h"
#include "schedule/search/portfolio.h"

// Has `generate` make what the request says for fewer micro-batches first, where that is worth it, and tries what it
// extends to as bases. `base` is scratch, of the placement that is wanted. BL_EXHAUSTED without memory.
BL_MUST_USE bl_status_t bl__portfolio_from_shorter(bl__portfolio_t *portfolio, bl__generator_t *generate,
                                                   const bl_schedule_request_t *request, bl_schedule_t *base);

#endif
