// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/schedule: one limit of memory for all devices together. The order is searched with limits that
// rise or fall along the stages, a heavy stage s beside a light stage p-1-s, so that balancing them in pairs (balance.h)
// brings both down to the limit. Pairs lose one block each: a parked block's room is needed for one more than the excess.
// For a host (request.hosted) the limit is what a device keeps: all stages may be heavier, as long as a copy (costs.path) takes
// no longer than a forward.
#ifndef BALLAST_SCHEDULE_POOLED_H
#define BALLAST_SCHEDULE_POOLED_H

#include "schedule/generate/generators.h"

// *schedule was found by `generate` on `placement` within request->memory, for all devices alike: what is found with other
// limits replaces it where it ends earlier. What is returned can be balanced to the limit with pairs, or a host, in both modes, or needs
// no balancing. `request` has its defaults. BL_EXHAUSTED; *schedule stays the caller's.
BL_MUST_USE bl_status_t bl__pool(bl__generator_t *generate, bl_placement_t placement,
                                 const bl_schedule_request_t *request, bl_schedule_t **schedule);

#endif
