// SPDX-License-Identifier: Apache-2.0
// What copies of the model (replicas, and the two pipes of a schedule) exchange in a step: weights before it, gradients
// after it (simulate/machine.h).
//
// For our executor, by the messages of model/shard.h: a rank gets, in fp32, every weight of a chunk that another copy
// updates, and every other copy's gradient of what it updates itself. The count is that of the rank that receives the
// most, because the receiver moves the bytes and all of them do so at once. For a cluster of GPUs: rings (Rajbhandari
// et al., arXiv 1910.02054, section 7), with d - 1 hops each. Of P parameters, 4 P (d - 1) / d bytes of gradients are
// scattered, and P (d - 1) / d weights, in their value type, are gathered. If the optimizer is not sharded, gradients
// pass twice and no weights are sent.
//
// Pure. Thread: any.
#ifndef BALLAST_PLAN_SHARING_H
#define BALLAST_PLAN_SHARING_H

#include "plan/evaluate/hardware.h"
#include "schedule/ir/schedule.h"

typedef struct bl_sharing_request {
  const bl_schedule_t *schedule;
  const bl_model_t *model;
  const bl_chunk_span_t *spans;  // [virtual stages]
  const bl_hardware_t *hardware; // for a cluster; NULL: our executor
  bl_parallel_t parallel;
} bl_sharing_request_t;

// What a rank receives.
typedef struct bl_sharing {
  double bytes, messages;
} bl_sharing_t;

// Counts per virtual stage, [virtual stages] each; 0 with one copy. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_sharing_count(const bl_sharing_request_t *request, bl_sharing_t *gathered,
                                         bl_sharing_t *reduced);

#endif
