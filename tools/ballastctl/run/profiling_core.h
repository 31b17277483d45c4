// SPDX-License-Identifier: Apache-2.0
// Shared by the files of a run's profiling.
//
//   profiling.c        predicts, and records what the driver reports
//   profiling_print.c  prints predicted and measured values, for people and for the report
//
// Thread: the loop's.
#ifndef BALLAST_BALLASTCTL_PROFILING_CORE_H
#define BALLAST_BALLASTCTL_PROFILING_CORE_H

#include "ballastctl/run/profiling.h"

#include "ballastctl/inspect/link_turns.h"
#include "ballastctl/plan/prediction.h"

#include "plan/profile/recorder.h"
#include "policy/policy.h"

#define BL__MEASURED_STEPS 1024 // maximum for medians
#define BL__TRACED_STEPS   20   // maximum number of steps whose traces are recorded

typedef struct bl__series {
  double values[BL__MEASURED_STEPS];
  size_t count;
} bl__series_t;

#define BL__WAIT_CAUSES (BL_STALL_CAUSES + 1) // the last one counts waits that are not predicted

typedef struct bl__profiled_stage {
  uint32_t peak_slots;
  uint64_t slot_bytes;
  double moved_bytes, moved_seconds; // to and from stores of devices
  double host_bytes, host_seconds;   // to and from host stores
  bl__series_t host_paces;           // of each traced step, seconds a byte of its host's quickest copy
  bl__series_t busy, stall;
  double waits[BL__WAIT_CAUSES][BL__TRACED_STEPS]; // seconds in each traced step
} bl__profiled_stage_t;

struct bl_ctl_profiling {
  const char *record, *predict;
  const bl_job_t *job;
  bool local;
  bool tracing;         // a trace is being received
  bool skips_trace;     // the trace belongs to a plan that is no longer in force
  bl_policy_t policy;   // that steps run under
  uint64_t since;       // the first step under it; 0: from the start
  bl_profile_t profile; // for the prediction
  bool has_prediction;
  bl_ctl_prediction_t prediction;
  double replayed; // simulated seconds from the first to the last operation of the recorded step; 0: none
  const bl_training_t *training;
  bl_balance_plan_t plan; // of the policy
  bl_recorder_t *recorder;
  uint64_t last_step, steps, traced;
  bl_ctl_link_turns_t turns; // at hosts, of that step
  double *waits;             // [stage_count][BL__WAIT_CAUSES] of the step whose trace is being received
  double last_seconds;
  bl__series_t seconds;
  bl__profiled_stage_t *stages; // [stage_count]
  uint32_t stage_count;
};

#endif
