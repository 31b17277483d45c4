// SPDX-License-Identifier: Apache-2.0
#include "driver_core.h"

#include "base/words.h"
#include "sys/log.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const bl_policy_record_t *current_of(const bl_driver_t *driver) {
  const bl_policy_record_t *current = bl_policy_history_current(&driver->plans.changes.history);
  return current != NULL && current->policy.kind == BL_POLICY_AUTO ? current : NULL;
}

static bl_choice_now_t now_of(bl_driver_t *driver) {
  const bl_device_slots_t *device_slots = &driver->plans.balance.device_slots;
  return (bl_choice_now_t){.in_force = bl_policy_history_current(&driver->plans.changes.history),
                           .drives = driver->state == BL__RUN_STEPS,
                           .moves = bl_device_slots_move(device_slots) || bl_device_slots_drop(device_slots),
                           .applied = driver->step.applied,
                           .seconds = driver->attempts.seconds,
                           .measurements = &driver->automatic.measurements};
}

static void end_samples(bl__automatic_t *self) {
  bl_recorder_destroy(self->recorder);
  self->recorder = NULL;
}

static bl_choice_action_t action_of(bl_driver_t *driver, const bl_choice_now_t *now) {
  bl__automatic_t *self = &driver->automatic;
  const double expected = self->measurements.expected;
  bool slower;
  bl_choice_action_t action = bl_choice_boundary(&self->choice, now, &slower);
  if (slower) {
    bl_log(BL_LOG_INFO, "auto: step %" PRIu64 " took %.4g ms, expected were %.4g ms: measures again", now->applied,
           1e3 * now->seconds, 1e3 * expected);
  }
  return action;
}

bool bl__automatic_wants(bl_driver_t *driver) {
  const bl_choice_now_t now = now_of(driver);
  return action_of(driver, &now) == BL_CHOICE_SAMPLE;
}

bool bl__automatic_will_look(bl_driver_t *driver) {
  const bl_choice_now_t now = now_of(driver);
  return bl_choice_will_look(&driver->automatic.choice, &now);
}

// ---- samples --------------------------------------------------------------------------------------------------------

static bool begin_samples(bl_driver_t *driver) {
  bl__automatic_t *self = &driver->automatic;
  const bl_training_t *training = driver->options.training;
  end_samples(self);
  if (self->measurements.stages == 0 && bl_measurements_init(&self->measurements, training->stage_count) != BL_OK) {
    return false;
  }
  bl_measurements_begin(&self->measurements);
  return bl_recorder_create(driver->plans.balance.schedule, training->partition.spans, &self->recorder) == BL_OK;
}

static void add_step(bl_driver_t *driver) {
  bl__automatic_t *self = &driver->automatic;
  bl_recorder_begin(self->recorder);
  for (size_t s = 0; s < driver->options.training->stage_count; s++) { // the first plane stands for all
    const uint32_t rank = bl_grid_rank(&driver->options.training->grid, (bl_coords_t){.stage = (uint32_t)s});
    const bl_stage_trace_t *trace = &driver->tracing.stages[rank];
    for (size_t i = 0; i < trace->count; i++) {
      const bl_trace_event_t *event = &trace->events[i];
      if (event->wait) {
        bl_recorder_wait(self->recorder, (uint32_t)s, event->name, event->start_ns, event->end_ns);
      } else if (event->moved_bytes == 0) {
        bl_recorder_add(self->recorder, (uint32_t)s, event->name, event->start_ns, event->end_ns);
      }
    }
    const bl_remote_t *stage = &driver->stages[rank];
    const bl_rank_vote_t *vote = stage->vote.attempt == driver->step.commit.attempt ? &stage->vote : &stage->last_vote;
    const bl_stage_counters_t *of = &vote->counters;
    bl_measurements_copies(&self->measurements, BL_MEASUREMENTS_PEERS, (uint32_t)s,
                           (double)(of->moved_bytes - of->host_moved_bytes),
                           1e-9 * (double)(of->moved_ns - of->host_moved_ns));
    bl_measurements_copies(&self->measurements, BL_MEASUREMENTS_HOST, (uint32_t)s, (double)of->host_moved_bytes,
                           1e-9 * (double)of->host_moved_ns);
  }
  bl_measurements_end_step(&self->measurements);
  bl_recorder_end(self->recorder, driver->attempts.seconds);
}

// ---- deciding -------------------------------------------------------------------------------------------------------

// Returns the cores that the stages of a plane share: those of this machine, if all stages run on one. 0: each has its
// own.
static uint32_t shared_cores(const bl_driver_t *driver) {
  const bl_job_t *job = driver->options.job;
  const bl_grid_t *grid = &driver->options.training->grid;
  cpu_set_t set;
  uint32_t cores = 0;
  bool together = true;
  for (size_t s = 1; s < driver->stage_count; s++) {
    together = together && strcmp(driver->stages[s].place.machine, driver->stages[0].place.machine) == 0;
  }
  if (job->pipeline.device != BL_JOB_DEVICE_HOST) {
    return 0;
  }
  if (job->pipeline.cores.set) {
    cores = (uint32_t)job->pipeline.cores.value;
  } else if (together && sched_getaffinity(0, sizeof set, &set) == 0) {
    cores = (uint32_t)CPU_COUNT(&set) / (uint32_t)job->pipeline.threads;
    cores = cores == 0 ? 1 : cores;
  }
  return bl_machine_shared_cores(cores, (uint32_t)job->pipeline.stages, grid->tensor * grid->data);
}

// Computes the rates of paths from the samples. If nothing moved, the known rates stay.
static bl_status_t learn_rates(bl_driver_t *driver, bl_error_t *err) {
  bl__automatic_t *self = &driver->automatic;
  if (!bl_measurements_rates(&self->measurements)) {
    return bl_device_slots_move(&driver->plans.balance.device_slots)
               ? bl_error_set(err, BL_PRECONDITION, "no block reached a store, so that paths could not be measured")
               : BL_OK;
  }
  bl_choice_measured(&self->choice, driver->step.applied);
  return BL_OK;
}

static bl_automatic_option_t option_of(const bl_policy_t *policy) {
  return (bl_automatic_option_t){.kind = policy->chosen, .mode = policy->mode, .copy = policy->copy};
}

// Compares policies by the profile: sets *found, or, with `start` not NULL, predicts how steps under `policy` would
// run.
static bl_status_t weigh(bl_driver_t *driver, const bl_policy_t *policy, const bl_profile_t *profile,
                         bl_automatic_t *found, bl_automatic_start_t *start, bl_error_t *err) {
  bl__automatic_t *self = &driver->automatic;
  const bl_training_t *training = driver->options.training;
  bl_chunk_costs_t *chunks = calloc(profile->chunk_count, sizeof *chunks);
  const bool on_cpus = driver->options.job->pipeline.device == BL_JOB_DEVICE_HOST;
  double *bytes = calloc(2 * (size_t)training->stage_count, sizeof *bytes), *calls = bytes + training->stage_count;
  bl_status_t status = chunks != NULL && bytes != NULL ? learn_rates(driver, err)
                                                       : bl_error_set(err, BL_EXHAUSTED, "no memory to weigh policies");
  for (uint32_t v = 0; v < profile->chunk_count && status == BL_OK; v++) {
    chunks[v] = profile->chunks[v].costs;
  }
  for (size_t s = 0; s < training->stage_count && status == BL_OK; s++) {
    bytes[s] = (double)training->stages[s].evict_bytes;
    calls[s] = on_cpus ? bl_profile_evict_call(profile, (uint32_t)s, bytes[s]) : 0;
  }
  if (status == BL_OK) {
    bl_costs_t costs = {.chunks = chunks, .boundary = profile->boundary};
    const bl_balance_cap_t lenders = bl_policy_lenders(policy, BL_POLICY_AUTO, 0, training);
    bl_automatic_option_t in_force = option_of(policy);
    bl_automatic_request_t request = {.schedule = bl_training_order(training, false),
                                      .pooled = bl_training_order(training, true),
                                      .hosted = training->hosted ? &training->costs.costs : NULL,
                                      .costs = &costs,
                                      .block_bytes = bytes,
                                      .path_rates = bl_measurements_tier(&self->measurements, BL_MEASUREMENTS_PEERS),
                                      .host_rates = bl_measurements_tier(&self->measurements, BL_MEASUREMENTS_HOST),
                                      .overhead = profile->overhead,
                                      .cores = shared_cores(driver),
                                      .evict_calls = calls,
                                      .handover = profile->handover,
                                      .budget = bl_policy_limit(policy, training),
                                      .lenders = &lenders,
                                      .in_force = &in_force,
                                      .measured = profile->step,
                                      .measurements = &self->measurements};
    status = start != NULL ? bl_automatic_foresee(&request, &in_force, start, err)
                           : bl_automatic_decide(&request, found, err);
  }
  free(chunks);
  free(bytes);
  return status;
}

static const char *mode_of(const bl_automatic_option_t *option) {
  return !bl_policy_copies(option->kind) ? "" : option->mode == BL_BALANCE_FEWEST ? " fewest" : " overlap";
}

static void add_option(char *text, size_t bytes, const bl_automatic_option_t *option) {
  size_t used = strlen(text);
  const char *separator = text[used - 1] == ' ' ? "" : "; ";
  const char *name = bl_policy_kind_name(option->kind), *mode = mode_of(option);
  char seen[32] = "";
  if (option->ratio > 0) {
    snprintf(seen, sizeof seen, ", %.2f of simulated", option->ratio);
  }
  if (option->kind == BL_POLICY_MIX) {
    if (option->fits) { // otherwise it equals another option
      snprintf(text + used, bytes - used, "%s%s%s %.4g ms, %u %s out, %u block%s recomputed%s", separator, name, mode,
               1e3 * option->step, option->evictions, bl_one_or_many(option->evictions, "copy", "copies"),
               option->dropped, bl_plural(option->dropped), seen);
    }
  } else if (option->fits) {
    bool drops = option->kind == BL_POLICY_DROP;
    uint32_t count = drops ? option->dropped : option->evictions;
    snprintf(text + used, bytes - used, "%s%s%s %.4g ms, %u %s%s", separator, name, mode, 1e3 * option->step, count,
             drops ? bl_one_or_many(count, "block recomputed", "blocks recomputed")
                   : bl_one_or_many(count, "copy out", "copies out"),
             seen);
  } else {
    snprintf(text + used, bytes - used, "%s%s%s does not fit", separator, name, mode);
  }
}

static void describe(bl__automatic_t *self, uint64_t step, double measured) {
  const bl_automatic_option_t *best = &self->found.options[self->found.best];
  size_t bytes = sizeof self->decision;
  snprintf(self->decision, bytes, "after step %" PRIu64 ", of %.4g ms: %s%s. Predicted: ", step, 1e3 * measured,
           bl_policy_kind_name(best->kind), mode_of(best));
  for (size_t i = 0; i < BL_AUTOMATIC_OPTIONS; i++) {
    add_option(self->decision, bytes, &self->found.options[i]);
  }
  size_t used = strlen(self->decision);
  if (self->found.recomputed > 0) {
    snprintf(self->decision + used, bytes - used, "; full recomputation, which a run cannot change to, %.4g ms",
             1e3 * self->found.recomputed);
  }
}

// Called when the change that was requested has ended.
static void changed(const bl_policy_answer_t *answer, const bl_error_t *err, void *context) {
  bl_driver_t *driver = context;
  bl_choice_answered(&driver->automatic.choice, driver->step.applied, err->status == BL_OK ? answer->record : NULL);
}

static bool ask_for(bl_driver_t *driver, const bl_choice_now_t *now, bl_choice_reason_t reason,
                    const bl_policy_t *policy) {
  const bool asked = bl__plans_wish(driver, policy, changed);
  bl_choice_asked(&driver->automatic.choice, now, reason, asked);
  return asked;
}

// Finds what to try if blocks are dropped. A new driver does not know the speed of its paths.
static void find_trial(const bl_driver_t *driver, const bl_policy_t *chosen, bl_choice_found_t *found) {
  const bl__automatic_t *self = &driver->automatic;
  const double share = driver->options.job->balance.trials;
  bl_policy_t *trial = &found->trial;
  *trial = *chosen;
  found->gives_up = chosen->chosen == BL_POLICY_DROP;
  if (!found->gives_up || share <= 0) {
    return;
  }
  if (bl_measurements_tier(&self->measurements, BL_MEASUREMENTS_PEERS) == NULL) {
    trial->chosen = BL_POLICY_AUTO;
    bl_policy_begin(trial, driver->options.training);
  } else {
    const bl_automatic_option_t *option = bl_automatic_untried(&self->found);
    trial->chosen = option != NULL ? option->kind : BL_POLICY_DROP;
    trial->mode = option != NULL ? option->mode : chosen->mode;
    trial->copy = option != NULL ? option->copy : 0;
    found->trial_after = bl_automatic_untried_for(&self->found, share);
  }
  found->may_try = trial->chosen != BL_POLICY_DROP;
}

static void try_again(bl_driver_t *driver, const bl_choice_now_t *now) {
  bl__automatic_t *self = &driver->automatic;
  if (!ask_for(driver, now, BL_CHOICE_TRIAL, &self->choice.trial)) {
    return;
  }
  self->measurements.expected = 0;
  bl_automatic_cleanup(&self->found);
  snprintf(self->decision, sizeof self->decision,
           "after step %" PRIu64 ": parks blocks for some steps, by %s, to see what paths are worth now", now->applied,
           bl_policy_kind_name(self->choice.trial.chosen));
  bl_log(BL_LOG_INFO, "auto: %s", self->decision);
}

// Makes a profile of the samples.
static bl_status_t fill_profile(const bl_driver_t *driver, bl_profile_t *profile, bl_error_t *err) {
  const bl_training_t *training = driver->options.training;
  return bl_recorder_fill(driver->automatic.recorder, &training->model, training->layout.attention, false, profile,
                          err);
}

static void decide(bl_driver_t *driver, const bl_choice_now_t *now) {
  bl__automatic_t *self = &driver->automatic;
  const bl_policy_t policy = now->in_force->policy;
  bl_profile_t profile = {0};
  bl_automatic_t found;
  bl_choice_found_t result = {0};
  bl_error_t err;
  bl_status_t status = fill_profile(driver, &profile, &err);
  if (status == BL_OK) {
    status = weigh(driver, &policy, &profile, &found, NULL, &err);
  }
  const double measured = profile.step;
  bl_profile_cleanup(&profile);
  if (status != BL_OK) {
    bl_log(BL_LOG_WARNING, "auto: %s; the policy stays as it is", err.text);
    (void)bl_choice_decided(&self->choice, now, &result);
    return;
  }
  bl_automatic_cleanup(&self->found);
  self->found = found;
  describe(self, now->applied, measured);
  bl_log(BL_LOG_INFO, "auto: %s", self->decision);
  const bl_automatic_option_t *best = &found.options[found.best];
  bl_policy_t wanted = policy;
  wanted.chosen = best->kind;
  wanted.mode = bl_policy_copies(best->kind) ? best->mode : wanted.mode;
  wanted.copy = best->copy;
  result.known = true;
  result.other = !bl_policy_equal(&wanted, &policy);
  find_trial(driver, &wanted, &result);
  self->measurements.expected = result.other ? best->step : measured;
  if (bl_choice_decided(&self->choice, now, &result)) {
    (void)ask_for(driver, now, BL_CHOICE_CHANGE, &wanted);
  }
}

// A stage has parked one block. Requests the policy to sample next: the one that parks all blocks without a slot, or,
// if steps under it would be far too slow, the one that drops them.
static void begin(bl_driver_t *driver, const bl_choice_now_t *now) {
  bl__automatic_t *self = &driver->automatic;
  bl_profile_t profile = {0};
  bl_automatic_start_t foreseen = {0};
  bl_policy_t wanted = now->in_force->policy;
  bl_error_t err;
  wanted.chosen = BL_POLICY_AUTO;
  wanted.copy = 0;
  bl_policy_resolve(&wanted, driver->options.training);
  bl_status_t status = fill_profile(driver, &profile, &err);
  if (status == BL_OK) {
    status = weigh(driver, &wanted, &profile, NULL, &foreseen, &err);
  }
  bl_profile_cleanup(&profile);
  if (!bl_choice_begun(&self->choice, foreseen.slow)) {
    return;
  }
  if (foreseen.slow) {
    wanted.chosen = BL_POLICY_DROP;
    wanted.copy = 0;
  }
  size_t bytes = sizeof self->start;
  if (status != BL_OK) {
    snprintf(self->start, bytes, "not measured yet: %.300s; begins with %s", err.text,
             bl_policy_kind_name(wanted.chosen));
  } else {
    snprintf(self->start, bytes,
             "not measured yet: by one block of each stage until step %" PRIu64
             " steps would take %.4g ms parking what has no slot, %.4g ms recomputing it; begins with %s",
             now->applied, 1e3 * foreseen.parked, 1e3 * foreseen.recomputed, bl_policy_kind_name(wanted.chosen));
  }
  bl_log(BL_LOG_INFO, "auto: %s", self->start);
  (void)ask_for(driver, now, BL_CHOICE_START, &wanted);
}

void bl__automatic_look(bl_driver_t *driver) {
  bl__automatic_t *self = &driver->automatic;
  const bl_choice_now_t now = now_of(driver);
  const bl_choice_action_t action = action_of(driver, &now);
  if (action == BL_CHOICE_TRY) {
    try_again(driver, &now);
  }
  if (action != BL_CHOICE_SAMPLE) {
    return;
  }
  if (self->choice.phase != BL_CHOICE_SAMPLING && !begin_samples(driver)) {
    bl_choice_unsampled(&self->choice, &now);
    return;
  }
  add_step(driver);
  switch (bl_choice_sampled(&self->choice, &now, bl_recorder_steps(self->recorder))) {
  case BL_CHOICE_BEGIN:
    begin(driver, &now);
    break;
  case BL_CHOICE_DECIDE:
    decide(driver, &now);
    break;
  case BL_CHOICE_MORE:
    break;
  }
  if (self->choice.phase != BL_CHOICE_SAMPLING) {
    end_samples(self);
  }
}

// ---- for people -----------------------------------------------------------------------------------------------------

const char *bl__automatic_decision(const bl_driver_t *driver) {
  const bl_policy_record_t *current = current_of(driver);
  if (current == NULL) {
    return "";
  }
  const bl_choice_told_t told = bl_choice_told(&driver->automatic.choice, current);
  if (told == BL_CHOICE_FOUND) {
    return driver->automatic.decision;
  }
  if (bl_policy_probes(&current->policy)) {
    return "not measured yet: each stage parks one block of a step, to see what paths are worth";
  }
  return current->policy.chosen == BL_POLICY_NONE ? "none: every stage has the slots that it needs"
         : told == BL_CHOICE_BEGINS               ? driver->automatic.start
                                                  : "not measured yet";
}

const char (*bl__automatic_reasons(const bl_driver_t *driver))[BL_AUTOMATIC_REASON] {
  const bl__automatic_t *self = &driver->automatic;
  const bl_policy_record_t *current = current_of(driver);
  return current != NULL && bl_choice_told(&self->choice, current) == BL_CHOICE_FOUND
             ? (const char(*)[BL_AUTOMATIC_REASON])self->found.reasons
             : NULL;
}

void bl__automatic_cleanup(bl_driver_t *driver) {
  end_samples(&driver->automatic);
  bl_automatic_cleanup(&driver->automatic.found);
  bl_measurements_cleanup(&driver->automatic.measurements);
}
