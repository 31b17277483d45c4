// SPDX-License-Identifier: Apache-2.0
// The prediction of one candidate: its schedule on a machine whose costs come from a profile or, without one, from a
// device's model. `ballastctl simulate` prints it, runs compare themselves with it, and the planner ranks by it.
//
//   bl_trial_t trial;
//   bl_trial_request_t request = {.schedule = plan.schedule, .model = &model, .spans = spans, .options = layout,
//                                 .profile = &profile};
//   if (bl_trial_run(&request, &trial, &err) == BL_OK) {
//     ... trial.step, trial.simulation.peak_slots[stage], trial.stages[stage].evict_bytes ...
//     bl_trial_cleanup(&trial);
//   }
//
// The step is the simulated time from the first operation to the last, plus the overhead between steps: votes, commit
// and optimizer, from the profile or the device's model. With replicas the simulated time includes gathering weights
// before a chunk's first operation and reducing gradients after its last one (plan/evaluate/sharing.h). As in the
// executor, a fused B releases the stage before it when its I has ended, and stages that outnumber the cores of a
// profile's machine share them.
//
// Pure. Thread: any; a trial is read-only after it has run.
#ifndef BALLAST_PLAN_TRIAL_H
#define BALLAST_PLAN_TRIAL_H

#include "plan/candidate/nodes.h"
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
  bl_parallel_t parallel;        // data and shard apply with a profile, too
  const bl_nodes_t *nodes;       // of the stages; NULL: all on one node, at hardware->intra_rate
  double update_rate;            // bytes per second between replicas; 0: hardware->inter_rate
  double host_rate; // bytes per second of a device's copies at a host store; 0: by the profile or the hardware
  const uint32_t *host_links; // as in simulate/machine.h; NULL: a host store has one link
  uint32_t cores;             // shared by the stages, in place of the profile's number; 0: as the profile says
  bool optimizer_on_host; // train.optimizer_memory: host; with a profile it is part of the overhead or not, as recorded
  uint32_t threads;       // of a stage, for that optimizer; 0: one
  double rate;            // maximum bytes per second of a path to a store (balance.rate); 0: no limit
  bool replay;            // durations of the profile's recorded step, which has the same order, in place of means
} bl_trial_request_t;

typedef struct bl_trial_stage {
  double slot_bytes, evict_bytes; // of one block
  uint32_t evictions, loads;      // E and L in a step
  uint32_t recomputed;            // R's of blocks that a policy drops; those of pipeline.recompute are not included
  double parameters;              // share of one device
} bl_trial_stage_t;

typedef struct bl_trial {
  bl_simulation_t simulation;    // seconds
  bl_chunk_costs_t *costs;       // [virtual stages]; with slices, the mean of one slice
  bl_chunk_costs_t *slice_costs; // [virtual stages, slices]
  bl_trial_stage_t *stages;      // [simulation.stages]
  double overhead;               // seconds
  double step;                   // seconds: simulation.t_end + overhead
  bl_offload_t offload;          // part of `overhead`, with the optimizer on the host and without a profile
  double host_copy;              // seconds of the longest copy at a host store, alone on its link; 0: there is none
  uint32_t cores;                // shared by the stages; 0: not shared
} bl_trial_t;

// BL_INVALID: a profile that cannot be replayed on this schedule, a block that is larger than any memory, bad costs.
// BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_trial_run(const bl_trial_request_t *request, bl_trial_t *trial, bl_error_t *err);
void bl_trial_cleanup(bl_trial_t *trial); // a zeroed one is fine

#endif
