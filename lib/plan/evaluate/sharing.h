// SPDX-License-Identifier: Apache-2.0
// What copies of the model, on replicas and of two pipes, bring to each other in a step: weights before it, gradients after
// it (simulate/machine.h).
//
// On our executor, by the shares of model/shard.h: a rank gets in fp32 every weight of a chunk that another copy
// updates, and every other copy's gradient of what it updates itself. What the rank that gets most gets is counted: the
// receiver moves it, and all of them do so at once. On a cluster of GPUs: rings (Rajbhandari et al., arXiv 1910.02054,
// section 7): of P parameters 4 P (d - 1) / d bytes of gradients scattered, and as many in values of weights gathered;
// where the optimizer is not shared, gradients take both ways and no weights come.
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
  const bl_hardware_t *hardware; // of a cluster; NULL: our executor
  bl_parallel_t parallel;
} bl_sharing_request_t;

// Bytes per virtual stage, [virtual stages] each; with one copy none. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_sharing_bytes(const bl_sharing_request_t *request, double *gathered, double *reduced);

#endif
