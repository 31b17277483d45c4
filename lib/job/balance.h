// SPDX-License-Identifier: Apache-2.0
// The plan that a policy means for a job: the schedule of a step with its evictions and loads, and what it needs of
// every device. Driver, stages and ballastctl get the same plan from the same job and policy with this code.
//
//   bl_policy_t policy = bl_policy_of_job(&job);
//   bl_balance_plan_t plan;
//   if (bl_balance_plan_init(&plan, &training, &policy, &err) == BL_OK) {
//     ... plan.schedule, plan.device_slots.own[stage], plan.device_slots.lent[device] ...
//     bl_balance_plan_cleanup(&plan);
//   }
//
// policy/policy.h describes each policy. The effective cap is the smaller of the policy's and memory.slots (or what
// memory.activation_bytes allows).
//
// Pure but for memory. Thread: any; a plan is read-only after init.
#ifndef BALLAST_JOB_BALANCE_H
#define BALLAST_JOB_BALANCE_H

#include "config/job.h"
#include "job/training.h"
#include "policy/policy.h"
#include "schedule/balance/balance.h"
#include "schedule/balance/device_slots.h"

bl_policy_t bl_policy_of_job(const bl_job_t *job);
// Resolves an auto that has not chosen to what it uses while nothing is measured: none if that fits the devices or
// everything is recomputed; else bpipe, else cap (offload instead of both if blocks are parked at hosts alone), else
// mix with as much parked as fits into stores, host stores included, else drop, which is also what remains without
// stores. Leaves other policies and an auto that has chosen as they are.
void bl_policy_resolve(bl_policy_t *policy, const bl_training_t *training);
// Gives bpipe the cap that it has if nobody says one (bl_balance_bpipe_default).
// Resolves auto to what a run begins with: as bl_policy_resolve, but if that parks blocks, a mix in which every stage
// that lacks slots parks one block of a step and drops the rest, if such a mix fits. The time of its copies shows
// whether it is worth parking more.
void bl_policy_begin(bl_policy_t *policy, const bl_training_t *training);
// Returns the slots that auto may keep on a device, UINT32_MAX: any number.
uint32_t bl_policy_limit(const bl_policy_t *policy, const bl_training_t *training);
// Returns which stores may take blocks under a policy of this kind, and the slots of a device with it.
bl_balance_cap_t bl_policy_lenders(const bl_policy_t *policy, bl_policy_kind_t kind, uint32_t slots,
                                   const bl_training_t *training);
// Returns the slots that a device keeps under this policy, UINT32_MAX: as many as the schedule needs.
uint32_t bl_policy_cap(const bl_policy_t *policy, const bl_training_t *training);

// BL_INVALID: the policy evicts or drops blocks, and under full recomputation a block has nothing to evict or drop.
BL_MUST_USE bl_status_t bl_policy_check_recompute(bl_policy_kind_t kind, bl_recompute_t recompute, bl_error_t *err);

typedef struct bl_balance_plan {
  const bl_schedule_t *schedule; // an order of the training, or `balanced`
  bl_schedule_t *balanced;       // NULL: nothing is parked and nothing is dropped
  const char *order;             // which of two orders it has: "for balancing", "for none"; "": there is one
  bl_device_slots_t device_slots;
} bl_balance_plan_t;

// The training must outlive the plan. BL_EXHAUSTED: the cap is too small; names stage and operation, and the smallest
// cap that works. BL_NOT_FOUND: a device that does not exist. BL_INVALID: as bl_policy_check_recompute, or offload
// without balance.host. On failure there is nothing to clean up.
BL_MUST_USE bl_status_t bl_balance_plan_init(bl_balance_plan_t *plan, const bl_training_t *training,
                                             const bl_policy_t *policy, bl_error_t *err);
void bl_balance_plan_cleanup(bl_balance_plan_t *plan); // a zeroed one is fine

// Checks that the job names stores if its policy parks blocks at devices (the parser checks those of hosts). Not for a
// local run, which starts them. BL_INVALID: services.stores is missing.
BL_MUST_USE bl_status_t bl_balance_check_stores(const bl_training_t *training, const bl_job_t *job, bl_error_t *err);

#endif
