// SPDX-License-Identifier: Apache-2.0
#include "job/pods.h"

#include "base/bytes.h"
#include "base/minmax.h"
#include "model/fold.h"
#include "model/memory.h"
#include "schedule/ir/slots.h"

#include <math.h>
#include <stdlib.h>

// For what an orderly end needs besides writing: the step in progress, the release of stages, the fsync of the folder.
#define GRACE_FLOOR_SECONDS 60

typedef struct stage_bytes {
  uint64_t kept;  // weights, gradients, optimizer
  uint64_t shard; // weights, optimizer
  uint64_t edge, workspace, evict;
} stage_bytes_t;

// With several copies, each keeps and writes the moments of its own tensors, and has memory to add gradients. Adds the
// maximum over the copies.
static bl_status_t share_out(const bl_training_t *training, const bl_chunk_span_t *spans, uint32_t count,
                             stage_bytes_t *sum) {
  const bl_grid_t *grid = &training->grid;
  uint64_t optimizer = 0, extra = 0;
  for (uint32_t replica = 0; replica < grid->data; replica++) {
    const bl_stage_memory_request_t request = {.model = &training->model,
                                               .spans = spans,
                                               .span_count = count,
                                               .options = training->layout,
                                               .micro_batches = training->schedule->micro_batches,
                                               .batches = 1,
                                               .replicas = grid->data,
                                               .replica = replica,
                                               .pipes = grid->pipes,
                                               .fold_levels = bl_fold_levels(bl_grid_copy_parts(grid))};
    bl_stage_memory_t memory;
    bl_status_t status = bl_stage_memory(&request, &memory);
    if (status != BL_OK) {
      return status;
    }
    optimizer = bl_max_u64(optimizer, memory.optimizer_bytes);
    extra = bl_max_u64(extra, memory.fold_bytes + memory.reduce_bytes);
  }
  sum->kept += optimizer + extra;
  sum->shard +=
      bl_copies_count(bl_grid_copies(grid)) > 1 ? optimizer / 2 : 0; // weights of its own tensors; one copy writes all
  sum->shard += optimizer;
  return BL_OK;
}

static bl_status_t count_stage(const bl_training_t *training, uint32_t stage, stage_bytes_t *sum, bl_error_t *err) {
  bl_chunk_span_t *spans = calloc(training->partition.count + 1, sizeof *spans);
  uint32_t count = 0;
  *sum = (stage_bytes_t){0};
  if (spans == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the plan");
  }
  for (uint32_t i = 0; i < training->partition.count; i++) {
    bl_chunk_memory_t chunk;
    if (training->schedule->stage_of[i] != stage) {
      continue;
    }
    spans[count++] = training->partition.spans[i];
    if (bl_chunk_memory(&training->model, training->partition.spans[i], training->layout, &chunk) != BL_OK) {
      free(spans);
      return bl_error_set(err, BL_INVALID, "stage %u: a block larger than any memory", stage);
    }
    sum->shard += bl_copies_count(bl_grid_copies(&training->grid)) > 1 ? 0 : chunk.weight_bytes;
    sum->kept += chunk.weight_bytes + chunk.gradient_bytes;
    sum->edge = chunk.edge_bytes > sum->edge ? chunk.edge_bytes : sum->edge;
    sum->workspace = chunk.workspace_bytes > sum->workspace ? chunk.workspace_bytes : sum->workspace;
    sum->evict = chunk.evict_bytes > sum->evict ? chunk.evict_bytes : sum->evict;
  }
  bl_status_t status = share_out(training, spans, count, sum);
  free(spans);
  return status == BL_OK ? BL_OK : bl_error_set(err, status, "stage %u: its memory cannot be planned", stage);
}

bl_status_t bl_pods_of(const bl_training_t *training, const bl_balance_plan_t *plan, uint32_t threads,
                       uint64_t host_bytes, double disk_rate, bl_pods_t *pods, bl_error_t *err) {
  uint32_t stages = training->stage_count;
  uint64_t block = 0;
  bl_pods_t most = {.capacity_bytes = BL_PODS_GRANULE_BYTES};
  uint32_t *edges = calloc(stages, sizeof *edges);
  bl_status_t status = edges != NULL ? bl_plan_counts(plan->schedule, 1, NULL, edges, NULL, err)
                                     : bl_error_set(err, BL_EXHAUSTED, "no memory for the plan");
  for (uint32_t s = 0; s < stages && status == BL_OK; s++) {
    stage_bytes_t stage;
    status = count_stage(training, s, &stage, err);
    if (status == BL_OK) {
      uint64_t slots = plan->device_slots.own[s] * training->stages[s].slot_bytes;
      most.stage_bytes =
          bl_max_u64(most.stage_bytes, stage.kept + stage.shard + slots + edges[s] * stage.edge + stage.workspace);
      most.shard_bytes = bl_max_u64(most.shard_bytes, stage.shard);
      block = bl_max_u64(block, stage.evict);
    }
  }
  free(edges);
  if (status != BL_OK) {
    return status;
  }
  block = (block + BL_PODS_GRANULE_BYTES - 1) / BL_PODS_GRANULE_BYTES * BL_PODS_GRANULE_BYTES;
  for (uint32_t d = 0; d < stages; d++) {
    most.capacity_bytes = bl_max_u64(most.capacity_bytes, plan->device_slots.lent[d] * block);
  }
  most.stage_bytes += BL_PODS_STAGE_OVERHEAD_BYTES;
  most.store_bytes = most.capacity_bytes + BL_PODS_STORE_OVERHEAD_BYTES;
  if (host_bytes > 0) {
    most.host_capacity_bytes = bl_align_up(host_bytes, BL_PODS_GRANULE_BYTES);
    most.host_bytes = most.host_capacity_bytes + BL_PODS_STORE_OVERHEAD_BYTES;
  }
  most.grace_seconds = (uint32_t)(GRACE_FLOOR_SECONDS + ceil((double)most.shard_bytes / disk_rate));
  most.stage_millicpus = threads * 1000;
  most.store_millicpus =
      most.capacity_bytes > BL_PODS_GRANULE_BYTES ? BL_PODS_STORE_MILLICPUS : BL_PODS_IDLE_STORE_MILLICPUS;
  *pods = most;
  return BL_OK;
}
