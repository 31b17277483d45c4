// SPDX-License-Identifier: Apache-2.0
// Which way to run a model: partition, schedule, chunks, micro-batch, recomputation, attention, balancing policy,
// tensor and data parallelism and placement on nodes, under a memory limit, ranked by predicted time. What did not win
// is kept with what it would have cost or lacked.
//
//   bl_plan_t plan;
//   if (bl_plan_search(&request, &plan, &err) == BL_OK) {
//     plan.candidates[0] is the best; plan.fitting of them fit, those behind lack memory
//     bl_plan_cleanup(&plan);
//   }
//
// Ways that can only lose are not tried: with the same shape, what evicts or recomputes where nothing needs to, and
// what by its bare work takes longer than the best of its kinds. What recomputation would cost where nothing needs it
// is found for the best of every schedule. A candidate
// that does not fit is tried with balancing at the largest cap that fits, and with giving blocks up there; schedules
// that take a limit of memory also with orders searched within the slots that fit, without and with balancing, and
// within more slots than their own limit where these fit; grouped-interleaved also in smaller groups. The policy auto
// stands beside the best of the others, or of a mix of both in its place: a run under it measures, and goes over to
// whichever is fastest where it runs.
// Searched schedules are first made with little effort and the leaders again with more: all of it where a job file can
// ask for the candidate. A best candidate that a
// job file can ask for is always one of these: its order is the one that a job with its costs (pipeline.costs) makes.
//
// Pure. Thread: any.
#ifndef BALLAST_PLAN_PLANNER_H
#define BALLAST_PLAN_PLANNER_H

#include "plan/candidate/placement.h"
#include "plan/evaluate/footprint.h"
#include "plan/evaluate/host.h"
#include "plan/evaluate/trial.h"
#include "schedule/balance/balance.h"

#define BL_PLAN_WHY   200
#define BL_PLAN_STORY 1900

// Within what a schedule that takes a limit of memory is searched.
typedef enum bl_plan_limit {
  BL_PLAN_LIMIT_OWN,     // the schedule's own
  BL_PLAN_LIMIT_FITTING, // as many slots as fit, fewer than its own
  BL_PLAN_LIMIT_BETWEEN, // more than fit, fewer than its own: the policy makes do with what fits
  BL_PLAN_LIMIT_LARGER,  // more than its own
} bl_plan_limit_t;

// Lists end with their counts; an empty one means what its comment says.
typedef struct bl_plan_request {
  const bl_model_t *model;
  uint32_t batch; // sequences of a step, of all replicas together
  double memory;  // bytes of a device; 0: no limit
  bl_host_t host; // where blocks may be parked beside other devices
  // Costs: profiles of this model (the nearest micro-batch is scaled), or a device's model.
  const bl_profile_t *const *profiles;
  uint32_t profile_count;
  const bl_hardware_t *hardware; // NULL with profiles
  bl_cluster_t cluster;          // nodes 0: the pipeline's stages alone, on one machine
  bool shard, sequence;          // bl_parallel_t, where tensor or data parallelism is used
  const uint32_t *stages;        // p; empty: on a cluster all that fill it
  uint32_t stage_count;
  const uint32_t *tensors; // t; empty: 1, or on a cluster 1, 2, 4, 8 that divide a node
  uint32_t tensor_count;
  const uint32_t *micro_batches; // b; empty: up to 8 that divide, and larger while the largest is the best
  uint32_t micro_batch_count;
  const uint32_t
      *chunks; // v; empty: that of the schedule, and where it takes any up to 4, and up to 8 that divide the layers
  uint32_t chunk_count;
  const char *const *schedules; // empty: all that the executor runs
  uint32_t schedule_count;
  const bl_attention_t *attentions; // empty: naive and flash (with profiles: the profile's)
  uint32_t attention_count;
  bl_balance_mode_t mode;
  bool post_validation;   // train.post_validation: every stage keeps a second copy of weights and optimizer
  bool optimizer_on_host; // train.optimizer_memory: host
  uint32_t threads;       // pipeline.threads, which update it there; 0: one
  bl_dtype_t dtype;       // train.dtype of our executor; a cluster's device says its own
  // Of memory on our executor: what operations ask for at that micro-batch and attention, with the request's model and
  // dtype, valid for as long as the request; NULL: unknown, and left out. NULL as function: all unknown.
  const bl_operation_memory_t *(*operations)(void *context, uint32_t micro_batch, bl_attention_t attention);
  void *operations_context;
  bl_logits_t logits;          // where operations are unknown
  bl_footprint_image_fn image; // where the job writes checkpoints, else NULL
} bl_plan_request_t;

typedef struct bl_plan_candidate {
  const char *schedule; // a built-in name
  uint32_t stages, chunks, micro_batch, micro_batches;
  bl_parallel_t parallel;
  bl_attention_t attention;
  bl_recompute_t recompute;
  bl_policy_kind_t policy; // auto: the fastest that moves or gives up, or a mix of both, with the same slots
  bl_plan_limit_t limit;
  uint32_t slots; // within which its order is searched (a job's memory.slots); 0: the schedule's own limit
  uint32_t cap;   // slots, of the policy
  uint32_t group; // of grouped-interleaved (a job's pipeline.group); 0: p
  bool moved;     // layers went to stages with more room
  bl_node_order_t order;
  bool fits;
  double step, bubble;    // seconds, share of the operations' time
  double overhead;        // seconds of the step that are optimizer, votes and commit
  bl_offload_t offload;   // of it, with an optimizer on the host and a device's model
  double recompute_share; // share in which the busiest stage makes blocks again
  double transfers;       // share in which it waits for parked blocks, their slots and network cards
  double mfu;             // with a device's model, else 0
  double throughput;      // sequences per second
  double memory;          // of the fullest device, bytes
  uint32_t memory_stage;
  bl_footprint_t fullest;  // what they are for
  double *memory_of_stage; // [stages] NULL when it was not partitioned
  uint32_t evictions;      // of a step, all stages
  uint32_t dropped;        // blocks of a step that are given up and made again, all stages
  double host_bytes;       // that blocks take of the fullest machine's host
  double block_bytes;      // of the largest block that leaves, and seconds of one copy to the host, with a host
  double host_copy;
  bool lean;
  uint32_t *layers;          // [stages * chunks]; NULL when it was not partitioned
  bl_chunk_costs_t *costs;   // [stages * chunks] that the order is searched with, in six digits; NULL likewise
  double boundary;           // the same
  bool exact;                // the order is the one that a job with these costs makes
  bl_schedule_t *operations; // of an exact one that fits: the order, with what the policy moves or makes again; NULL
                             // under the policy auto, where a run chooses
  char why[BL_PLAN_WHY];     // when it does not fit: what it lacks
} bl_plan_candidate_t;

// What was asked for, or is known without being asked for, and no candidate was tried with.
typedef struct bl_plan_rejection {
  const char *kind; // "schedule", "chunks", "micro-batch", "stages" or "tensor"
  char value[64];
  char why[BL_PLAN_WHY]; // what it lacks
} bl_plan_rejection_t;

typedef struct bl_plan {
  bl_plan_candidate_t *candidates; // those that fit by time, then the others by memory
  uint32_t count, fitting;
  uint32_t tried;
  bl_plan_rejection_t *rejections;
  uint32_t rejection_count;
  char why[BL_PLAN_STORY]; // the first is the best: sentences with numbers
  uint32_t ruled_out;      // not tried, as its bare work takes longer than the best of its kinds
} bl_plan_t;

// BL_EXHAUSTED: nothing fits, and the message names the smallest limit that works and the candidate that it does
// (checked: a search with it finds one; where none was found in so many tries, the candidate that lacks least) and, by
// a device's model, what an optimizer on the host would give where that fits; or no memory to plan.
// BL_INVALID: nothing to choose from (why).
BL_MUST_USE bl_status_t bl_plan_search(const bl_plan_request_t *request, bl_plan_t *plan, bl_error_t *err);
void bl_plan_cleanup(bl_plan_t *plan);
// Of the request's profiles the one whose costs a candidate with this micro-batch has; NULL without profiles.
const bl_profile_t *bl_plan_nearest_profile(const bl_plan_request_t *request, uint32_t micro_batch);

#endif
