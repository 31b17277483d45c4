// SPDX-License-Identifier: Apache-2.0
#include "job/order.h"

#include "job/balance.h"
#include "job/costs.h"
#include "schedule/csv/csv.h"
#include "schedule/generate.h"
#include "schedule/ir/validate.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool recomputes_fully(const bl_job_t *job) {
  return job->pipeline.recompute == BL_JOB_RECOMPUTE_FULL;
}

// ---- searching

static bl_status_t fail_with(const bl_job_t *job, const bl_error_t *fault, bl_error_t *err) {
  (void)bl_job_fail(job, err, "pipeline.schedule", "%s", fault->text);
  if (err != NULL) {
    err->status = fault->status;
  }
  return fault->status;
}

// Returns the blocks of one micro-batch on a stage.
static int64_t blocks_of(const bl_job_t *job) {
  return job->pipeline.chunks.value / bl_job_pipes(job->pipeline.schedule) * job->pipeline.slices.value;
}

static bl_schedule_request_t request_of(const bl_job_t *job) {
  bl_schedule_request_t request = {
      .name = bl_job_schedule_name(job->pipeline.schedule),
      .stages = (uint32_t)job->pipeline.stages,
      .micro_batches = bl_job_replica_micro_batches(job),
      .chunks = (uint32_t)job->pipeline.chunks.value,
      .group = job->pipeline.group.set ? (uint32_t)job->pipeline.group.value : 0,
      .slices = (uint32_t)job->pipeline.slices.value,
      .recompute = recomputes_fully(job),
      .keep_placement = true, // the model has been divided for this placement
  };
  if (job->memory.slots.set) { // a recomputed block takes a slot only from R on
    double slots = (double)job->memory.slots.value / (double)blocks_of(job);
    *(recomputes_fully(job) ? &request.slots : &request.memory) = slots;
  }
  return request;
}

static bool takes_limit(const bl_job_t *job) {
  const bl_schedule_info_t *info = bl_schedule_info_find(bl_job_schedule_name(job->pipeline.schedule));
  const bl_schedule_request_t request = request_of(job);
  return info != NULL && info->limited && bl_schedule_pools(&request);
}

bool bl_job_order_hosted(const bl_job_t *job) {
  const bl_policy_kind_t kind = job->balance.policy;
  const bool at_devices = bl_policy_pools(kind) || kind == BL_POLICY_AUTO;
  return job->balance.host.set && !at_devices && takes_limit(job);
}

bool bl_job_order_pooled(const bl_job_t *job, bl_policy_kind_t kind) {
  return bl_policy_pools(kind) || (kind == BL_POLICY_OFFLOAD && bl_job_order_hosted(job));
}

static bl_status_t make(const bl_job_t *job, bool pooled, const bl_schedule_t *unpooled, bl_schedule_t **schedule,
                        bl_error_t *err) {
  bl_schedule_request_t request = request_of(job);
  bl_job_costs_t costs;
  const bl_schedule_info_t *info = bl_schedule_info_find(request.name);
  bl_error_t fault;
  bl_status_t status = bl_job_costs_init(&costs, job, err);
  if (status != BL_OK) {
    return status;
  }
  request.pooled = pooled;
  request.hosted = pooled && bl_job_order_hosted(job);
  request.unpooled = unpooled;
  request.costs = &costs.costs;
  status = bl_schedule_generate(&request, schedule, &fault);
  bl_job_costs_cleanup(&costs);
  const int64_t least = blocks_of(job);
  if (status == BL_INVALID && info != NULL && info->limited && job->memory.slots.set &&
      job->memory.slots.value < least) {
    return bl_job_fail(job, err, "memory.slots",
                       "%" PRId64 " is below %" PRId64 ", the smallest that works with schedule %s",
                       job->memory.slots.value, least, request.name);
  }
  return status == BL_OK ? BL_OK : fail_with(job, &fault, err);
}

bl_status_t bl_job_order_make(const bl_job_t *job, bool pooled, bl_schedule_t **schedule, bl_error_t *err) {
  return make(job, pooled, NULL, schedule, err);
}

bool bl_job_order_pools(const bl_job_t *job) {
  const bl_schedule_request_t request = request_of(job);
  return bl_schedule_pools(&request);
}

bl_status_t bl_job_orders_make(const bl_job_t *job, bl_schedule_t **unpooled, bl_schedule_t **pooled, bl_error_t *err) {
  bl_schedule_t *first, *second;
  bl_status_t status = make(job, false, NULL, &first, err);
  if (status != BL_OK) {
    return status;
  }
  status = make(job, true, first, &second, err);
  if (status != BL_OK) {
    bl_schedule_destroy(first);
    return status;
  }
  *unpooled = first;
  *pooled = second;
  return BL_OK;
}

// ---- orders from other processes

// Checks its shape, and the placement of its chunks, for which the layers have been divided.
static bl_status_t check_shape(const bl_job_t *job, const bl_schedule_info_t *info, const bl_schedule_t *taken,
                               bl_error_t *err) {
  const uint32_t stages = (uint32_t)job->pipeline.stages, chunks = (uint32_t)job->pipeline.chunks.value,
                 pipes = (uint32_t)bl_job_pipes(job->pipeline.schedule);
  if (taken->slices != (uint32_t)job->pipeline.slices.value) {
    return bl_error_set(err, BL_INVALID, "it is for sequences in %" PRIu32 " slices, the job has %" PRId64,
                        taken->slices, job->pipeline.slices.value);
  }
  if (taken->stages != stages || taken->virtual_stages != stages * chunks || taken->pipes != pipes ||
      taken->micro_batches != bl_job_replica_micro_batches(job)) {
    return bl_error_set(err, BL_INVALID,
                        "it is for %" PRIu32 " stages, %" PRIu32 " chunks in all and %" PRIu32
                        " micro-batches, the job has %" PRIu32 ", %" PRIu32 " and %" PRIu32,
                        taken->stages, taken->virtual_stages, taken->micro_batches, stages, stages * chunks,
                        bl_job_replica_micro_batches(job));
  }
  bl_schedule_t *wanted;
  bl_status_t status = bl_schedule_create(info->name, info->placement, stages, chunks, 1, &wanted, err);
  for (uint32_t i = 0; status == BL_OK && i < wanted->virtual_stages; i++) {
    if (taken->stage_of[i] != wanted->stage_of[i]) {
      status = bl_error_set(err, BL_INVALID, "it has chunk %" PRIu32 " on stage %u, %s has it on stage %u", i,
                            (unsigned)taken->stage_of[i], info->name, (unsigned)wanted->stage_of[i]);
      bl_schedule_destroy(wanted);
      return status;
    }
  }
  if (status == BL_OK) {
    bl_schedule_destroy(wanted);
  }
  return status;
}

// Checks that the first micro-batches use pipe 0, and that each pipe gets the same number: the sums over copies of the
// model depend on that.
static bl_status_t check_pipes(const bl_schedule_t *taken, bl_error_t *err) {
  const uint32_t each = taken->micro_batches / taken->pipes;
  for (uint32_t s = 0; s < taken->stages; s++) {
    for (size_t i = 0; i < taken->lists[s].count; i++) {
      const bl_op_t op = taken->lists[s].ops[i];
      char cell[BL_OP_TEXT];
      if (op.micro_batch / each != bl_schedule_pipe(taken, op.virtual_stage)) {
        return bl_error_set(err, BL_INVALID, "%s goes the other way than the step's micro-batches from there on",
                            bl_op_format(op, cell));
      }
    }
  }
  return BL_OK;
}

static bl_status_t check_operations(const bl_job_t *job, const bl_schedule_info_t *info, const bl_schedule_t *taken,
                                    bl_error_t *err) {
  bl_schedule_facts_t facts;
  bl_status_t status = bl_schedule_validate(taken, &facts, err);
  if (status != BL_OK) {
    return status;
  }
  status = check_pipes(taken, err);
  if (status != BL_OK) {
    return status;
  }
  const char *what = taken->forward_only                               ? "is of forwards alone"
                     : facts.transfers                                 ? "evicts and loads, which plans do"
                     : facts.recomputes && !recomputes_fully(job)      ? "recomputes, which the job does not"
                     : facts.splits_backward && !info->splits_backward ? "splits backwards"
                                                                       : NULL;
  if (what != NULL) {
    return bl_error_set(err, BL_INVALID, "it %s", what);
  }
  if (!facts.ascending) {
    char cell[BL_OP_TEXT];
    return bl_error_set(err, BL_INVALID, "%s comes after a later micro-batch: weight gradients would be other bits",
                        bl_op_format(facts.not_ascending, cell));
  }
  return BL_OK;
}

bl_status_t bl_job_order_take(const bl_job_t *job, const char *csv, size_t csv_bytes, bl_schedule_t **schedule,
                              bl_error_t *err) {
  const bl_schedule_info_t *info = bl_schedule_info_find(bl_job_schedule_name(job->pipeline.schedule));
  bl_schedule_t *taken = NULL;
  bl_error_t fault;
  if (info == NULL) {
    return bl_job_order_make(job, false, schedule, err); // which refuses the schedule
  }
  bl_status_t status = bl_csv_read(csv, csv_bytes, "order", &taken, &fault);
  if (status == BL_OK) {
    status = check_shape(job, info, taken, &fault);
  }
  if (status == BL_OK) {
    status = check_operations(job, info, taken, &fault);
  }
  if (status != BL_OK) {
    (void)bl_error_prefix(&fault, "the order that came with the job is none of %s", info->name);
    bl_schedule_destroy(taken);
    return fail_with(job, &fault, err);
  }
  (void)snprintf(taken->name, sizeof taken->name, "%s", info->name); // rows do not contain these
  taken->placement = info->placement;
  taken->transfers = BL_TRANSFER_SERIAL;
  *schedule = taken;
  return BL_OK;
}
