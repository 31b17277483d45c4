// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: extends a good order for fewer micro-batches to more of them. In the middle of a step stages
// repeat themselves. If from some moment on every stage runs each pass `period` times before it runs any pass once
// more, that piece of the order can be repeated with the following micro-batches, as often as needed.
#ifndef BALLAST_SCHEDULE_STEADY_STATE_H
#define BALLAST_SCHEDULE_STEADY_STATE_H

#include "schedule/generate/generators.h"
#include "schedule/search/portfolio.h"

// Makes the schedule of the request for fewer micro-batches with `generate`, if that is worth it, and tries its
// extensions as bases. `base` is scratch with the wanted placement. BL_EXHAUSTED without memory.
BL_MUST_USE bl_status_t bl__portfolio_from_shorter(bl__portfolio_t *portfolio, bl__generator_t *generate,
                                                   const bl_schedule_request_t *request, bl_schedule_t *base);

#endif
