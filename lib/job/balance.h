// SPDX-License-Identifier: Apache-2.0
// Which plan a policy means for a job: the schedule of a step with its evictions and loads, and what it takes of every
// device. Driver, stages and ballastctl get the same plan from the same job and policy with this code.
//
//   bl_policy_t policy = bl_policy_of_job(&job);
//   bl_balance_plan_t plan;
//   if (bl_balance_plan_init(&plan, &training, &policy, &err) == BL_OK) {
//     ... plan.schedule, plan.holdings.own[stage], plan.holdings.lent[device] ...
//     bl_balance_plan_cleanup(&plan);
//   }
//
// none   nothing moves; every stage must have the slots that the schedule needs.
// bpipe  stages s and p-1-s are pairs: the one that needs more than the cap parks blocks at the other.
// cap    a stage that needs more than the cap parks blocks at any devices that need less, where copies are short
//        (balance.slow_paths; training->copies).
// drop   a stage that needs more than the cap gives blocks up when their F has ended and makes them again before their
//        backward, from their kept input (schedule/balance/drop.h). Nothing moves; without a cap, memory.slots is it.
// mix    of the blocks for which a stage has no slot, those are parked whose copies hide and for which stores have room, and
//        the rest is given up and made again (schedule/balance/balance.h, copy). Nobody asks for it but auto.
// auto   one of the five, chosen anew while the run goes on (tools/ballast-driver/automatic.c).
// The cap that counts is the smaller of the policy's and memory.slots (or what memory.activation_bytes allows).
//
// Pure but for memory. Thread: any; a plan is read-only after init.
#ifndef BALLAST_JOB_BALANCE_H
#define BALLAST_JOB_BALANCE_H

#include "config/job.h"
#include "job/training.h"
#include "schedule/balance/balance.h"
#include "schedule/balance/holdings.h"

typedef struct bl_policy {
  bl_job_policy_t kind;
  uint32_t cap; // slots a device keeps; 0: bpipe's ceil((p + 2) / 2) for every chunk; auto: memory.slots
  bl_balance_mode_t mode;
  uint64_t devices; // bit d: the store of device d may take blocks; 0: all may
  bl_job_policy_t
      chosen;    // what auto stands for: none, bpipe, cap, drop or mix; auto: not chosen yet. Of the others none
  uint32_t copy; // of mix: what a copy takes, in hundredths of a forward, or BL_POLICY_COPY_PROBE; else 0
} bl_policy_t;
#define BL_POLICY_COPY_ASSUMED 50         // while nothing is known of paths: copies hide
#define BL_POLICY_COPY_PROBE   UINT32_MAX // each stage parks one block of a step, whatever that takes
// Devices that a policy can name.
#define BL_POLICY_DEVICES 64

bl_policy_t bl_policy_of_job(const bl_job_t *job);
// Whether a job that begins with this policy has its order made for balancing (`pooled` of schedule/generate.h).
static inline bool bl_policy_pools(bl_job_policy_t policy) {
  return policy == BL_JOB_POLICY_BPIPE || policy == BL_JOB_POLICY_CAP;
}
// What auto takes while nothing has been measured: none if that fits the devices, else bpipe, else cap, else mix
// with as much parked as stores have room for, else drop, which is also what a job with no stores is left with.
// Other policies stay as they are, as does an auto that has chosen.
void bl_policy_settle(bl_policy_t *policy, const bl_training_t *training);
// What a run begins with: as bl_policy_settle, but where that parks blocks and giving them up fits, too, a mix in which
// every stage that lacks slots parks one block of a step. What its copies take says whether parking more is worth a try.
void bl_policy_begin(bl_policy_t *policy, const bl_training_t *training);
bool bl_policy_probes(const bl_policy_t *policy); // the mix that bl_policy_begin makes
// Slots that auto may keep on a device, UINT32_MAX: any number.
uint32_t bl_policy_limit(const bl_policy_t *policy, const bl_training_t *training);
// The slots that a device keeps under this policy, UINT32_MAX: as many as the schedule needs.
uint32_t bl_policy_cap(const bl_policy_t *policy, const bl_training_t *training);

typedef struct bl_balance_plan {
  const bl_schedule_t *schedule; // an order of the training, or `balanced`
  bl_schedule_t *balanced;       // NULL when nothing moves and nothing is given up
  const char *order;             // of two, which it has: "for balancing", "for none"; "": there is one
  bl_holdings_t holdings;
} bl_balance_plan_t;

// The training outlives the plan. BL_EXHAUSTED: the cap is too small; names stage and operation, and the smallest cap that
// works. BL_NOT_FOUND: a device that does not exist. BL_INVALID: evictions or drops under pipeline.recompute: full. On failure
// there is nothing to clean up.
BL_MUST_USE bl_status_t bl_balance_plan_init(bl_balance_plan_t *plan, const bl_training_t *training,
                                             const bl_policy_t *policy, bl_error_t *err);
void bl_balance_plan_cleanup(bl_balance_plan_t *plan); // a zeroed one is fine

#endif
