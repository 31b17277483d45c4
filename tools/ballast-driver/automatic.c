// SPDX-License-Identifier: Apache-2.0
#include "driver_core.h"

#include "base/words.h"
#include "sys/log.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS     3                   // that are looked at before a decision
#define PROBES    2                   // with one block of a stage parked, before paths are taken to be far too slow
#define LOOKS_MAX 8                   // at steps that may lack operations
#define REST      50                  // steps before the next looks
#define LONGEST   (UINT64_C(1) << 50) // steps: never
#define PATIENCE  6                   // refused trials wait twice as long, up to so often

static const bl_policy_record_t *current_of(const bl_driver_t *driver) {
  const bl_policy_record_t *current = bl_policy_book_current(&driver->plans.changes.book);
  return current != NULL && current->policy.kind == BL_POLICY_AUTO ? current : NULL;
}

// Nothing that stays has to be measured.
static bool has_alternatives(const bl_driver_t *driver) {
  const bl_holdings_t *holdings = &driver->plans.balance.holdings;
  return bl_holdings_move(holdings) || bl_holdings_drop(holdings);
}

static void end_looks(bl__automatic_t *self) {
  bl_recorder_destroy(self->recorder);
  self->recorder = NULL;
  self->looks = 0;
}

static void forget(bl__automatic_t *self) {
  end_looks(self);
  bl_automatic_cleanup(&self->found);
  bl_evidence_forget(&self->evidence);
  self->decided = self->trying = self->checking = self->starting = false;
  self->trial = 0;
  self->start[0] = '\0';
}

// Steps that take far longer than they did when the policy was chosen: something has changed, so that it rests no longer.
static void watch(bl_driver_t *driver) {
  bl__automatic_t *self = &driver->automatic;
  if (self->watched == driver->step.applied) {
    return;
  }
  self->watched = driver->step.applied;
  if (bl_evidence_step(&self->evidence, driver->seconds) && self->next > driver->step.applied + 1) {
    bl_log(BL_LOG_INFO, "auto: step %" PRIu64 " took %.4g ms, expected were %.4g ms: looks again", driver->step.applied,
           1e3 * driver->seconds, 1e3 * self->evidence.expected);
    self->next = driver->step.applied + 1;
  }
}

static bool trial_is_due(const bl_driver_t *driver, uint64_t applied) {
  const bl__automatic_t *self = &driver->automatic;
  return self->trial != 0 && applied >= self->trial && !self->asked && self->recorder == NULL;
}

bool bl__automatic_wants(bl_driver_t *driver) {
  bl__automatic_t *self = &driver->automatic;
  const bl_policy_record_t *current = current_of(driver);
  if (current == NULL || current->version != self->version) {
    forget(self);
    self->version = current != NULL ? current->version : 0;
    self->next = 0;
  }
  watch(driver);
  // The first step under a policy warms up what it needs. One with one block of a stage parked says enough all the same.
  return current != NULL && driver->life == BL__DRIVING && driver->seconds > 0 && has_alternatives(driver) &&
         !self->trying && driver->step.applied + bl_policy_probes(&current->policy) > current->from_step &&
         driver->step.applied != self->seen && driver->step.applied >= self->next;
}

bool bl__automatic_will_look(const bl_driver_t *driver) {
  const bl__automatic_t *self = &driver->automatic;
  return current_of(driver) != NULL && has_alternatives(driver) &&
         (driver->step.applied + 1 >= self->next || trial_is_due(driver, driver->step.applied + 1));
}

// ---- looking -----------------------------------------------------------------------------------------------------------

static bool begin_looks(bl_driver_t *driver) {
  bl__automatic_t *self = &driver->automatic;
  const bl_training_t *training = driver->options.training;
  if (self->evidence.stages == 0 && bl_evidence_init(&self->evidence, (uint32_t)driver->stage_count) != BL_OK) {
    return false;
  }
  bl_evidence_begin(&self->evidence);
  if (bl_recorder_create(driver->plans.balance.schedule, training->partition.spans, &self->recorder) != BL_OK) {
    end_looks(self);
    return false;
  }
  return true;
}

static void add_step(bl_driver_t *driver) {
  bl__automatic_t *self = &driver->automatic;
  bl_recorder_begin(self->recorder);
  for (size_t s = 0; s < driver->stage_count; s++) {
    const bl_stage_trace_t *trace = &driver->traces[s];
    for (size_t i = 0; i < trace->count; i++) {
      const bl_trace_item_t *item = &trace->records[i].item;
      if (item->wait) {
        bl_recorder_wait(self->recorder, (uint32_t)s, item->name, item->start_ns, item->end_ns);
      } else {
        bl_recorder_add(self->recorder, (uint32_t)s, item->name, item->start_ns, item->end_ns);
      }
    }
    const bl_remote_t *stage = &driver->stages[s];
    const bl_ballot_t *vote = stage->vote.attempt == driver->step.commit.attempt ? &stage->vote : &stage->last_vote;
    bl_evidence_copies(&self->evidence, (uint32_t)s, (double)vote->counters.moved_bytes,
                       1e-9 * (double)vote->counters.moved_ns);
  }
  bl_evidence_end_step(&self->evidence);
  bl_recorder_end(self->recorder, driver->seconds);
}

// ---- deciding ----------------------------------------------------------------------------------------------------------

// Cores that stages share: those of this machine, if all stages are on one.
static uint32_t shared_cores(const bl_driver_t *driver) {
  const bl_job_t *job = driver->options.job;
  cpu_set_t set;
  uint32_t cores = 0;
  bool together = true;
  for (size_t s = 1; s < driver->stage_count; s++) {
    together = together && strcmp(driver->stages[s].place.machine, driver->stages[0].place.machine) == 0;
  }
  if (job->pipeline.cores.set) {
    cores = (uint32_t)job->pipeline.cores.value;
  } else if (together && sched_getaffinity(0, sizeof set, &set) == 0) {
    cores = (uint32_t)CPU_COUNT(&set) / (uint32_t)job->pipeline.threads;
    cores = cores == 0 ? 1 : cores;
  }
  return cores < driver->stage_count ? cores : 0;
}

// What the looks say of the paths. Where nothing moved, what is known from before stays.
static bl_status_t learn_rates(bl_driver_t *driver, bl_error_t *err) {
  bl__automatic_t *self = &driver->automatic;
  if (!bl_evidence_rates(&self->evidence)) {
    return bl_holdings_move(&driver->plans.balance.holdings)
               ? bl_error_set(err, BL_PRECONDITION, "no block reached a store, so that paths could not be measured")
               : BL_OK;
  }
  self->measured = driver->step.applied;
  self->refused = 0;
  return BL_OK;
}

static bl_automatic_option_t option_of(const bl_policy_t *policy) {
  return (bl_automatic_option_t){.kind = policy->chosen, .mode = policy->mode, .copy = policy->copy};
}

// What to go on with: `found`, or with `start` whether that is worth a look.
static bl_status_t weigh(bl_driver_t *driver, const bl_policy_t *policy, const bl_profile_t *profile,
                         bl_automatic_t *found, bl_automatic_start_t *start, bl_error_t *err) {
  bl__automatic_t *self = &driver->automatic;
  const bl_training_t *training = driver->options.training;
  bl_chunk_costs_t *chunks = calloc(profile->chunk_count, sizeof *chunks);
  double *bytes = calloc(driver->stage_count, sizeof *bytes);
  bl_status_t status = chunks != NULL && bytes != NULL ? learn_rates(driver, err)
                                                       : bl_error_set(err, BL_EXHAUSTED, "no memory to weigh policies");
  for (uint32_t v = 0; v < profile->chunk_count && status == BL_OK; v++) {
    chunks[v] = profile->chunks[v].costs;
  }
  for (size_t s = 0; s < driver->stage_count && status == BL_OK; s++) {
    bytes[s] = (double)training->stages[s].evict_bytes;
  }
  if (status == BL_OK) {
    bl_costs_t costs = {.chunks = chunks, .boundary = profile->boundary};
    bl_automatic_option_t in_force = option_of(policy);
    bl_automatic_request_t request = {.schedule = bl_training_order(training, false),
                                      .pooled = bl_training_order(training, true),
                                      .costs = &costs,
                                      .block_bytes = bytes,
                                      .path_rates = self->evidence.known ? self->evidence.rates : NULL,
                                      .between = profile->between,
                                      .cores = shared_cores(driver),
                                      .handover = profile->handover,
                                      .budget = bl_policy_limit(policy, training),
                                      .lenders = policy->devices,
                                      .copies = training->copies,
                                      .in_force = &in_force,
                                      .measured = profile->step,
                                      .evidence = &self->evidence};
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
  const char *between = text[used - 1] == ' ' ? "" : "; ";
  const char *name = bl_policy_kind_name(option->kind), *mode = mode_of(option);
  char seen[32] = "";
  if (option->ratio > 0) {
    snprintf(seen, sizeof seen, ", %.2f of simulated", option->ratio);
  }
  if (option->kind == BL_POLICY_MIX) {
    if (option->fits) { // else it is one of the others
      snprintf(text + used, bytes - used, "%s%s%s %.4g ms, %u %s out, %u block%s again%s", between, name, mode,
               1e3 * option->step, option->evictions, bl_one_or_many(option->evictions, "copy", "copies"),
               option->dropped, bl_plural(option->dropped), seen);
    }
  } else if (option->fits) {
    bool drops = option->kind == BL_POLICY_DROP;
    uint32_t count = drops ? option->dropped : option->evictions;
    snprintf(text + used, bytes - used, "%s%s%s %.4g ms, %u %s%s", between, name, mode, 1e3 * option->step, count,
             drops ? bl_one_or_many(count, "block again", "blocks again")
                   : bl_one_or_many(count, "copy out", "copies out"),
             seen);
  } else {
    snprintf(text + used, bytes - used, "%s%s%s does not fit", between, name, mode);
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

// The change that was asked for is in force: what was found is about it. Or it was refused, and nothing is known.
static void changed(const bl_policy_answer_t *answer, const bl_error_t *err, void *context) {
  bl_driver_t *driver = context;
  bl__automatic_t *self = &driver->automatic;
  const bool trying = self->trying, starting = self->starting;
  self->asked = self->trying = self->starting = false;
  self->decided = self->decided && err->status == BL_OK;
  self->checking = self->checking && err->status == BL_OK;
  if (err->status == BL_OK && answer->record->policy.kind == BL_POLICY_AUTO) {
    self->version = answer->record->version;
    self->next = trying || starting || self->checking ? 0 : self->next;
  } else if (err->status != BL_OK && starting) {
    self->start[0] = '\0';
  } else if (err->status != BL_OK && trying) {
    self->measured = driver->step.applied;
    self->refused += self->refused < PATIENCE;
  }
}

// ---- trying again ------------------------------------------------------------------------------------------------------

// Where blocks are given up: when to park some again, and how. What paths a new driver has, it does not know.
static void plan_trial(bl_driver_t *driver, const bl_policy_t *chosen) {
  bl__automatic_t *self = &driver->automatic;
  const double share = driver->options.job->balance.trials;
  uint64_t rest = REST;
  self->trial = 0;
  self->tried = *chosen;
  if (chosen->chosen != BL_POLICY_DROP || share <= 0) {
    return;
  }
  if (!self->evidence.known) {
    self->tried.chosen = BL_POLICY_AUTO;
    bl_policy_begin(&self->tried, driver->options.training);
  } else {
    const bl_automatic_option_t *option = bl_automatic_untried(&self->found);
    self->tried.chosen = option != NULL ? option->kind : BL_POLICY_DROP;
    self->tried.mode = option != NULL ? option->mode : chosen->mode;
    self->tried.copy = option != NULL ? option->copy : 0;
    rest = bl_automatic_untried_for(&self->found, share);
    rest = rest < LONGEST ? rest : LONGEST;
  }
  rest = (rest > REST ? rest : REST) << self->refused;
  self->measured = self->measured == 0 ? driver->step.applied : self->measured;
  if (self->tried.chosen != BL_POLICY_DROP && rest < LONGEST) {
    self->trial = self->measured + rest;
  }
}

static void try_again(bl_driver_t *driver) {
  bl__automatic_t *self = &driver->automatic;
  const bl_policy_record_t *current = current_of(driver);
  if (current == NULL || current->version != self->version || current->policy.chosen != BL_POLICY_DROP ||
      driver->life != BL__DRIVING || !trial_is_due(driver, driver->step.applied) ||
      !bl__plans_wish(driver, &self->tried, changed)) {
    return;
  }
  self->asked = self->trying = self->decided = true;
  self->trial = 0;
  self->evidence.expected = 0;
  bl_automatic_cleanup(&self->found);
  snprintf(self->decision, sizeof self->decision,
           "after step %" PRIu64 ": parks blocks for some steps, by %s, to see what paths are worth now",
           driver->step.applied, bl_policy_kind_name(self->tried.chosen));
  bl_log(BL_LOG_INFO, "auto: %s", self->decision);
}

static void decide(bl_driver_t *driver, const bl_policy_t *policy) {
  bl__automatic_t *self = &driver->automatic;
  bl_profile_t profile = {0};
  bl_automatic_t found;
  bl_error_t err;
  const bl_training_t *training = driver->options.training;
  bl_status_t status =
      bl_recorder_fill(self->recorder, &training->model, training->layout.attention, false, &profile, &err);
  if (status == BL_OK) {
    status = weigh(driver, policy, &profile, &found, NULL, &err);
  }
  if (status != BL_OK) {
    bl_log(BL_LOG_WARNING, "auto: %s; the policy stays as it is", err.text);
    self->checking = false;
    bl_profile_cleanup(&profile);
    return;
  }
  bl_automatic_cleanup(&self->found);
  self->found = found;
  self->decided = true;
  const double measured = profile.step;
  describe(self, driver->step.applied, measured);
  bl_profile_cleanup(&profile);
  bl_log(BL_LOG_INFO, "auto: %s", self->decision);
  const bl_automatic_option_t *best = &found.options[found.best];
  self->evidence.expected = measured;
  bl_policy_t wanted = *policy;
  wanted.chosen = best->kind;
  wanted.mode = bl_policy_copies(best->kind) ? best->mode : wanted.mode;
  wanted.copy = best->copy;
  if (!bl_policy_equal(&wanted, policy)) {
    self->asked = bl__plans_wish(driver, &wanted, changed);
    self->decided = self->asked;                     // else somebody is changing the policy
    self->checking = self->asked && !self->checking; // once: noise is not to be followed around
    self->evidence.expected = best->step;
  } else {
    self->checking = false;
  }
  plan_trial(driver, &wanted);
}

// ---- beginning ---------------------------------------------------------------------------------------------------------

// A stage has parked one block: what is looked at next is the plan that parks all, or where steps under it would be far too
// slow the one that makes them again. False: the first step alone says so, and it had to warm up.
static bool begin(bl_driver_t *driver, const bl_policy_t *policy) {
  bl__automatic_t *self = &driver->automatic;
  const bl_training_t *training = driver->options.training;
  bl_profile_t profile = {0};
  bl_automatic_start_t foreseen = {0};
  bl_policy_t wanted = *policy;
  bl_error_t err;
  wanted.chosen = BL_POLICY_AUTO;
  wanted.copy = 0;
  bl_policy_settle(&wanted, training);
  bl_status_t status =
      bl_recorder_fill(self->recorder, &training->model, training->layout.attention, false, &profile, &err);
  if (status == BL_OK) {
    status = weigh(driver, &wanted, &profile, NULL, &foreseen, &err);
  }
  bl_profile_cleanup(&profile);
  if (foreseen.slow && self->looks < PROBES) {
    return false;
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
             " steps would take %.4g ms parking what has no slot, %.4g ms making it again; begins with %s",
             driver->step.applied, 1e3 * foreseen.parked, 1e3 * foreseen.again, bl_policy_kind_name(wanted.chosen));
  }
  bl_log(BL_LOG_INFO, "auto: %s", self->start);
  self->asked = self->starting = bl__plans_wish(driver, &wanted, changed);
  return true;
}

void bl__automatic_look(bl_driver_t *driver) {
  bl__automatic_t *self = &driver->automatic;
  if (!bl__automatic_wants(driver)) {
    try_again(driver);
    return;
  }
  self->seen = driver->step.applied;
  if (self->recorder == NULL && !begin_looks(driver)) {
    return;
  }
  add_step(driver);
  self->looks++;
  const bl_policy_t policy = current_of(driver)->policy;
  const bool probes = bl_policy_probes(&policy);
  bool enough = probes || bl_recorder_steps(self->recorder) >= STEPS;
  if ((!enough && self->looks < LOOKS_MAX) || (probes && !begin(driver, &policy))) {
    return;
  }
  if (!probes) {
    decide(driver, &policy);
  }
  end_looks(self);
  self->next = driver->step.applied + (probes && !self->asked ? 1 : REST); // 1: somebody else is changing the policy
}

// ---- for people --------------------------------------------------------------------------------------------------------

// Whether what was decided is in force.
static bool is_about(const bl__automatic_t *self, const bl_policy_record_t *current) {
  return self->decided && !self->asked && self->version == current->version;
}

const char *bl__automatic_decision(const bl_driver_t *driver) {
  const bl_policy_record_t *current = current_of(driver);
  if (current == NULL) {
    return "";
  }
  if (is_about(&driver->automatic, current)) {
    return driver->automatic.decision;
  }
  if (bl_policy_probes(&current->policy)) {
    return "not measured yet: each stage parks one block of a step, to see what paths are worth";
  }
  return current->policy.chosen == BL_POLICY_NONE ? "none: every stage has the slots that it needs"
         : driver->automatic.start[0] != '\0' && driver->automatic.version == current->version ? driver->automatic.start
                                                                                               : "not measured yet";
}

const char (*bl__automatic_reasons(const bl_driver_t *driver))[BL_AUTOMATIC_REASON] {
  const bl__automatic_t *self = &driver->automatic;
  const bl_policy_record_t *current = current_of(driver);
  return current != NULL && is_about(self, current) ? (const char(*)[BL_AUTOMATIC_REASON])self->found.reasons : NULL;
}

void bl__automatic_cleanup(bl_driver_t *driver) {
  forget(&driver->automatic);
  bl_evidence_cleanup(&driver->automatic.evidence);
}
