// SPDX-License-Identifier: Apache-2.0
// What an optimizer in memory of the host (train.optimizer_memory: host) adds to a step: gradients that come to the host
// after the last operation, AdamW on the CPU and weights that go back. What hides behind operations is not counted: a
// layer's gradients leave as its last micro-batch completes them, and a tensor goes back while the next one is updated.
//
//   bl_offload_request_t request = {.schedule = schedule, .simulation = &simulation, .costs = costs, ...};
//   bl_offload_t offload = bl_offload_of(&request);
//   ... offload.landing + offload.update seconds after the last operation ...
//
// Rates are those of hardware.h: of data sheets and one measurement, none of them taken on a GPU.
//
// Pure. Thread: any.
#ifndef BALLAST_PLAN_OFFLOAD_H
#define BALLAST_PLAN_OFFLOAD_H

#include "plan/evaluate/hardware.h"
#include "simulate/simulate.h"

typedef struct bl_offload {
  double landing;    // seconds after the last operation until all gradients are on the host
  double update;     // seconds from then on: AdamW and weights, the longer of the two and what the other has left over
  double link_bytes; // that cross the link of a device to its host, both ways
  uint32_t stage;    // the slowest, whose numbers these are
} bl_offload_t;

typedef struct bl_offload_request {
  const bl_schedule_t *schedule;
  const bl_simulation_t *simulation; // of the schedule
  const bl_chunk_costs_t *costs;     // [virtual stages]
  const bl_model_t *model;
  const bl_chunk_span_t *spans; // [virtual stages]
  const bl_hardware_t *hardware;
  bl_parallel_t parallel;
  uint32_t threads; // of a stage (pipeline.threads); 0: one
} bl_offload_request_t;

// hardware->host_source != NULL.
bl_offload_t bl_offload_of(const bl_offload_request_t *request);

#endif
