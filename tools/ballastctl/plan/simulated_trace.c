// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/plan/simulated_trace.h"

#include "ballastctl/inspect/chrome_trace.h"

#include "schedule/ir/slot_walk.h"

#include <math.h>
#include <stdlib.h>

typedef struct tracing {
  bl_ctl_chrome_trace_t *trace;
  const bl_schedule_t *schedule;
  const bl_simulation_t *simulation;
  const uint64_t *block_bytes; // [virtual stages]; NULL: not known
  uint8_t *recomputed;         // [blocks]
  double unit_ns;
} tracing_t;

static uint64_t ns_of(const tracing_t *t, double time) {
  return (uint64_t)llround(time * t->unit_ns);
}

static void add(const tracing_t *t, bl_ctl_trace_event_t event, double start, double end) {
  event.start_ns = ns_of(t, start);
  event.end_ns = ns_of(t, end);
  bl_ctl_chrome_trace_add(t->trace, &event);
}

static void add_wait(const tracing_t *t, uint32_t stage, bl_stall_cause_t cause, uint32_t micro_batch, double start,
                     double end) {
  if (end > start) {
    add(t,
        (bl_ctl_trace_event_t){
            .stage = (int)stage, .name = bl_stall_cause_name(cause), .wait = true, .micro_batch = (int)micro_batch},
        start, end);
  }
}

// Adds the transfer of a block to its host or back, from its request on.
static void add_transfer(const tracing_t *t, uint32_t stage, size_t index, const char *cell) {
  const bl_op_t op = t->schedule->lists[stage].ops[index];
  const bl_span_t span = t->simulation->spans[stage][index];
  if (bl_schedule_is_host(t->schedule, op.store)) {
    add(t,
        (bl_ctl_trace_event_t){.stage = (int)stage,
                               .name = cell,
                               .grid = {.stages = t->schedule->stages, .tensor = 1, .data = 1},
                               .transfer = true,
                               .bytes = t->block_bytes != NULL ? t->block_bytes[op.virtual_stage] : 0,
                               .turn_ns = ns_of(t, span.start),
                               .host = op.store - t->schedule->stages,
                               .link = t->simulation->host_links[stage]},
        t->simulation->asked[stage][index], span.end);
  }
}

static void add_stage(const tracing_t *t, uint32_t stage) {
  const bl_op_list_t *list = &t->schedule->lists[stage];
  bl_slot_walk_t walk = {.schedule = t->schedule, .recomputed = t->recomputed};
  double free_at = 0;
  for (size_t i = 0; i < list->count; i++) {
    const bl_op_t op = list->ops[i];
    const bl_span_t span = t->simulation->spans[stage][i];
    const bool computes = bl_op_type_computes((bl_op_type_t)op.type);
    char cell[BL_OP_TEXT];
    bl_slot_walk_next(&walk, op);
    if (computes) {
      bl_stall_cause_t cause = (bl_stall_cause_t)t->simulation->causes[stage][i];
      add_wait(t, stage, cause, op.micro_batch, free_at, span.start);
      free_at = span.end;
    }
    add(t,
        (bl_ctl_trace_event_t){.stage = (int)stage,
                               .name = bl_op_format_slice(op, t->schedule->slices > 1, cell),
                               .copy = !computes,
                               .micro_batch = (int)op.micro_batch,
                               .slots_in_use = walk.held},
        span.start, span.end);
    if (!computes) {
      add_transfer(t, stage, i, cell);
    }
  }
  const double reduced = free_at + t->simulation->stalls[stage][BL_STALL_REDUCTION];
  add_wait(t, stage, BL_STALL_REDUCTION, 0, free_at, reduced);
  add_wait(t, stage, BL_STALL_END, 0, reduced, t->simulation->t_end);
}

bl_status_t bl_ctl_simulated_trace_write(const bl_schedule_t *schedule, const bl_simulation_t *simulation,
                                         double unit_seconds, const uint64_t *block_bytes, const char *path,
                                         bl_error_t *err) {
  tracing_t t = {
      .schedule = schedule, .simulation = simulation, .block_bytes = block_bytes, .unit_ns = unit_seconds * 1e9};
  t.recomputed = calloc(bl_schedule_block_count(schedule), 1);
  if (t.recomputed == NULL || bl_ctl_chrome_trace_create(&t.trace) != BL_OK) {
    free(t.recomputed);
    return bl_error_set(err, BL_EXHAUSTED, "%s: no memory for the trace", path);
  }
  bl_schedule_mark_recomputed(schedule, t.recomputed);
  for (uint32_t s = 0; s < schedule->stages; s++) {
    add_stage(&t, s);
  }
  bl_status_t status = bl_ctl_chrome_trace_write(t.trace, path, err);
  bl_ctl_chrome_trace_destroy(t.trace);
  free(t.recomputed);
  return status;
}
