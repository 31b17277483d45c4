// SPDX-License-Identifier: Apache-2.0
// What one way of running a job would take: its schedule on a machine whose costs come from a profile or, without one,
// from a device's model. What `ballastctl simulate` prints, what runs compare themselves with, and what the planner
// ranks.
//
//   bl_trial_t trial;
//   bl_trial_request_t request = {.schedule = plan.schedule, .model = &model, .spans = spans, .options = layout,
//                                 .profile = &profile};
//   if (bl_trial_run(&request, &trial, &err) == BL_OK) {
//     ... trial.step, trial.simulation.peak_slots[stage], trial.stages[stage].evict_bytes ...
//     bl_trial_cleanup(&trial);
//   }
//
// The step is the simulated time from the first operation to the last, plus what lies between steps: votes, commit and
// optimizer, from the profile or the device's model. With replicas weights are gathered before a chunk's first
// operation and gradients added up after its last one, which is part of the simulated time (plan/evaluate/sharing.h). A
// fused B releases the stage before it when its I has ended, and stages that outnumber the cores of a profile's machine
// share them, as in the executor.
//
// Pure. Thread: any; a trial is read-only after it has run.
#ifndef BALLAST_PLAN_TRIAL_H
#define BALLAST_PLAN_TRIAL_H

#include "plan/candidate/placement.h"
#include "plan/evaluate/footprint.h"
#include "plan/evaluate/offload.h"
#include "plan/profile/profile.h"
#include "simulate/simulate.h"

typedef struct bl_trial_request {
  const bl_schedule_t *schedule; // with its evictions, loads and recomputations
  const bl_model_t *model;
  const bl_chunk_span_t *spans; // [virtual stages]
  bl_layout_options_t options;
  const bl_profile_t *profile;   // NULL: the device's model
  const char *profile_name;      // for messages; NULL: "given"
  const bl_hardware_t *hardware; // NULL with a profile
  bl_parallel_t parallel;        // data and shard with a profile, too
  const bl_nodes_t *nodes;       // of the stages on nodes; NULL: all on one, at hardware->intra_rate
  double update_rate;            // bytes per second between replicas; 0: hardware->inter_rate
  double host_rate; // bytes per second of a device's copies at a host store; 0: as the profile or the hardware says
  const uint32_t *host_links; // as in simulate/machine.h; NULL: a host store has one link
  uint32_t cores;             // that the stages share, whatever the profile says; 0: as it says
  bool optimizer_on_host;     // train.optimizer_memory: host; a profile's time between steps has it or not
  uint32_t threads;           // of a stage, where it is; 0: one
  double rate;                // bytes per second that no path to a store exceeds (balance.rate); 0: any
  bool replay;                // durations of the profile's recorded step in place of means: of the same order
} bl_trial_request_t;

typedef struct bl_trial_stage {
  double slot_bytes, evict_bytes; // of one block
  uint32_t evictions, loads;      // E and L of a step
  uint32_t recomputed; // R's of blocks that a policy gives up; those of pipeline.recompute are not among them
  double parameters;   // of a device's share
} bl_trial_stage_t;

typedef struct bl_trial {
  bl_simulation_t simulation;    // seconds
  bl_chunk_costs_t *costs;       // [virtual stages]; where sequences are in slices, of one on average
  bl_chunk_costs_t *slice_costs; // [virtual stages, slices]
  bl_trial_stage_t *stages;      // [simulation.stages]
  double overhead;               // seconds
  double step;                   // seconds: simulation.t_end + between
  bl_offload_t offload;          // of `between`, where the optimizer is on the host and without a profile
  double host_copy;              // seconds of the longest copy at a host store, alone on its link; 0: there is none
  uint32_t cores;                // that were shared; 0: none
} bl_trial_t;

// BL_INVALID: a profile that cannot be replayed on this schedule, a block beyond all memory, bad costs. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_trial_run(const bl_trial_request_t *request, bl_trial_t *trial, bl_error_t *err);
void bl_trial_cleanup(bl_trial_t *trial); // a zeroed one is fine

#endif
