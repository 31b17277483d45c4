// SPDX-License-Identifier: Apache-2.0
#include "job/pods.h"

#include "base/bytes.h"
#include "base/minmax.h"
#include "job/checkpoint_image.h"
#include "lease/granule.h"
#include "model/memory.h"
#include "schedule/ir/stage_plan.h"

#include <math.h>
#include <stdlib.h>

// For what an orderly end needs besides writing: the step in progress, the release of stages, the fsync of the folder.
#define GRACE_FLOOR_SECONDS 60

typedef struct stage_bytes {
  uint64_t held;  // of everything
  uint64_t image; // of a checkpoint
  uint64_t evict; // what moves of the largest block
} stage_bytes_t;

// Chunks of a stage, in the order of virtual stages. The caller frees them. NULL: no memory.
static bl_chunk_span_t *spans_of(const bl_training_t *training, uint32_t stage, uint32_t *count) {
  bl_chunk_span_t *spans = calloc(training->partition.count + 1u, sizeof *spans);
  *count = 0;
  for (uint32_t i = 0; i < training->partition.count && spans != NULL; i++) {
    if (training->schedule->stage_of[i] == stage) {
      spans[(*count)++] = training->partition.spans[i];
    }
  }
  return spans;
}

// On a CPU a bound, as the pods' CPUs need not be this one; on a GPU without the workspace, which is not the pod's memory.
static bl_operation_memory_t operations_of(const bl_training_t *training, const bl_job_t *job) {
  const bl_layout_options_t options = training->layout;
  return job->pipeline.device == BL_JOB_DEVICE_CUDA
             ? bl_operation_memory_of_gpu(&training->model, options.layer_parts, options.dtype)
             : bl_operation_memory_of_cpu(&training->model, options, (uint32_t)job->pipeline.threads);
}

// Adds the maximum over the replicas: each keeps and writes the moments of its own tensors.
static bl_status_t count_spans(const bl_training_t *training, const bl_job_t *job, const bl_chunk_span_t *spans,
                               uint32_t count, bl_stage_pieces_t pieces, stage_bytes_t *most) {
  const bl_grid_t *grid = &training->grid;
  const bl_operation_memory_t operations = operations_of(training, job);
  for (uint32_t replica = 0; replica < grid->data; replica++) {
    const bl_stage_memory_request_t request = {.model = &training->model,
                                               .spans = spans,
                                               .span_count = count,
                                               .options = training->layout,
                                               .operations = &operations,
                                               .micro_batches = training->schedule->micro_batches,
                                               .asynchronous = job->pipeline.device == BL_JOB_DEVICE_CUDA,
                                               .post_validation = job->train.post_validation,
                                               .optimizer_on_host =
                                                   job->train.optimizer_memory == BL_JOB_OPTIMIZER_ON_HOST,
                                               .copies = bl_grid_copies(grid),
                                               .replica = replica};
    bl_stage_memory_t memory;
    uint64_t image = 0;
    bl_status_t status = bl_stage_memory(&request, &memory);
    if (status == BL_OK) {
      status = bl_checkpoint_image_bytes(&training->model, spans, count, training->layout.layer_parts, request.copies,
                                         replica, &image);
    }
    if (status != BL_OK) {
      return status;
    }
    const uint64_t copied = job->checkpoint.folder != NULL ? image : 0;
    most->held = bl_max_u64(most->held, bl_stage_memory_total(&memory, pieces) + copied);
    most->image = bl_max_u64(most->image, image);
    most->evict = memory.evict_bytes;
  }
  return BL_OK;
}

static bl_status_t count_stage(const bl_training_t *training, const bl_job_t *job, uint32_t stage,
                               bl_stage_pieces_t pieces, stage_bytes_t *sum, bl_error_t *err) {
  uint32_t count;
  bl_chunk_span_t *spans = spans_of(training, stage, &count);
  *sum = (stage_bytes_t){0};
  if (spans == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the plan");
  }
  bl_status_t status = count_spans(training, job, spans, count, pieces, sum);
  free(spans);
  return status == BL_OK ? BL_OK : bl_error_set(err, status, "stage %u: its memory cannot be planned", stage);
}

bl_status_t bl_pods_of(const bl_training_t *training, const bl_balance_plan_t *plan, const bl_job_t *job,
                       double disk_rate, bl_pods_t *pods, bl_error_t *err) {
  const uint64_t host_bytes = job->balance.host.set ? (uint64_t)job->balance.host.value : 0;
  uint32_t stages = training->stage_count;
  uint64_t block = 0;
  bl_pods_t most = {.capacity_bytes = BL_LEASE_GRANULE_BYTES};
  uint32_t *edges = calloc(stages, sizeof *edges);
  bl_status_t status = edges != NULL ? bl_plan_counts(plan->schedule, NULL, edges, err)
                                     : bl_error_set(err, BL_EXHAUSTED, "no memory for the plan");
  for (uint32_t s = 0; s < stages && status == BL_OK; s++) {
    stage_bytes_t stage;
    const bl_stage_pieces_t pieces = {
        .slots = plan->device_slots.own[s], .edges = edges[s], .kv_cache_bytes = training->stages[s].kv_cache_bytes};
    status = count_stage(training, job, s, pieces, &stage, err);
    if (status == BL_OK) {
      most.stage_bytes = bl_max_u64(most.stage_bytes, stage.held);
      most.shard_bytes = bl_max_u64(most.shard_bytes, stage.image);
      block = bl_max_u64(block, stage.evict);
    }
  }
  free(edges);
  if (status != BL_OK) {
    return status;
  }
  block = bl_align_up(block, BL_LEASE_GRANULE_BYTES);
  for (uint32_t d = 0; d < stages; d++) {
    most.capacity_bytes = bl_max_u64(most.capacity_bytes, plan->device_slots.lent[d] * block);
  }
  most.stage_bytes += BL_PODS_STAGE_OVERHEAD_BYTES;
  most.store_bytes = most.capacity_bytes + BL_PODS_STORE_OVERHEAD_BYTES;
  if (host_bytes > 0) {
    most.host_capacity_bytes = bl_align_up(host_bytes, BL_LEASE_GRANULE_BYTES);
    most.host_bytes = most.host_capacity_bytes + BL_PODS_STORE_OVERHEAD_BYTES;
  }
  most.grace_seconds = (uint32_t)(GRACE_FLOOR_SECONDS + ceil((double)most.shard_bytes / disk_rate));
  most.stage_millicpus = (uint32_t)job->pipeline.threads * 1000;
  most.store_millicpus =
      most.capacity_bytes > BL_LEASE_GRANULE_BYTES ? BL_PODS_STORE_MILLICPUS : BL_PODS_IDLE_STORE_MILLICPUS;
  *pods = most;
  return BL_OK;
}
