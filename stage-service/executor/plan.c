// SPDX-License-Identifier: Apache-2.0
#include "executor/plan.h"

#include "schedule/csv/csv.h"

#include <stdlib.h>
#include <string.h>

bl_plan_limits_t bl_executor_plan_limits(uint32_t slots) {
  return (bl_plan_limits_t){.slots = slots, .prefetch = BL_PLAN_PREFETCH};
}

// Checks that the plan is for the configured stages and chunks.
static bl_status_t check_placement(const bl_executor_plan_request_t *request, const bl_schedule_t *schedule,
                                   bl_error_t *err) {
  const bl_schedule_t *configured = request->configured;
  if (schedule->slices != configured->slices) {
    return bl_error_set(err, BL_INVALID, "plan %lu: sequences are in %u slices, configured are %u", request->version,
                        schedule->slices, configured->slices);
  }
  // Forward-only plans use the first of two pipes.
  const uint32_t wanted = schedule->forward_only ? bl_schedule_depth(configured) : configured->virtual_stages;
  if (schedule->stages != configured->stages || schedule->virtual_stages != wanted ||
      (!schedule->forward_only && schedule->pipes != configured->pipes)) {
    return bl_error_set(err, BL_INVALID, "plan %lu: stages and chunks in all are %u and %u, those configured %u and %u",
                        request->version, schedule->stages, schedule->virtual_stages, configured->stages, wanted);
  }
  if (schedule->hosts > request->hosts) {
    return bl_error_set(err, BL_INVALID, "plan %lu parks blocks at %u host stores, configured are %u", request->version,
                        schedule->hosts, request->hosts);
  }
  for (uint32_t i = 0; i < schedule->virtual_stages; i++) {
    if (schedule->stage_of[i] != configured->stage_of[i]) {
      return bl_error_set(err, BL_INVALID, "plan %lu puts chunk %u on stage %u, configured is stage %u",
                          request->version, i, schedule->stage_of[i], configured->stage_of[i]);
    }
  }
  return BL_OK;
}

static bool runs(bl_run_kind_t kind, bl_op_type_t type) {
  switch (type) {
  case BL_OP_F:
    return true;
  case BL_OP_B:
  case BL_OP_I:
  case BL_OP_W:
  case BL_OP_R:
    return kind == BL_RUN_TRAIN;
  default:
    return false;
  }
}

// Checks E and L of this stage.
static bl_status_t check_transfer(const bl_executor_plan_request_t *request, bl_op_t op, bl_error_t *err) {
  char cell[BL_OP_TEXT];
  bl_op_format(op, cell);
  if (request->kind != BL_RUN_TRAIN) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "plan %lu: stage %u cannot run %s in this kind of run", request->version,
                        request->stage, cell);
  }
  if (request->recomputes) {
    return bl_error_set(err, BL_INVALID,
                        "plan %lu: stage %u refuses %s: under pipeline.recompute: full the kept input is the block, "
                        "and there is nothing to evict",
                        request->version, request->stage, cell);
  }
  if (!request->parks) {
    return bl_error_set(err, BL_UNAVAILABLE,
                        "plan %lu: stage %u cannot run %s: no store takes evicted blocks; use a policy without "
                        "evictions, or give the job a store",
                        request->version, request->stage, cell);
  }
  return BL_OK;
}

static bl_status_t check_operations(const bl_executor_plan_request_t *request, const bl_executor_plan_t *made,
                                    bl_error_t *err) {
  const bl_stage_plan_t *plan = &made->stage;
  for (size_t i = 0; i < plan->op_count; i++) {
    bl_op_t op = plan->ops[i].op;
    char cell[BL_OP_TEXT];
    if (!bl_op_type_computes((bl_op_type_t)op.type)) {
      bl_status_t status = check_transfer(request, op, err);
      if (status != BL_OK) {
        return status;
      }
      continue;
    }
    if (!runs(request->kind, op.type)) {
      return bl_error_set(err, BL_UNIMPLEMENTED, "plan %lu: stage %u cannot run %s in this kind of run",
                          request->version, request->stage, bl_op_format(op, cell));
    }
  }
  if (plan->edges > request->edges) {
    return bl_error_set(err, BL_EXHAUSTED, "plan %lu needs %u edge buffers on stage %u, it has %u", request->version,
                        plan->edges, request->stage, request->edges);
  }
  if (plan->pages > request->pages || plan->page_gradients > request->page_gradients) {
    return bl_error_set(
        err, BL_EXHAUSTED, "plan %lu needs %u and %u pages of the KV cache on stage %u, it has %u and %u",
        request->version, plan->pages, plan->page_gradients, request->stage, request->pages, request->page_gradients);
  }
  return BL_OK;
}

bl_status_t bl_executor_plan_create(const bl_executor_plan_request_t *request, bl_executor_plan_t **plan,
                                    bl_error_t *err) {
  bl_executor_plan_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for plan %lu", request->version);
  }
  made->version = request->version;
  made->kind = request->kind;
  bl_status_t status = bl_csv_read(request->csv, request->csv_bytes, "plan", &made->schedule, err);
  if (status == BL_OK) {
    made->schedule->forward_slots = !request->recomputes; // blocks that are recomputed one by one were dropped (drop.h)
    status = check_placement(request, made->schedule, err);
  }
  if (status == BL_OK) {
    status =
        bl_stage_plan_init(made->schedule, request->stage, bl_executor_plan_limits(request->slots), &made->stage, err);
  }
  if (status == BL_OK) {
    status = check_operations(request, made, err);
  }
  if (status != BL_OK) {
    bl_executor_plan_destroy(made);
    return status;
  }
  *plan = made;
  return BL_OK;
}

void bl_executor_plan_destroy(bl_executor_plan_t *plan) {
  if (plan == NULL) {
    return;
  }
  bl_stage_plan_cleanup(&plan->stage);
  bl_schedule_destroy(plan->schedule);
  free(plan);
}
