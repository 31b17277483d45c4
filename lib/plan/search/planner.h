// SPDX-License-Identifier: Apache-2.0
// The planner: searches partition, schedule, chunks, micro-batch, slices of sequences, recomputation, attention,
// balancing policy, tensor and data parallelism and nodes under a memory limit, and ranks candidates by
// predicted time. It keeps the others with what they would have cost or lacked.
//
//   bl_plan_t plan;
//   if (bl_plan_search(&request, &plan, &err) == BL_OK) {
//     plan.candidates[0] is the best; the first plan.fitting fit, those after them lack memory
//     bl_plan_cleanup(&plan);
//   }
//
// Candidates that can only lose are not evaluated: with the same shape, those that evict or recompute without need, and
// those whose compute work alone takes longer than the best of their kinds. For the best of every schedule, the planner
// shows what unneeded recomputation would cost.
//
// A candidate that does not fit is evaluated with balancing at the largest cap that fits, and with dropped blocks
// there. Schedules with a memory limit are also searched within the slots that fit, without and with balancing, and
// within more slots than their own limit if these fit. Grouped-interleaved is also evaluated with smaller groups.
//
// One candidate with the policy auto is added: a mix of the best candidate that parks or drops, if that is faster, else
// a copy of it. A run under auto measures, and changes to the policy that is fastest there.
//
// Orders are first searched with a small budget. Those of the leaders are searched once more with a larger one: the
// full budget if a job file can express the candidate. So a best candidate that a job file can express always has the
// order that a job with its costs (pipeline.costs) makes.
//
// Pure. Thread: any.
#ifndef BALLAST_PLAN_PLANNER_H
#define BALLAST_PLAN_PLANNER_H

#include "plan/candidate/nodes.h"
#include "plan/evaluate/footprint.h"
#include "plan/evaluate/host.h"
#include "plan/evaluate/trial.h"
#include "schedule/balance/balance.h"

#define BL_PLAN_WHY   200
#define BL_PLAN_STORY 2300
// Without a list of slices, none is shorter. Times of operations are assumed to be in proportion to their tokens, which
// shorter ones are not.
#define BL_PLAN_SLICE_LEAST 1024

// The limit within which a schedule with a memory limit is searched.
typedef enum bl_plan_limit {
  BL_PLAN_LIMIT_OWN,     // the schedule's own
  BL_PLAN_LIMIT_FITTING, // as many slots as fit, fewer than its own
  BL_PLAN_LIMIT_BETWEEN, // more than fit, fewer than its own; the policy balances it to what fits
  BL_PLAN_LIMIT_LARGER,  // more than its own
} bl_plan_limit_t;

// Lists are followed by their counts. The comment says what an empty one means.
typedef struct bl_plan_request {
  const bl_model_t *model;
  uint32_t batch; // sequences of a step, of all replicas together
  double memory;  // bytes of a device; 0: no limit
  bl_host_t host; // host memory in which blocks may be parked, in addition to other devices
  // Costs: profiles of this model (the nearest micro-batch is scaled), or a device's model.
  const bl_profile_t *const *profiles;
  uint32_t profile_count;
  const bl_hardware_t *hardware; // NULL with profiles
  bl_cluster_t cluster;          // 0 nodes: the pipeline's stages alone, on one machine
  bool shard, sequence;          // as in bl_parallel_t, if tensor or data parallelism is used
  const uint32_t *stages;        // p; empty: on a cluster, all numbers that fill it
  uint32_t stage_count;
  const uint32_t *tensors; // t; empty: 1, or on a cluster those of 1, 2, 4, 8 that divide a node
  uint32_t tensor_count;
  // B; empty: those up to 8 that divide the batch, and larger ones while the largest is the best.
  const uint32_t *micro_batches;
  uint32_t micro_batch_count;
  // V; empty: that of the schedule. If it takes any number: up to 4, and those up to 8 that divide the layers.
  const uint32_t *chunks;
  uint32_t chunk_count;
  // K; empty: 1, and in addition, with the smallest micro-batch, 2, 4, 8 ... of at least BL_PLAN_SLICE_LEAST tokens
  // that may be faster than all others. Those that do not divide sequences are left out.
  const uint32_t *slices;
  uint32_t slice_count;
  const char *const *schedules; // empty: all that the executor can run
  uint32_t schedule_count;
  const bl_attention_t *attentions; // empty: naive and flash (with profiles: the profile's)
  uint32_t attention_count;
  bl_balance_mode_t mode;
  bool post_validation;   // train.post_validation: every stage keeps a second copy of weights and optimizer
  bool optimizer_on_host; // train.optimizer_memory: host
  bool asynchronous;      // as in bl_footprint_request_t
  uint32_t threads;       // pipeline.threads, which update the optimizer on the host; 0: one
  bl_dtype_t dtype;       // train.dtype of our executor; a cluster's device has its own
  // For memory on our executor: returns what operations need at that micro-batch, slices and attention, with the
  // request's model and dtype; valid as long as the request. NULL: unknown, and left out. A NULL function: all unknown.
  const bl_operation_memory_t *(*operations)(void *context, uint32_t micro_batch, uint32_t slices,
                                             bl_attention_t attention);
  void *operations_context;
  bl_logits_t logits;          // if operations are unknown
  bl_footprint_image_fn image; // if the job writes checkpoints, else NULL
} bl_plan_request_t;

typedef struct bl_plan_candidate {
  const char *schedule; // a built-in name
  uint32_t stages, chunks, micro_batch, micro_batches;
  uint32_t slices; // of a sequence; 1: whole sequences
  bl_parallel_t parallel;
  bl_attention_t attention;
  bl_recompute_t recompute;
  bl_policy_kind_t policy; // auto: the fastest policy that parks or drops, or a mix of both, with the same slots
  bl_plan_limit_t limit;
  double host_path; // of pipeline.costs.host_copy, with which the order is chosen; 0: no order is made for the host
  uint32_t slots;   // limit of the search for its order (a job's memory.slots); 0: the schedule's own limit
  uint32_t cap;     // of the policy, in slots
  uint32_t group;   // of grouped-interleaved (a job's pipeline.group); 0: p
  bool moved;       // layers were moved to stages with more free memory
  bl_node_order_t order;
  bool fits;
  double step, bubble;    // seconds, share of the operations' time
  double overhead;        // seconds of the step for optimizer, votes and commit
  bl_offload_t offload;   // part of overhead, with an optimizer on the host and a device's model
  double recompute_share; // share of the operations' time in which the busiest stage recomputes
  double transfers;       // share in which it waits for parked blocks, their slots and NICs
  double mfu;             // with a device's model, else 0
  double throughput;      // sequences per second
  double memory;          // bytes of the fullest device
  uint32_t memory_stage;
  bl_footprint_t fullest;  // its memory by use
  double *memory_of_stage; // [stages]; NULL: not partitioned
  uint32_t evictions;      // per step, all stages
  uint32_t dropped;        // blocks that are dropped and recomputed per step, all stages
  double host_bytes;       // bytes of parked blocks at the fullest machine's host
  double block_bytes; // with a host: bytes of the largest block that is parked, and seconds of one copy to the host
  double host_copy;
  bool lean;
  uint32_t *layers;        // [stages * chunks]; NULL: not partitioned
  bl_chunk_costs_t *costs; // [stages * chunks] for the search of the order, in six digits, of a slice; NULL likewise
  double boundary;         // likewise
  bool exact;              // the order is the one that a job with these costs makes
  // If exact and fitting: the order, with its evictions or recomputations. NULL under the policy auto, because a run
  // chooses them.
  bl_schedule_t *operations;
  char why[BL_PLAN_WHY]; // if it does not fit: what it lacks
} bl_plan_candidate_t;

// A requested or known value with which no candidate was evaluated.
typedef struct bl_plan_rejection {
  const char *kind; // "schedule", "chunks", "micro-batch", "slices", "stages" or "tensor"
  char value[64];
  char why[BL_PLAN_WHY]; // what it lacks
} bl_plan_rejection_t;

typedef struct bl_plan {
  bl_plan_candidate_t *candidates; // the fitting ones by time, then the others by memory
  uint32_t count, fitting;
  uint32_t tried;
  bl_plan_rejection_t *rejections;
  uint32_t rejection_count;
  char why[BL_PLAN_STORY]; // why the first is the best: sentences with numbers
  // Number not evaluated, because their compute work alone takes longer than the best of their kinds.
  uint32_t ruled_out;
  bool slices_left_out; // among them are slices that can only be slower than the best, but perhaps not than their kinds
} bl_plan_t;

// BL_EXHAUSTED: nothing fits. The message names the smallest limit that works and the candidate that fits it. The limit
// is checked: a search with it finds one. If the tries do not find such a limit, the message names the candidate that
// lacks the least. With a device's model it adds what an optimizer on the host would give, if that fits. BL_EXHAUSTED
// also: no memory to plan. BL_INVALID: there is nothing to choose from (says why).
BL_MUST_USE bl_status_t bl_plan_search(const bl_plan_request_t *request, bl_plan_t *plan, bl_error_t *err);
void bl_plan_cleanup(bl_plan_t *plan);
// Returns the profile of the request whose costs a candidate with this micro-batch and slices uses; NULL without
// profiles.
const bl_profile_t *bl_plan_nearest_profile(const bl_plan_request_t *request, uint32_t micro_batch, uint32_t slices);

#endif
