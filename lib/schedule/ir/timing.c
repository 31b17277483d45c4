// SPDX-License-Identifier: Apache-2.0
#include "schedule/ir/timing.h"

#include "schedule/ir/dependency.h"
#include "schedule/ir/validate.h"

#include <math.h>
#include <stdlib.h>

static bl_status_t time_all(bl__timing_t *timing, const bl_schedule_t *schedule, const bl_costs_t *costs) {
  size_t blocks = bl_schedule_block_count(schedule), count = bl_schedule_op_count(schedule);
  double *ends = calloc(2 * blocks, sizeof *ends), *free_at = calloc(schedule->stages, sizeof *free_at);
  bl_op_ref_t *order = malloc((count + 1) * sizeof *order);
  bl_status_t status = BL_EXHAUSTED;
  if (ends != NULL && free_at != NULL && order != NULL) {
    status = bl_schedule_topological_order(schedule, order, NULL);
  }
  for (size_t i = 0; i < count && status == BL_OK; i++) {
    bl_op_t op = schedule->lists[order[i].stage].ops[order[i].index], needed;
    double start = free_at[order[i].stage];
    if (bl__op_dependency(schedule, op, &needed)) {
      double latency = schedule->stage_of[needed.virtual_stage] != order[i].stage ? costs->boundary : 0;
      start = fmax(start, ends[2 * bl_schedule_block(schedule, needed) + (needed.type != BL_OP_F)] + latency);
    }
    double end = start + bl_costs_slice(costs, (bl_op_type_t)op.type, op.virtual_stage, op.slice);
    timing->starts[order[i].stage][order[i].index] = start;
    free_at[order[i].stage] = end;
    if (op.type == BL_OP_F || bl_op_type_starts_backward((bl_op_type_t)op.type)) {
      ends[2 * bl_schedule_block(schedule, op) + (op.type != BL_OP_F)] = end;
    }
    timing->t_end = fmax(timing->t_end, end);
  }
  free(order);
  free(free_at);
  free(ends);
  return status;
}

bl_status_t bl__timing_init(bl__timing_t *timing, const bl_schedule_t *schedule, const bl_costs_t *costs) {
  *timing = (bl__timing_t){.starts = calloc(schedule->stages + 1, sizeof(double *))};
  double *starts = malloc((bl_schedule_op_count(schedule) + 1) * sizeof *starts);
  if (timing->starts == NULL || starts == NULL) {
    free(starts);
    free(timing->starts);
    *timing = (bl__timing_t){0};
    return BL_EXHAUSTED;
  }
  timing->starts[0] = starts;
  for (uint32_t s = 1; s < schedule->stages; s++) {
    timing->starts[s] = timing->starts[s - 1] + schedule->lists[s - 1].count;
  }
  bl_status_t status = time_all(timing, schedule, costs);
  if (status != BL_OK) {
    bl__timing_cleanup(timing);
  }
  return status;
}

void bl__timing_cleanup(bl__timing_t *timing) {
  if (timing->starts != NULL) {
    free(timing->starts[0]);
  }
  free(timing->starts);
  *timing = (bl__timing_t){0};
}

bl_status_t bl__makespan(const bl_schedule_t *schedule, const bl_costs_t *costs, double *t_end) {
  bl__timing_t timing;
  bl_status_t status = bl__timing_init(&timing, schedule, costs);
  if (status == BL_OK) {
    *t_end = timing.t_end;
    bl__timing_cleanup(&timing);
  }
  return status;
}
