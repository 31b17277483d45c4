// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: one memory limit for all devices together. The order is searched with limits that rise or
// fall along the stages: stage s is heavy and stage p-1-s light, so that balancing them in pairs (balance.h) brings
// both down to the limit. Each pair loses one block, because the light stage must lend one slot more than the excess.
// With a host (request.hosted) the limit is what a device keeps: all stages may be heavier, as long as a copy
// (costs.path) takes no longer than a forward.
#ifndef BALLAST_SCHEDULE_POOLED_H
#define BALLAST_SCHEDULE_POOLED_H

#include "schedule/generate/generators.h"

// Replaces *schedule if an order found with other limits ends earlier. `generate` found *schedule on `placement` within
// request->memory, the same for all devices. The result can be balanced to the limit with pairs, or with a host, in
// both modes, or needs no balancing. `request` has its defaults filled in. BL_EXHAUSTED. The caller owns *schedule in
// any case.
BL_MUST_USE bl_status_t bl__pool(bl__generator_t *generate, bl_placement_t placement,
                                 const bl_schedule_request_t *request, bl_schedule_t **schedule);

#endif
