// SPDX-License-Identifier: Apache-2.0
#include "driver_core.h"

#include "base/minmax.h"
#include "base/words.h"
#include "sys/clock.h"
#include "sys/log.h"

#include <inttypes.h>
#include <stdlib.h>

// Returns the votes of all stages for the attempt, borrowed: the current vote or that of the last commit. NULL: one is
// missing.
static const bl_rank_vote_t *votes_of(bl_driver_t *driver, uint64_t attempt) {
  for (size_t i = 0; i < driver->stage_count; i++) {
    const bl_remote_t *stage = &driver->stages[i];
    if (stage->vote.attempt == attempt) {
      driver->attempts.votes[i] = stage->vote;
    } else if (stage->last_vote.attempt == attempt) {
      driver->attempts.votes[i] = stage->last_vote;
    } else {
      return NULL;
    }
  }
  return driver->attempts.votes;
}

bl_status_t bl__votes_count(bl_driver_t *driver, uint64_t attempt, bl_vote_result_t *result, bl_error_t *err) {
  const bl_rank_vote_t *votes = votes_of(driver, attempt);
  if (votes == NULL) {
    return bl_error_set(err, BL_INTERNAL, "attempt %" PRIu64 ": a vote is missing", attempt);
  }
  const bl_job_t *job = driver->options.job;
  return bl_vote_result_count(votes, &driver->options.training->grid, (size_t)job->train.micro_batches,
                              &driver->options.training->model, job->train.clip, driver->attempts.squares, result, err);
}

// Returns what the plan of a step needs of every device; NULL: not known. A step of a predecessor is reported before
// this driver has made a plan, or after the policy has changed: then its plan is made here, as `made`.
static const bl_device_slots_t *slots_of(bl_driver_t *driver, const bl_policy_record_t *policy,
                                         bl_balance_plan_t *made) {
  const bl_policy_record_t *current = bl_policy_history_current(bl__plans_history(driver));
  if (driver->plans.balance.schedule != NULL && (policy == NULL || policy->version == current->version)) {
    return &driver->plans.balance.device_slots;
  }
  bl_error_t err;
  bl_status_t status =
      policy == NULL ? BL_NOT_FOUND : bl_balance_plan_init(made, driver->options.training, &policy->policy, &err);
  return status == BL_OK ? &made->device_slots : NULL;
}

// Returns how many blocks were recomputed although the plan does not drop them. 0 if the plan is not known.
static uint64_t unplanned_of(const bl_driver_t *driver, const bl_device_slots_t *device_slots,
                             const bl_stage_share_t *shares) {
  uint64_t unplanned = 0;
  for (size_t i = 0; device_slots != NULL && i < driver->stage_count; i++) {
    const uint32_t stage = bl__driver_coords(driver, i).stage;
    const uint32_t planned = stage < device_slots->devices ? device_slots->dropped[stage] : 0,
                   made = shares[i].counters.recomputed;
    unplanned += made > planned ? made - planned : 0;
  }
  return unplanned;
}

// Blocks that stores lost cost time without being noticed. Beyond the job's limit they are an error.
static void count_recomputes(bl_driver_t *driver, uint64_t unplanned) {
  const bl_optional_int_t *limit = &driver->options.job->balance.max_recomputes_per_hour;
  uint64_t now_ns = bl_clock_now_ns();
  bl_recomputes_add(&driver->recomputes, now_ns, unplanned);
  uint64_t count = bl_recomputes_count(&driver->recomputes, now_ns);
  if (limit->set && count > (uint64_t)limit->value && !driver->attempts.fatal) {
    driver->attempts.fatal = true;
    (void)bl_error_set(&driver->attempts.failure, BL_EXHAUSTED,
                       "%" PRIu64 " block%s recomputed within an hour because stores lost them, "
                       "balance.max_recomputes_per_hour is %lld: look at the stores, or use balance.policy none",
                       count, bl_one_or_many(count, " was", "s were"), (long long)limit->value);
  }
}

// Returns what every stage did in the step; NULL: no memory.
static bl_stage_share_t *stage_shares(const bl_driver_t *driver) {
  bl_stage_share_t *shares = calloc(driver->stage_count, sizeof *shares);
  for (size_t i = 0; shares != NULL && i < driver->stage_count; i++) {
    shares[i] =
        (bl_stage_share_t){.process = driver->stages[i].process, .counters = driver->attempts.votes[i].counters};
  }
  return shares;
}

// Returns the index in plans of a store of the run, for one rank; UINT32_MAX: the rank does not reach it.
static uint32_t number_in_plans(const bl_driver_t *driver, size_t store, size_t rank) {
  const size_t of_devices = driver->options.job->services.stores.count;
  const bl_coords_t of = bl__driver_coords(driver, rank);
  if (store >= of_devices) {
    const bl_hosts_t *hosts = &driver->options.training->hosts;
    const bool own = hosts->count > 0 && hosts->of_rank[rank] == store - of_devices;
    return own ? driver->options.training->stage_count + hosts->of[of.stage] : UINT32_MAX;
  }
  const bl_coords_t coords = bl__driver_coords(driver, store); // those of the rank whose device it is
  return of.data == coords.data && of.tensor == coords.tensor ? coords.stage : UINT32_MAX;
}

uint32_t bl_driver_lent(const bl_driver_t *driver, const bl_device_slots_t *device_slots, size_t store) {
  uint32_t lent = 0;
  for (size_t rank = 0; rank < driver->stage_count; rank++) {
    const uint32_t number = number_in_plans(driver, store, rank), stage = bl__driver_coords(driver, rank).stage;
    lent += stage < device_slots->devices ? bl_device_slots_reserved(device_slots, stage, number) : 0;
  }
  return lent;
}

static bl_store_share_t *store_shares(const bl_driver_t *driver, const bl_device_slots_t *device_slots, size_t count) {
  const size_t of_devices = driver->options.job->services.stores.count;
  bl_store_share_t *shares = calloc(count + 1, sizeof *shares);
  for (size_t i = 0; shares != NULL && i < count; i++) {
    shares[i] = (bl_store_share_t){.process = bl_stores_get(driver->stores, i).process,
                                   .of_host = i >= of_devices,
                                   .device = (uint32_t)(i < of_devices ? i : i - of_devices),
                                   .lent_slots = device_slots != NULL ? bl_driver_lent(driver, device_slots, i) : 0};
    for (size_t rank = 0; rank < driver->stage_count; rank++) {
      const bl_rank_vote_t *vote = &driver->attempts.votes[rank];
      const uint32_t number = number_in_plans(driver, i, rank);
      shares[i].peak_leased += number < vote->store_count ? vote->leased_peaks[number] : 0;
    }
  }
  return shares;
}

// Returns the time of the step. If a predecessor began it, that of its slowest stage.
static double seconds_of(const bl_driver_t *driver, const bl_stage_share_t *shares) {
  uint64_t longest_ns = 0;
  for (size_t i = 0; i < driver->stage_count; i++) {
    longest_ns = bl_max_u64(longest_ns, shares[i].counters.busy_ns + shares[i].counters.stall_ns);
  }
  const bool ours = driver->attempts.began_ns != 0;
  return (double)(ours ? bl_clock_now_ns() - driver->attempts.began_ns : longest_ns) * 1e-9;
}

void bl__step_report(bl_driver_t *driver) {
  const uint64_t applied = driver->step.applied;
  if (applied == 0 || driver->attempts.reported >= applied || driver->step.commit.step != applied) {
    return;
  }
  driver->attempts.reported = applied;
  bl_vote_result_t result;
  bl_error_t err;
  if (bl__votes_count(driver, driver->step.commit.attempt, &result, &err) != BL_OK) {
    bl_log(BL_LOG_ERROR, "step %" PRIu64 " cannot be reported: %s", applied, err.text);
    return;
  }
  const size_t store_count = bl_stores_count(driver->stores);
  const bl_policy_record_t *policy = bl_policy_history_of_step(bl__plans_history(driver), applied);
  bl_balance_plan_t made = {0};
  const bl_device_slots_t *device_slots = slots_of(driver, policy, &made);
  bl_stage_share_t *shares = stage_shares(driver);
  bl_store_share_t *stores = store_shares(driver, device_slots, store_count);
  if (shares == NULL || stores == NULL) {
    goto free_shares;
  }
  const double seconds = seconds_of(driver, shares);
  driver->attempts.seconds = driver->attempts.began_ns != 0 ? seconds : 0;
  const bl_step_event_t event = {.step = applied,
                                 .loss = result.loss,
                                 .grad_norm = result.grad_norm,
                                 .tokens = result.tokens,
                                 .seconds = seconds,
                                 .ran_under = policy != NULL ? *policy : (bl_policy_record_t){0},
                                 .stages = shares,
                                 .stage_count = driver->stage_count,
                                 .stores = stores,
                                 .store_count = store_count,
                                 .unplanned_recomputes = unplanned_of(driver, device_slots, shares)};
  bl_run_journal_add_step(&driver->journal, &event);
  count_recomputes(driver, event.unplanned_recomputes);
  driver->attempts.failures = 0;
  driver->options.observer.changed(driver->options.observer.context);
free_shares:
  bl_balance_plan_cleanup(&made);
  free(stores);
  free(shares);
}
