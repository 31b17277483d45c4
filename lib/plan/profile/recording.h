// SPDX-License-Identifier: Apache-2.0
// Between the files of lib/plan: what a recorder (recorder.h) keeps of traced steps. Events become steps in recorder.c,
// steps a profile in recorded.c.
#ifndef BALLAST_PLAN_RECORDING_H
#define BALLAST_PLAN_RECORDING_H

#include "plan/profile/recorder.h"

// Means of one step, of a virtual stage.
typedef struct bl__recorded_means {
  double forward, input, weight, backward, recompute; // 0: none seen
} bl__recorded_means_t;

typedef struct bl__recorded_step {
  double seconds, makespan;
  double shared;             // before and after the makespan, in which replicas gathered weights and added up gradients
  double boundary, handover; // means of the step; NAN: none seen
  bl__recorded_means_t *means; // [virtual stages, slices]
  double **times;              // [stages][computing operations]
  double *ends;                // [stages] from the first operation of any
} bl__recorded_step_t;

typedef struct bl__recorded_gaps {
  double *values; // [room], in any order
  size_t count, room;
  double sum; // of the step under way
  size_t seen;
} bl__recorded_gaps_t;

// Of what a stage did itself.
typedef struct bl__recorded_own {
  bl__recorded_gaps_t boundary, evict, load;
} bl__recorded_own_t;

typedef struct bl__recorded_stage {
  size_t next;       // operation of its list that is expected
  uint32_t computed; // computing operations seen
  double previous_end;
  double came;                 // end of a wait for a message before the operation that comes next; NAN: there was none
  double asked_core, got_core; // of a wait for a core, likewise
} bl__recorded_stage_t;

// A core that changed hands.
typedef struct bl__recorded_turn {
  double asked, got;
} bl__recorded_turn_t;

struct bl_recorder {
  const bl_schedule_t *schedule;
  const bl_chunk_span_t *spans;
  uint32_t stage_count;
  bl__recorded_step_t *steps; // [BL_RECORDER_STEPS]
  uint32_t count;
  bl__recorded_stage_t *stages;                        // of the step under way
  double **times;                                      // [stages][computing operations] of it
  double *forward_end, *backward_start, *backward_end; // [blocks], of the step under way; NAN: not yet
  double *waited_since;                                // [blocks * 2] end of the operation before F and B of a block
  double *started;                                     // [blocks * 2] start of F and B
  double *came;                                        // [blocks * 2] when the message for them came
  double *op_ends;                                     // [op_count] of the step under way
  bl__recorded_turn_t *turns;                          // [turn_count]
  size_t op_count, turn_count;
  bool waits; // were told of
  double first_start, last_end;
  double gather_start, reduction_end; // of any stage
  bool whole;
  bl__recorded_gaps_t boundary, input, handover;
  bl__recorded_own_t *own; // [stages]
  double *gap_values;      // of all gaps
};

// Of all gaps since they began, kept or not; NAN: there was none. Below 0, which clocks of several machines make, is 0.
double bl__recorded_mean(const bl__recorded_gaps_t *gaps);
// Computing operations of a list.
uint32_t bl__recorded_count(const bl_op_list_t *list);

#endif
