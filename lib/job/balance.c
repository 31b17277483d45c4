// SPDX-License-Identifier: Apache-2.0
#include "job/balance.h"

#include "base/words.h"
#include "schedule/balance/drop.h"
#include "simulate/host_order.h"

#include <inttypes.h>

#define PROBE_COPY 0.01 // forwards: hides under any operation

bl_policy_t bl_policy_of_job(const bl_job_t *job) {
  return (bl_policy_t){.kind = job->balance.policy,
                       .cap = job->balance.cap.set ? (uint32_t)job->balance.cap.value : 0,
                       .chosen = job->balance.policy == BL_POLICY_AUTO ? BL_POLICY_AUTO : BL_POLICY_NONE,
                       .mode = job->balance.mode};
}

uint32_t bl_policy_limit(const bl_policy_t *policy, const bl_training_t *training) {
  return policy->cap != 0 && policy->cap < training->budget ? policy->cap : training->budget;
}

static bool all_stay(uint32_t limit, const bl_training_t *training) {
  for (uint32_t i = 0; i < training->stage_count; i++) {
    if (bl_training_needed(training, i) > limit) {
      return false;
    }
  }
  return true;
}

static double forwards_of(uint32_t copy) {
  return copy == BL_POLICY_COPY_PROBE ? PROBE_COPY : copy / 100.0;
}

bl_balance_cap_t bl_policy_lenders(const bl_policy_t *policy, bl_policy_kind_t kind, uint32_t slots,
                                   const bl_training_t *training) {
  const bl_hosts_t *hosts = &training->hosts;
  return (bl_balance_cap_t){.slots = slots,
                            .pairs_only = kind == BL_POLICY_BPIPE,
                            .mode = policy->mode,
                            .lenders = policy->devices,
                            .copies = training->copies,
                            .hosts = hosts->count,
                            .host_of = hosts->of,
                            .host_slots = hosts->slots,
                            .host_only = kind == BL_POLICY_OFFLOAD || bl_training_host_only(training)};
}

// Balances the order of this kind of policy. Sets *pools: it is the one made for parking.
static bl_status_t balance_within(const bl_training_t *training, bl_policy_kind_t kind, const bl_balance_cap_t *cap,
                                  bl_balance_result_t *result, bool *pools, bl_error_t *err) {
  return bl_host_order_balance(kind, bl_training_order(training, false), bl_training_order(training, true),
                               training->hosted ? &training->costs.costs : NULL, cap, result, pools, err);
}

// Returns whether the plan fits and some block is parked under the cap. With copy 0 none has to be parked.
static bool can_park(const bl_policy_t *policy, bl_policy_kind_t kind, uint32_t limit, uint32_t copy,
                     const bl_training_t *training) {
  bl_balance_cap_t cap = bl_policy_lenders(policy, kind, limit, training);
  cap.copy = forwards_of(copy);
  cap.parks = copy == BL_POLICY_COPY_PROBE;
  bl_balance_result_t result;
  bool parks = copy == 0, pools; // with copy 0 the order for balancing may need no parking
  if ((training->storeless && cap.hosts == 0) || balance_within(training, kind, &cap, &result, &pools, NULL) != BL_OK) {
    return false;
  }
  for (uint32_t s = 0; s < result.stages; s++) {
    parks = parks || result.evictions[s] > 0;
  }
  bl_balance_result_cleanup(&result);
  return parks;
}

void bl_policy_resolve(bl_policy_t *policy, const bl_training_t *training) {
  if (policy->kind != BL_POLICY_AUTO || policy->chosen != BL_POLICY_AUTO) {
    return;
  }
  uint32_t limit = bl_policy_limit(policy, training);
  if (all_stay(limit, training) || training->layout.recompute == BL_RECOMPUTE_FULL) {
    policy->chosen = BL_POLICY_NONE;
  } else {
    const uint32_t copy = BL_POLICY_COPY_ASSUMED;
    const bl_policy_kind_t whole = bl_training_host_only(training) ? BL_POLICY_OFFLOAD : BL_POLICY_CAP;
    policy->chosen = whole == BL_POLICY_CAP && can_park(policy, BL_POLICY_BPIPE, limit, 0, training) ? BL_POLICY_BPIPE
                     : can_park(policy, whole, limit, 0, training)                                   ? whole
                     : can_park(policy, BL_POLICY_MIX, limit, copy, training)                        ? BL_POLICY_MIX
                                                                                                     : BL_POLICY_DROP;
    policy->copy = policy->chosen == BL_POLICY_MIX ? copy : 0;
  }
}

// Returns bpipe's cap if the policy has none: the smallest for which one of its orders has a plan (balance_within).
static uint32_t default_cap(const bl_policy_t *policy, const bl_training_t *training) {
  const bl_balance_cap_t cap = bl_policy_lenders(policy, BL_POLICY_BPIPE, 0, training);
  const uint32_t pooled = bl_balance_bpipe_default(bl_training_order(training, true), &cap);
  if (!training->hosted || training->other == NULL) {
    return pooled;
  }
  const uint32_t plain = bl_balance_bpipe_default(bl_training_order(training, false), &cap);
  return plain < pooled ? plain : pooled;
}

void bl_policy_begin(bl_policy_t *policy, const bl_training_t *training) {
  const bl_policy_t asked = *policy;
  bl_policy_resolve(policy, training);
  if (asked.chosen == BL_POLICY_AUTO && bl_policy_copies(policy->chosen) &&
      can_park(&asked, BL_POLICY_MIX, bl_policy_limit(&asked, training), BL_POLICY_COPY_PROBE, training)) {
    policy->chosen = BL_POLICY_MIX;
    policy->copy = BL_POLICY_COPY_PROBE;
  }
  if (policy->kind == BL_POLICY_BPIPE && policy->cap == 0) {
    policy->cap = default_cap(policy, training);
  }
}

// Returns what auto stands for, as a policy of that kind. Returns any other policy as it is.
static bl_policy_t carry_out(const bl_policy_t *policy, const bl_training_t *training) {
  bl_policy_t resolved = *policy;
  if (policy->kind == BL_POLICY_AUTO) {
    bl_policy_resolve(&resolved, training);
    resolved.kind = resolved.chosen;
    resolved.chosen = BL_POLICY_NONE;
    resolved.cap = resolved.kind == BL_POLICY_NONE ? 0 : bl_policy_limit(policy, training);
  }
  return resolved;
}

uint32_t bl_policy_cap(const bl_policy_t *policy, const bl_training_t *training) {
  const bl_policy_t resolved = carry_out(policy, training);
  uint32_t cap = UINT32_MAX;
  if (resolved.kind != BL_POLICY_NONE) {
    bool free = resolved.kind == BL_POLICY_DROP || resolved.kind == BL_POLICY_OFFLOAD; // these have no cap of their own
    cap = resolved.cap != 0 ? resolved.cap : free ? cap : default_cap(&resolved, training);
  }
  return cap < training->budget ? cap : training->budget;
}

// Checks that every stage has the slots of its peak, which it needs without evictions.
static bl_status_t check_unbalanced(const bl_training_t *training, bl_error_t *err) {
  uint32_t worst = 0, lacking = 0;
  for (uint32_t i = 0; i < training->stage_count; i++) {
    const bl_training_stage_t *stage = &training->stages[i];
    const uint32_t needed = bl_training_needed(training, i);
    if (needed > stage->slots && needed - stage->slots > lacking) {
      lacking = needed - stage->slots;
      worst = i;
    }
  }
  return lacking == 0
             ? BL_OK
             : bl_error_set(err, BL_EXHAUSTED,
                            "stage %" PRIu32 ": schedule %s needs %" PRIu32 " slots there, its device has %" PRIu32
                            "; a policy that evicts (bpipe, cap, offload) or gives blocks up (drop) needs fewer",
                            worst, training->schedule->name, bl_training_needed(training, worst),
                            training->stages[worst].slots);
}

static bl_status_t drop(bl_balance_plan_t *plan, const bl_training_t *training, const bl_policy_t *policy,
                        bl_error_t *err) {
  const uint32_t cap = bl_policy_cap(policy, training);
  bl_status_t status = bl_schedule_drop(bl_training_order(training, false), cap, &plan->balanced, NULL, err);
  if (status == BL_EXHAUSTED) {
    (void)bl_error_prefix(err, "a cap of %" PRIu32 " slot%s a device is too small for schedule %s", cap, bl_plural(cap),
                          training->schedule->name);
  }
  return status;
}

bl_status_t bl_policy_check_recompute(bl_policy_kind_t kind, bl_recompute_t recompute, bl_error_t *err) {
  if (recompute != BL_RECOMPUTE_FULL || kind == BL_POLICY_NONE) {
    return BL_OK;
  }
  return bl_error_set(err, BL_INVALID,
                      "with pipeline.recompute: full only the input of a block is kept between forward and "
                      "backward, so there is nothing to evict or to give up; use none here, or recompute none or "
                      "attention");
}

static bl_status_t balance(bl_balance_plan_t *plan, const bl_training_t *training, const bl_policy_t *policy,
                           bl_error_t *err) {
  bl_status_t status = bl_policy_check_recompute(policy->kind, training->layout.recompute, err);
  if (status != BL_OK) {
    return status;
  }
  if (policy->kind == BL_POLICY_DROP) {
    return drop(plan, training, policy, err);
  }
  if (policy->devices != 0 && training->stage_count < BL_POLICY_DEVICES &&
      policy->devices >> training->stage_count != 0) {
    uint32_t device = training->stage_count;
    while ((policy->devices >> device & 1) == 0) {
      device++;
    }
    return bl_error_set(err, BL_NOT_FOUND, "device %" PRIu32 " does not exist: the devices are 0 to %" PRIu32, device,
                        training->stage_count - 1);
  }
  if (policy->kind == BL_POLICY_OFFLOAD && training->hosts.count == 0) {
    return bl_error_set(err, BL_INVALID,
                        "the policy offload parks blocks in memory of the host, and this job has no "
                        "balance.host, which would say how much of it");
  }
  const bool mix = policy->kind == BL_POLICY_MIX;
  bl_balance_cap_t cap = bl_policy_lenders(policy, policy->kind, bl_policy_cap(policy, training), training);
  cap.copy = mix ? forwards_of(policy->copy) : 0;
  cap.parks = mix && policy->copy == BL_POLICY_COPY_PROBE;
  bl_balance_result_t result;
  bool pools;
  status = balance_within(training, policy->kind, &cap, &result, &pools, err);
  if (status == BL_OK) {
    plan->order = pools ? "for balancing" : "for none";
    plan->balanced = result.schedule;
    result.schedule = NULL;
    bl_balance_result_cleanup(&result);
  }
  return status;
}

bl_status_t bl_balance_plan_init(bl_balance_plan_t *plan, const bl_training_t *training, const bl_policy_t *any,
                                 bl_error_t *err) {
  const bl_policy_t carried_out = carry_out(any, training), *policy = &carried_out;
  bl_balance_plan_t made = {.order = "for none"};
  bl_status_t status =
      policy->kind == BL_POLICY_NONE ? check_unbalanced(training, err) : balance(&made, training, policy, err);
  made.schedule = made.balanced != NULL ? made.balanced : bl_training_order(training, false);
  made.order = training->other == NULL ? "" : made.order;
  if (status == BL_OK) {
    status = bl_device_slots_init(&made.device_slots, made.schedule, err);
  }
  if (status == BL_OK && training->budget != UINT32_MAX) {
    status = bl_device_slots_check(&made.device_slots, training->budget, err);
  }
  if (status != BL_OK) {
    bl_balance_plan_cleanup(&made);
    return status;
  }
  *plan = made;
  return BL_OK;
}

void bl_balance_plan_cleanup(bl_balance_plan_t *plan) {
  bl_schedule_destroy(plan->balanced);
  bl_device_slots_cleanup(&plan->device_slots);
  *plan = (bl_balance_plan_t){0};
}

bl_status_t bl_balance_check_stores(const bl_training_t *training, const bl_job_t *job, bl_error_t *err) {
  const bl_policy_t policy = bl_policy_of_job(job);
  bl_balance_plan_t plan;
  bl_status_t status = bl_balance_plan_init(&plan, training, &policy, err);
  if (status != BL_OK) {
    return status;
  }
  bool lends = false;
  for (uint32_t device = 0; device < plan.device_slots.devices; device++) {
    lends = lends || plan.device_slots.lent[device] > 0;
  }
  bl_balance_plan_cleanup(&plan);
  if (!lends || job->services.stores.count > 0) {
    return BL_OK;
  }
  return bl_job_fail(job, err, "services.stores",
                     "is missing; balance.policy %s parks blocks at devices: name an activation-store of every stage, "
                     "or take a policy that parks none (drop)",
                     bl_policy_kind_name(policy.kind));
}
