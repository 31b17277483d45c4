// SPDX-License-Identifier: Apache-2.0
// Seconds that an optimizer in host memory (train.optimizer_memory: host) adds to a step: gradients that reach the host
// after the last operation, AdamW on the CPU, and weights that are sent back. What operations hide is not counted: a
// layer's gradients leave when its last micro-batch completes them, and a tensor is sent back while the next one is
// updated.
//
//   bl_offload_request_t request = {.schedule = schedule, .simulation = &simulation, .costs = costs, ...};
//   bl_offload_t offload = bl_offload_of(&request);
//   ... offload.landing + offload.update seconds after the last operation ...
//
// Rates are those of hardware.h: from data sheets and one measurement, none of them made on a GPU.
//
// Pure. Thread: any.
#ifndef BALLAST_PLAN_OFFLOAD_H
#define BALLAST_PLAN_OFFLOAD_H

#include "plan/evaluate/hardware.h"
#include "simulate/simulate.h"

typedef struct bl_offload {
  double landing; // seconds after the last operation until all gradients are on the host
  double update; // seconds after that: the longer one of AdamW and sending weights, plus the unhidden rest of the other
  double link_bytes; // bytes over the link of a device to its host, in both directions
  uint32_t stage;    // the slowest stage, to which these numbers belong
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

// Precondition: hardware->host_source != NULL.
bl_offload_t bl_offload_of(const bl_offload_request_t *request);

#endif
