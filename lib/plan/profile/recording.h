// SPDX-License-Identifier: Apache-2.0
// Private to lib/plan: what a recorder (recorder.h) keeps of traced steps. recorder.c makes steps of events, recorded.c
// a profile of steps.
#ifndef BALLAST_PLAN_RECORDING_H
#define BALLAST_PLAN_RECORDING_H

#include "plan/profile/recorder.h"

// Means over one step, for a slice of a virtual stage.
typedef struct bl__recorded_means {
  double forward, input, weight, backward, recompute; // 0: none seen
} bl__recorded_means_t;

typedef struct bl__recorded_step {
  double seconds, makespan;
  double shared; // seconds before and after the makespan, in which replicas gathered weights and reduced gradients
  double boundary, handover;   // means of the step; NAN: none seen
  bl__recorded_means_t *means; // [virtual stages, slices]
  double **times;              // [stages][computing operations]
  double *ends;                // [stages] relative to the first operation of any stage
} bl__recorded_step_t;

typedef struct bl__recorded_gaps {
  double *values; // [capacity], in any order
  size_t count, capacity;
  double sum; // of the current step
  size_t seen;
} bl__recorded_gaps_t;

// Gaps measured on a stage itself.
typedef struct bl__recorded_own {
  bl__recorded_gaps_t boundary, evict, load;
} bl__recorded_own_t;

typedef struct bl__recorded_stage {
  size_t next;       // index of the operation in its list that is expected next
  uint32_t computed; // computing operations added
  double previous_end;
  size_t last_end;             // in op_ends: when it can have given back the core of its last operation
  bool waited;                 // since then, and so gave it back
  double came;                 // end of the wait for a message before the next operation; NAN: there was none
  double asked_core, got_core; // start and end of the wait for a core, likewise
} bl__recorded_stage_t;

// A core handover.
typedef struct bl__recorded_turn {
  double asked, got;
} bl__recorded_turn_t;

struct bl_recorder {
  const bl_schedule_t *schedule;
  const bl_chunk_span_t *spans;
  uint32_t stage_count;
  bl__recorded_step_t *steps; // [BL_RECORDER_STEPS]
  uint32_t count;
  bl__recorded_stage_t *stages;                        // of the current step
  double **times;                                      // [stages][computing operations] of it
  double *forward_end, *backward_start, *backward_end; // [blocks], of the current step; NAN: not yet
  double *waited_since;                                // [blocks * 2] end of the operation before F and B of a block
  double *started;                                     // [blocks * 2] start of F and B
  double *came;                                        // [blocks * 2] arrival of the message for them
  double *op_ends;                                     // [op_count] of the current step
  bl__recorded_turn_t *turns;                          // [turn_count]
  size_t op_count, turn_count;
  bool waits; // waits were recorded
  double first_start, last_end;
  double gather_start, reduction_end; // of any stage
  bool whole;
  bl__recorded_gaps_t boundary, input, handover;
  bl__recorded_own_t *own; // [stages]
  double *gap_values;      // of all gaps
};

// Returns the mean of all gaps since they began, kept or not; NAN: there was none. Negative means, which clocks of
// several machines cause, become 0.
double bl__recorded_mean(const bl__recorded_gaps_t *gaps);
// Returns the number of computing operations in a list.
uint32_t bl__recorded_count(const bl_op_list_t *list);

#endif
