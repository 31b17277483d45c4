// SPDX-License-Identifier: Apache-2.0
// Event-driven timing of a schedule, by the definitions of the reference schedules.
//
// A stage runs its list strictly in order, one computing operation at a time. An operation starts when the stage is
// free and all its dependencies have ended, plus the boundary latency if they ran on another stage. F(s) depends on
// F(s-1). I or B depends on its own F on the last virtual stage, and on the I or B of s+1 on any other. W depends on I,
// R on F, and the backward on R. A fused B releases the virtual stage before it when I and W are both done, a split one
// after I.
// E and L run on the path between stage and store, one at a time per stage. An L must end before the operation that
// needs the block, an E before the operation that takes its slot.
//
//   bl_simulation_t result;
//   status = bl_simulate(schedule, &costs, &result, &err);
//   printf("%g\n", result.t_end);
//   bl_simulation_cleanup(&result);
//
// Thread: pure functions, any thread.
#ifndef BALLAST_SIMULATE_SIMULATE_H
#define BALLAST_SIMULATE_SIMULATE_H

#include "schedule/ir/costs.h"
#include "schedule/ir/schedule.h"
#include "simulate/machine.h"

typedef struct bl_span {
  double start, end; // in the unit of the costs, from the start of the first operation
} bl_span_t;

// Results. All peaks are in device-micro-batches (bl_schedule_block_weight per block).
typedef struct bl_simulation {
  double t_end;         // end of the last operation; with replicas, of the last reduction
  double max_span;      // largest (end - start) of a stage
  double bubble_total;  // 1 - busiest stage / t_end
  double lower_bound;   // from the costs alone (schedule/ir/bound.h); 0 with recorded durations
  double bound_within;  // for orders whose stages keep no more blocks than the fullest one of this; 0 likewise
  uint32_t stages;      // length of the arrays below
  double *busy;         // [stages] sum of its computing operations, and of the calls of its evicts (machine.h)
  double *start, *end;  // [stages] of its first and last operation
  double *peak;         // [stages] maximum number of blocks at once
  uint32_t *peak_slots; // [stages] the same, in slots
  double (*stalls)[BL_STALL_CAUSES]; // [stages] waiting time between 0 and t_end, by cause; its sum and busy make t_end
  bl_span_t **spans;                 // [stages][operations of the stage]
  double **asked;                    // [stages][operations] when its stage got to an E or L; other operations: 0
  uint32_t *host_links;              // [stages] link to its host, as in machine.h; one each if stores are not shared
  uint8_t **causes;                  // [stages][operations] bl_stall_cause_t of the wait before a computing one, if any
} bl_simulation_t;

// Precondition: the schedule is valid. BL_INVALID: bad costs, or a cycle; BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_simulate(const bl_schedule_t *schedule, const bl_costs_t *costs, bl_simulation_t *result,
                                    bl_error_t *err);
// The same on a machine whose stages share cores or have different links. BL_INVALID also for a negative time.
BL_MUST_USE bl_status_t bl_simulate_on(const bl_schedule_t *schedule, const bl_costs_t *costs,
                                       const bl_machine_t *machine, bl_simulation_t *result, bl_error_t *err);
void bl_simulation_cleanup(bl_simulation_t *result);

#endif
