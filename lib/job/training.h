// SPDX-License-Identifier: Apache-2.0
// What a job means: model, layers of every stage, schedule, slots, data. Driver, stages and ballastctl resolve the same
// job text and order to the same values with this code.
//
//   bl_training_t training;
//   if (bl_training_init(&training, &job, &err) == BL_OK) {
//     ... training.model, training.partition.spans[virtual_stage], training.stages[rank].slots ...
//     bl_training_cleanup(&training);
//   }
//
// All cross-checks between keys, files and each other are here, so that nothing is started for a job that cannot run.
// Settings that this version does not support are refused by name, never ignored.
//
// Reads files (config.json, safetensors headers, data). Thread: one thread inits and cleans up; immutable in between.
#ifndef BALLAST_JOB_TRAINING_H
#define BALLAST_JOB_TRAINING_H

#include "config/job.h"
#include "job/costs.h"
#include "job/dataset.h"
#include "job/hosts.h"
#include "job/partition.h"
#include "model/layout.h"
#include "model/model.h"
#include "schedule/ir/schedule.h"

typedef struct bl_training_stage {
  uint32_t slots_needed; // resident activation blocks at the peak of the schedule; those of R with full recomputation
  uint32_t other_needed; // as slots_needed, for `other`
  uint32_t slots;      // of the device: memory.slots, what fits into memory.activation_bytes, or what the schedule and
                       // `other` need. Fewer than needed only with a policy that evicts or drops (job/balance.h)
  uint64_t slot_bytes; // of one slot: the largest block of the stage's chunks
  uint64_t kv_cache_bytes; // with slices: pages of keys, values and their gradients, in addition to the slots
  uint64_t evict_bytes;    // of the largest part of a block that is evicted (model/layout.h)
} bl_training_stage_t;

typedef struct bl_training {
  bl_grid_t grid;
  bl_model_t model;
  bl_partition_t partition;
  bl_dataset_t dataset;
  bl_schedule_t *schedule;    // of one training step of one replica; with R if pipeline.recompute is full
  bl_schedule_t *other;       // for the policies that `schedule` is not for (see `pools`); NULL: the same for all
  bool pools;                 // `schedule` is for policies that park (bl_job_order_pooled)
  bool hosted;                // the order for those is made for memory of the host (bl_job_order_hosted)
  bl_job_costs_t costs;       // with which orders are searched
  bl_layout_options_t layout; // the same for every chunk
  bl_training_stage_t *stages;
  uint32_t stage_count;
  double *copies;  // [stages * stages] cost of a copy between two devices, of balance.slow_paths; NULL: all equal
  uint32_t budget; // slots of any device, own and lent together; UINT32_MAX: no limit
  bool storeless;  // the job names its stages but no device stores: devices lend nothing
  bl_hosts_t hosts;
} bl_training_t;

// Resolves a parsed job. Everything that is needed later is copied, so the job may be freed. BL_INVALID names the key
// (with its position in the job file) or the file, and what is wrong with it; a file that is missing, unreadable or
// truncated is a bad job, too. BL_UNIMPLEMENTED: a setting that this version does not support. BL_IO: reading failed.
// BL_EXHAUSTED: out of memory. On failure there is nothing to clean up.
BL_MUST_USE bl_status_t bl_training_init(bl_training_t *training, const bl_job_t *job, bl_error_t *err);

// The same for a plan, whose data and weights need not be there: they are not read, and `dataset` is empty.
BL_MUST_USE bl_status_t bl_training_init_without_files(bl_training_t *training, const bl_job_t *job, bl_error_t *err);

// Returns the layout of logits by the job's device, for when its back end cannot be asked.
static inline bl_logits_t bl_job_logits(const bl_job_t *job) {
  return job->pipeline.device == BL_JOB_DEVICE_CUDA ? (bl_logits_t)BL_LOGITS_GPU : (bl_logits_t){0};
}

// Orders that another process of the run has searched, as NUL-terminated CSV. They are checked (job/order.h).
typedef struct bl_training_orders {
  const char *own;   // of the job's policy; NULL: it is searched here, which may take seconds
  const char *other; // for policies of the other kind; NULL: not given
  bool all;          // the policy may change: if `own` is searched here, the other one is too
} bl_training_orders_t;
// The same with orders. Without `all` the other order is made only if the job's own policy may choose it (auto, and
// offload with an order made for the host).
BL_MUST_USE bl_status_t bl_training_init_with(bl_training_t *training, const bl_job_t *job,
                                              const bl_training_orders_t *orders, bl_error_t *err);
// Returns the order of policies that park blocks (`pools`), or of those that do not.
static inline const bl_schedule_t *bl_training_order(const bl_training_t *training, bool pools) {
  return training->other != NULL && pools != training->pools ? training->other : training->schedule;
}
// Returns whether blocks are parked at hosts alone: no device of another stage has a store.
static inline bool bl_training_host_only(const bl_training_t *training) {
  return training->hosts.count > 0 && (training->storeless || training->stage_count == 1);
}
// Returns the slots that a stage needs if nothing is parked.
static inline uint32_t bl_training_needed(const bl_training_t *training, uint32_t stage) {
  const bl_training_stage_t *of = &training->stages[stage];
  return training->other != NULL && training->pools ? of->other_needed : of->slots_needed;
}
void bl_training_cleanup(bl_training_t *training); // a zeroed one is fine
// Returns whether ranks a and b exchange tensors. Within one plane: neighbours along the model, the two ends of a tied
// embedding, or two with copies of the same chunk. Across planes: ranks that share layers.
bool bl_training_exchange(const bl_training_t *training, uint32_t a, uint32_t b);

#endif
