// SPDX-License-Identifier: Apache-2.0
#include "meter.h"

#include "base/minmax.h"

#include <math.h>
#include <string.h>

// Counters of a stage with metrics: their index, row and sum.
#define INDEX_TOTAL(name, ...) TOTAL_##name,
#define INDEX_NONE
#define ROW_TOTAL(name, metric, stage_help, help) [TOTAL_##name] = COUNTER("ballast_run_" metric "_total", help),
#define ROW_NONE
#define ADD_TOTAL(name, ...) bl_registry_add(registry, TOTAL_##name, 0, (double)counters->name);
#define ADD_NONE

enum {
  PHASE,
  STEP,
  STEPS_WANTED,
  STEPS,
  TOKENS,
  LOSS,
  GRAD_NORM,
  VALIDATION_LOSS,
  STEP_SECONDS,
  POLICY_VERSION,
  STAGES,
  STAGES_REACHABLE,
  STORES,
  STORES_REACHABLE,
  DEVICE_SLOTS,
  LENT_SLOTS,
  LEASED_SLOTS,
  UNPLANNED,
  BL_STAGE_COUNTERS(BL_COUNTER_METRIC, INDEX, ) // TOTAL_evicted, ...
  CHECKPOINTS,
  CHECKPOINT_SECONDS,
  CHECKPOINT_STOPPED,
  CHECKPOINT_EVERY,
  UNSAVED,
  WAITING,
  ROWS
};

// ---- values of labels

static const char *const phases[] = {BL_DRIVER_STARTING, "connecting", "configuring", "running",
                                     "paused",           "finished",   "failed"};
#define PHASES (sizeof phases / sizeof phases[0])
static const char *phase_name(unsigned index) {
  return phases[index];
}

static const char *const outcomes[] = {"committed", "failed"};
static const char *outcome_name(unsigned index) {
  return outcomes[index];
}

static const char *const owners[] = {"device", "host"};
static const char *owner_name(unsigned index) {
  return owners[index];
}

static const char *const extremes[] = {"fullest", "emptiest"};
static const char *extreme_name(unsigned index) {
  return extremes[index];
}

// ---- the table

#define COUNTER(name_, help_)                                                                                          \
  { .name = name_, .kind = BL_METRIC_COUNTER, .help = help_ }
#define GAUGE(name_, help_)                                                                                            \
  { .name = name_, .kind = BL_METRIC_GAUGE, .help = help_ }

const bl_metric_row_t bl_meter_rows[] = {
    [PHASE] = {.name = "ballast_run_phase",
               .kind = BL_METRIC_GAUGE,
               .label = "phase",
               .value_of = phase_name,
               .series = PHASES,
               .help = "1 for the phase the run is in, 0 for the others."},
    [STEP] = GAUGE("ballast_run_step", "The last committed step."),
    [STEPS_WANTED] = GAUGE("ballast_run_steps", "The step at which the run ends."),
    [STEPS] = COUNTER("ballast_run_steps_total", "Steps committed that this driver has reported."),
    [TOKENS] = COUNTER("ballast_run_tokens_total", "Tokens of these steps."),
    [LOSS] = GAUGE("ballast_run_loss", "Loss of the last committed step, in nats per token; NaN before the first."),
    [GRAD_NORM] = GAUGE("ballast_run_gradient_norm", "Gradient norm of that step, before clipping."),
    [VALIDATION_LOSS] = GAUGE("ballast_run_validation_loss", "Loss of the last look at held-out data; NaN before."),
    [STEP_SECONDS] = {.name = "ballast_run_step_seconds",
                      .kind = BL_METRIC_HISTOGRAM,
                      .bounds = BL_REGISTRY_STEP_SECONDS,
                      .help =
                          "Time of a committed step, from the start of its attempt until all stages have applied it."},
    [POLICY_VERSION] = GAUGE("ballast_policy_version", "Version of the policy that the last committed step followed."),
    [STAGES] = GAUGE("ballast_stages", "Stages of the job, of all replicas."),
    [STAGES_REACHABLE] = GAUGE("ballast_stages_reachable", "Stages that answer."),
    [STORES] = GAUGE("ballast_stores", "Stores of the job, of devices and of hosts."),
    [STORES_REACHABLE] = GAUGE("ballast_stores_reachable", "Stores that answer."),
    [DEVICE_SLOTS] = {.name = "ballast_run_device_slots",
                      .kind = BL_METRIC_GAUGE,
                      .label = "device",
                      .value_of = extreme_name,
                      .series = 2,
                      .help = "Slots that the fullest and the emptiest device kept in the last committed step: those "
                              "of its own stage and those that it lends."},
    [LENT_SLOTS] = {.name = "ballast_run_lent_slots",
                    .kind = BL_METRIC_GAUGE,
                    .label = "of",
                    .value_of = owner_name,
                    .series = 2,
                    .help = "Slots that all stores lent in the last committed step, by whose memory it is."},
    [LEASED_SLOTS] = {.name = "ballast_run_leased_slots",
                      .kind = BL_METRIC_GAUGE,
                      .label = "of",
                      .value_of = owner_name,
                      .series = 2,
                      .help = "The peak number of them that were leased at once, summed over stores."},
    [UNPLANNED] = COUNTER("ballast_run_unplanned_recomputes_total",
                          "Blocks recomputed because a store lost them or did not take them: not those that the policy "
                          "drops."),
    [CHECKPOINTS] = {.name = "ballast_run_checkpoints_total",
                     .kind = BL_METRIC_COUNTER,
                     .label = "outcome",
                     .value_of = outcome_name,
                     .series = 2,
                     .help = "Checkpoints, by how they ended."},
    [CHECKPOINT_SECONDS] = GAUGE("ballast_run_checkpoint_seconds", "Time of the last checkpoint, copy to commit."),
    [CHECKPOINT_STOPPED] = GAUGE("ballast_run_checkpoint_stopped_seconds", "Of these, training was stopped."),
    [CHECKPOINT_EVERY] =
        GAUGE("ballast_run_checkpoint_every_steps", "checkpoint.every of the job; 0: at the end only."),
    [UNSAVED] = GAUGE("ballast_run_unsaved_steps",
                      "Steps since the last checkpoint that was committed, or since this driver began."),
    [WAITING] = GAUGE("ballast_run_waiting_seconds", "How long the driver has been waiting for what it waits for."),
    BL_STAGE_COUNTERS(BL_COUNTER_METRIC, ROW, ) // TOTAL_evicted, ...
};
const size_t bl_meter_row_count = ROWS;

// ---- reading

static void set_device_slots(bl_registry_t *registry, const bl_step_event_t *step) {
  uint64_t most = 0, fewest = UINT64_MAX;
  for (size_t i = 0; i < step->stage_count; i++) {
    uint64_t slots = step->stages[i].counters.own_slots;
    for (size_t k = 0; k < step->store_count; k++) {
      const bl_store_share_t *store = &step->stores[k];
      slots += !store->of_host && store->device == i ? store->lent_slots : 0;
    }
    most = bl_max_u64(most, slots);
    fewest = bl_min_u64(fewest, slots);
  }
  bl_registry_set(registry, DEVICE_SLOTS, 0, (double)most);
  bl_registry_set(registry, DEVICE_SLOTS, 1, (double)fewest);
}

static void add_step(bl_registry_t *registry, const bl_step_event_t *step) {
  bl_registry_add(registry, STEPS, 0, 1);
  bl_registry_add(registry, UNSAVED, 0, 1);
  bl_registry_add(registry, TOKENS, 0, (double)step->tokens);
  bl_registry_set(registry, LOSS, 0, step->loss);
  bl_registry_set(registry, GRAD_NORM, 0, step->grad_norm);
  bl_registry_observe(registry, STEP_SECONDS, 0, step->seconds);
  bl_registry_set(registry, POLICY_VERSION, 0, (double)step->ran_under.version);
  for (size_t i = 0; i < step->stage_count; i++) {
    const bl_stage_counters_t *counters = &step->stages[i].counters;
    BL_STAGE_COUNTERS(BL_COUNTER_METRIC, ADD, )
  }
  bl_registry_add(registry, UNPLANNED, 0, (double)step->unplanned_recomputes);
  set_device_slots(registry, step);
  uint64_t lent[2] = {0}, leased[2] = {0}; // by owner
  for (size_t i = 0; i < step->store_count; i++) {
    lent[step->stores[i].of_host] += step->stores[i].lent_slots;
    leased[step->stores[i].of_host] += step->stores[i].peak_leased;
  }
  for (unsigned owner = 0; owner < 2; owner++) {
    bl_registry_set(registry, LENT_SLOTS, owner, (double)lent[owner]);
    bl_registry_set(registry, LEASED_SLOTS, owner, (double)leased[owner]);
  }
}

static void add_event(bl_registry_t *registry, const bl_event_t *event) {
  switch (event->kind) {
  case BL_EVENT_STEP:
    add_step(registry, &event->step);
    break;
  case BL_EVENT_VALIDATION:
    bl_registry_set(registry, VALIDATION_LOSS, 0, event->validation.loss);
    break;
  case BL_EVENT_CHECKPOINT:
    bl_registry_add(registry, CHECKPOINTS, event->checkpoint->error[0] != '\0', 1);
    if (event->checkpoint->error[0] == '\0') {
      bl_registry_set(registry, CHECKPOINT_SECONDS, 0, event->checkpoint->seconds);
      bl_registry_set(registry, CHECKPOINT_STOPPED, 0, event->checkpoint->stopped_seconds);
    }
    break;
  default:
    break;
  }
}

static void set_phase(bl_registry_t *registry, const char *phase) {
  for (unsigned i = 0; i < PHASES; i++) {
    bl_registry_set(registry, PHASE, i, strcmp(phases[i], phase) == 0);
  }
}

void bl_meter_collect(bl_registry_t *registry, const bl_driver_t *driver, uint64_t *revision) {
  if (*revision == 0) {
    bl_registry_set(registry, LOSS, 0, NAN);
    bl_registry_set(registry, VALIDATION_LOSS, 0, NAN);
  }
  if (driver == NULL) {
    set_phase(registry, BL_DRIVER_STARTING);
    return;
  }
  const bl_event_t *event;
  const bl_event_t *saved = NULL;
  while ((event = bl_run_journal_after(bl_driver_journal(driver), *revision)) != NULL) {
    add_event(registry, event);
    saved = event->kind == BL_EVENT_CHECKPOINT && event->checkpoint->error[0] == '\0' ? event : saved;
    *revision = event->revision;
  }
  bl_driver_view_t view = bl_driver_look(driver);
  set_phase(registry, view.phase);
  if (saved != NULL) {
    bl_registry_set(registry, UNSAVED, 0, (double)(view.step - saved->checkpoint->step));
  }
  bl_registry_set(registry, CHECKPOINT_EVERY, 0, (double)bl_driver_job(driver)->checkpoint.every);
  bl_registry_set(registry, STEP, 0, (double)view.step);
  bl_registry_set(registry, STEPS_WANTED, 0, (double)view.steps);
  bl_registry_set(registry, WAITING, 0, view.waiting_for[0] == '\0' ? 0 : (double)view.waiting_ns / 1e9);
  size_t count = bl_driver_stage_count(driver), reachable = 0;
  for (size_t i = 0; i < count; i++) {
    reachable += bl_driver_stage(driver, i).reachable;
  }
  const bl_stores_t *stores = bl_driver_stores(driver);
  size_t store_count = bl_stores_count(stores), stores_reachable = 0;
  for (size_t d = 0; d < store_count; d++) {
    stores_reachable += bl_stores_get(stores, d).reachable;
  }
  bl_registry_set(registry, STORES, 0, (double)store_count);
  bl_registry_set(registry, STORES_REACHABLE, 0, (double)stores_reachable);
  bl_registry_set(registry, STAGES, 0, (double)count);
  bl_registry_set(registry, STAGES_REACHABLE, 0, (double)reachable);
}
