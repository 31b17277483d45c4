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
// All cross-checks between keys, files and each other are here, so that nothing is started for a job that cannot run:
// settings that this version does not do are refused by name, never ignored.
//
// Reads files (config.json, safetensors headers, data). Thread: one makes and cleans up; immutable in between.
#ifndef BALLAST_JOB_TRAINING_H
#define BALLAST_JOB_TRAINING_H

#include "config/job.h"
#include "job/dataset.h"
#include "job/hosts.h"
#include "job/partition.h"
#include "model/layout.h"
#include "model/model.h"
#include "schedule/ir/schedule.h"

typedef struct bl_training_stage {
  uint32_t slots_needed; // resident activation blocks at the peak of the schedule; those of R with full recomputation
  uint32_t other_needed; // the same of `other`
  uint32_t slots;        // what the device has for them: memory.slots, what memory.activation_bytes leave for them, or
      // what the schedule and `other` need. Fewer than needed only with a policy that evicts (job/balance.h)
  uint64_t slot_bytes;     // of one slot: the largest block of the stage's chunks
  uint64_t kv_cache_bytes; // where sequences are in slices: pages of keys, values and their gradients, beside the slots
  uint64_t evict_bytes;    // of the largest part of one that is evicted (model/layout.h)
} bl_training_stage_t;

typedef struct bl_training {
  bl_grid_t grid;
  bl_model_t model;
  bl_partition_t partition;
  bl_dataset_t dataset;
  bl_schedule_t *schedule; // of one training step of one replica; with R where pipeline.recompute is full
  bl_schedule_t
      *other; // the order of policies that park where the job's own does not, of those that do not where it does;
              // NULL: the same for all
  bool pools; // `schedule` is for policies that park (bl_policy_pools)
  bl_layout_options_t layout; // the same for every chunk
  bl_training_stage_t *stages;
  uint32_t stage_count;
  double *copies;  // [stages * stages] what a copy between two devices takes, of balance.slow_paths; NULL: all the same
  uint32_t budget; // slots of any device, own and lent together; UINT32_MAX: no limit
  bool storeless;  // the job names its stages and no stores of devices: these lend nothing
  bl_hosts_t hosts;
} bl_training_t;

// Resolves a parsed job; all that is needed later is copied, so the job may go. BL_INVALID names the key (with its place
// in the job file) or the file and what is wrong with it; a file that is missing, closed to us or truncated is a bad job
// too. BL_UNIMPLEMENTED: a setting that this version does not do. BL_IO: reading failed. BL_EXHAUSTED: too little memory.
// On failure there is nothing to clean up.
BL_MUST_USE bl_status_t bl_training_init(bl_training_t *training, const bl_job_t *job, bl_error_t *err);

// Orders that another process of the run has searched, as CSV, terminated; they are checked (job/order.h).
typedef struct bl_training_orders {
  const char *own;   // of the job's policy; NULL: it is searched here, which may take seconds
  const char *other; // for policies of the other kind; NULL: not brought
  bool all;          // the policy may change: where `own` is searched here, the other one is too
} bl_training_orders_t;
// The same with orders. Without `all` the other one is made only where the job's own policy may choose it (auto).
BL_MUST_USE bl_status_t bl_training_init_with(bl_training_t *training, const bl_job_t *job,
                                              const bl_training_orders_t *orders, bl_error_t *err);
// The order that policies have that park blocks, or that do not.
static inline const bl_schedule_t *bl_training_order(const bl_training_t *training, bool pools) {
  return training->other != NULL && pools != training->pools ? training->other : training->schedule;
}
// Whether blocks are parked at hosts alone: no device of another stage has a store.
static inline bool bl_training_host_only(const bl_training_t *training) {
  return training->hosts.count > 0 && (training->storeless || training->stage_count == 1);
}
// Slots that a stage needs in it where nothing is parked.
static inline uint32_t bl_training_needed(const bl_training_t *training, uint32_t stage, bool pools) {
  const bl_training_stage_t *of = &training->stages[stage];
  return training->other != NULL && pools != training->pools ? of->other_needed : of->slots_needed;
}
void bl_training_cleanup(bl_training_t *training); // a zeroed one is fine
// Whether ranks a and b exchange tensors: neighbours along the model or the two ends of a tied embedding in one replica,
// or two with copies of the same chunk, each in one plane; or ranks that share layers.
bool bl_training_exchange(const bl_training_t *training, uint32_t a, uint32_t b);

#endif
