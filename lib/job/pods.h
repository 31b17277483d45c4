// SPDX-License-Identifier: Apache-2.0
// What a job needs of a cluster: memory and processors of the pods of stages and stores, memory that a store lends, and
// how long an orderly end may take. `ballastctl render` writes it into manifests; docs/kubernetes.md has the formulas.
//
// All pods of a StatefulSet are equal, so every number is the maximum over the stages or devices. That costs little
// because Ballast keeps memory level.
//
// Pure but for memory. Thread: any.
#ifndef BALLAST_JOB_PODS_H
#define BALLAST_JOB_PODS_H

#include "job/balance.h"

// In addition to what the plan counts: code, libraries, gRPC's buffers, stacks.
#define BL_PODS_STAGE_OVERHEAD_BYTES (UINT64_C(256) << 20)
#define BL_PODS_STORE_OVERHEAD_BYTES (UINT64_C(128) << 20)
// A store that lends: its one transfer thread is busy for part of the time while stages compute. A store that lends
// nothing only answers probes.
#define BL_PODS_STORE_MILLICPUS      250
#define BL_PODS_IDLE_STORE_MILLICPUS 50

typedef struct bl_pods {
  uint64_t stage_bytes; // memory limit of a stage's pod: what it holds (model/memory.h; of operations a bound for any
                        // CPU), the copy that a checkpoint is written from, and the overhead
  uint64_t store_bytes; // memory limit of a store's pod: its capacity and the overhead
  uint64_t capacity_bytes; // --capacity of a store; a granule at least
  uint64_t host_bytes;     // memory limit of a machine's host store: what it lends, and the overhead; 0: there is none
  uint64_t host_capacity_bytes;
  uint64_t shard_bytes;     // what a stage writes for a checkpoint: weights and optimizer
  uint32_t grace_seconds;   // terminationGracePeriodSeconds of stages and driver
  uint32_t stage_millicpus; // processors requested for a stage, in thousandths: one per compute thread
  uint32_t store_millicpus;
} bl_pods_t;

// `training` and `plan` are those of `job`. `disk_rate`: bytes per second that one stage can write to the checkpoint's
// folder. Statuses as bl_plan_counts.
BL_MUST_USE bl_status_t bl_pods_of(const bl_training_t *training, const bl_balance_plan_t *plan, const bl_job_t *job,
                                   double disk_rate, bl_pods_t *pods, bl_error_t *err);

// Returns the pod of a stage if pairs follow each other: pod i has stage i / 2 for even i, stage p - 1 - (i - 1) / 2
// for odd i.
static inline uint32_t bl_pod_of_stage(uint32_t stage, uint32_t stages) {
  return 2 * stage < stages ? 2 * stage : 2 * (stages - 1 - stage) + 1;
}
static inline uint32_t bl_stage_of_pod(uint32_t pod, uint32_t stages) {
  return pod % 2 == 0 ? pod / 2 : stages - 1 - pod / 2;
}

// Returns the pod of a rank: replica by replica, each as above, with the tensor ranks of a stage one after the other.
static inline uint32_t bl_pod_of_rank(const bl_grid_t *grid, uint32_t rank) {
  const bl_coords_t coords = bl_grid_coords(grid, rank);
  return (coords.data * grid->stages + bl_pod_of_stage(coords.stage, grid->stages)) * grid->tensor + coords.tensor;
}
static inline uint32_t bl_rank_of_pod(const bl_grid_t *grid, uint32_t pod) {
  const uint32_t group = pod / grid->tensor;
  const bl_coords_t coords = {.stage = bl_stage_of_pod(group % grid->stages, grid->stages),
                              .tensor = pod % grid->tensor,
                              .data = group / grid->stages};
  return bl_grid_rank(grid, coords);
}

#endif
