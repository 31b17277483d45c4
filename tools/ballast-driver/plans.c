// SPDX-License-Identifier: Apache-2.0
#include "driver_core.h"

#include "base/hash.h"
#include "schedule/csv/csv.h"
#include "sys/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// The caller of a change.
typedef struct caller {
  bl_driver_policy_fn done;
  void *context;
} caller_t;

// ---- proposals ------------------------------------------------------------------------------------------------------

// Returns 0 if there is no such plan.
static uint64_t digest_of(const char *text, bl_run_kind_t kind) {
  return text != NULL ? bl_hash64(text, strlen(text), (uint64_t)kind) : 0;
}

static void drop_proposal(bl__plans_t *plans) {
  bl_balance_plan_cleanup(&plans->next_balance);
  free(plans->next_text);
  plans->next_text = NULL;
  plans->open = false;
}

// Makes the policy's plan: plans->next_balance and plans->next_text.
static bl_status_t make_plan(bl_driver_t *driver, const bl_policy_t *policy, bl_error_t *err) {
  bl__plans_t *plans = &driver->plans;
  size_t size;
  bl_status_t status = bl_balance_plan_init(&plans->next_balance, driver->options.training, policy, err);
  if (status == BL_OK && bl_csv_write(plans->next_balance.schedule, &plans->next_text, &size) != BL_OK) {
    bl_balance_plan_cleanup(&plans->next_balance);
    status = bl_error_set(err, BL_EXHAUSTED, "no memory for a plan");
  }
  return status;
}

// All stages have prepared the proposal for training: makes its plan the one in force.
static void adopt(bl__plans_t *plans) {
  bl_balance_plan_cleanup(&plans->balance);
  free(plans->texts[BL_RUN_TRAIN]);
  plans->balance = plans->next_balance;
  plans->texts[BL_RUN_TRAIN] = plans->next_text;
  plans->next_balance = (bl_balance_plan_t){0};
  plans->next_text = NULL;
}

static void propose(bl_driver_t *driver, bl_run_kind_t kind) {
  bl__plans_t *plans = &driver->plans;
  const char *text = kind == BL_RUN_TRAIN ? plans->next_text : plans->texts[kind];
  uint64_t policy = kind == BL_RUN_TRAIN ? bl_policy_history_current(&plans->changes.next)->version : 0;
  plans->open = true;
  plans->refusal = (bl_error_t){.status = BL_OK};
  bl_driver_step_prepare(&driver->step, kind, digest_of(text, kind), policy);
}

bl_stage_plan_text_t bl__plan_text(const bl_driver_t *driver, const bl_driver_request_t *request) {
  const bl__plans_t *plans = &driver->plans;
  const bl_changes_t *changes = &plans->changes;
  bool trains = request->run.kind == BL_RUN_TRAIN;
  return (bl_stage_plan_text_t){.record = request->plan,
                                .reservation = changes->phase == BL_CHANGES_PREPARING ? changes->change.reservation : 0,
                                .kind = request->run.kind,
                                .schedule = trains ? plans->next_text : plans->texts[request->run.kind],

                                .history = trains ? &changes->next : NULL};
}

void bl__plan_refused(bl_remote_t *stage, const bl_driver_request_t *request, const bl_error_t *err) {
  bl_driver_t *driver = stage->driver;
  const bl_driver_step_t *step = &driver->step;
  if (step->phase == BL_DRIVER_PREPARING && step->proposal.version == request->plan.version) {
    char name[BL__STAGE_NAME_BYTES];
    driver->plans.refusal = *err;
    (void)bl_error_prefix(&driver->plans.refusal, "%s refuses", bl__stage_name(stage, name));
  }
  bl_driver_step_plan_refused(&driver->step, stage->index, request->plan.version);
}

bool bl__plans_setting_up(const bl_driver_t *driver) {
  return driver->plans.changes.phase == BL_CHANGES_OPENING;
}

// ---- setup ----------------------------------------------------------------------------------------------------------

const bl_policy_history_t *bl__plans_history(bl_driver_t *driver) {
  bl_changes_t *changes = &driver->plans.changes;
  uint64_t in_force = driver->step.plans[BL_RUN_TRAIN].version;
  for (size_t i = 0;
       changes->phase == BL_CHANGES_CLOSED && changes->history.count == 0 && in_force != 0 && i < BL_STAGE_PLANS; i++) {
    if (driver->peers[0].report.plans[i].version == in_force) {
      bl_changes_learn(changes, &driver->stages[0].policy_histories[i]);
    }
  }
  return &changes->history;
}

// Opens the history: with the policies of the plan in force that a predecessor left, otherwise with the job's policy.
static void open_book(bl_driver_t *driver) {
  bl_changes_t *changes = &driver->plans.changes;
  bl_policy_t first = bl_policy_of_job(driver->options.job);
  char text[BL_POLICY_TEXT];
  if (bl__plans_history(driver)->count == 0) {
    bl_policy_begin(&first, driver->options.training);
  }
  if (bl_changes_open(changes, &first, driver->step.applied)) {
    bl_log(BL_LOG_INFO, "policy %s, version %" PRIu64 ", is in force since step %" PRIu64,
           bl_policy_format(&changes->wanted.policy, text), changes->wanted.version, changes->wanted.from_step);
  }
}

static void adopt_first(bl__plans_t *plans) {
  adopt(plans);
  bl_changes_first_agreed(&plans->changes);
}

// Proposes the next plan that the stages need. Returns false if they have all.
static bool propose_next(bl_driver_t *driver) {
  bl__plans_t *plans = &driver->plans;
  for (; plans->next_kind < BL_RUN_KINDS; plans->next_kind++) {
    if (plans->next_kind == BL_RUN_TRAIN) {
      const bl_plan_record_t *in_force = &driver->step.plans[BL_RUN_TRAIN];
      if (in_force->version != 0 && in_force->digest == digest_of(plans->next_text, BL_RUN_TRAIN)) {
        adopt_first(plans);
        continue;
      }
    } else if (plans->texts[plans->next_kind] == NULL) {
      continue;
    }
    propose(driver, plans->next_kind++);
    return true;
  }
  bl_changes_opened(&plans->changes);
  return false;
}

bool bl__plans_begin(bl_driver_t *driver) {
  bl_error_t err;
  open_book(driver);
  if (make_plan(driver, &driver->plans.changes.wanted.policy, &err) != BL_OK) {
    bl__driver_fail(driver, &err);
    return true;
  }
  driver->plans.next_kind = BL_RUN_TRAIN;
  return propose_next(driver);
}

// A stage refuses a first plan. Stores may still be coming up, so it is proposed repeatedly for a while.
static void refused_in_setup(bl_driver_t *driver) {
  bl__plans_t *plans = &driver->plans;
  uint64_t now = bl__driver_now_ms(driver);
  // If the job requires certain paths, the driver waits for them. Until then the stage reports that it is not ready.
  const bool waits = driver->options.job->balance.require != BL_JOB_DATA_PATH_AUTO;
  switch (bl_changes_first_refused(&plans->changes, plans->refusal.status, waits, now)) {
  case BL_CHANGES_BLAME:
    plans->again_ms = UINT64_MAX;
    bl__presence_blame(&driver->stages[driver->step.refuser], &plans->refusal);
    return;
  case BL_CHANGES_FAIL:
    bl__driver_fail(driver, &plans->refusal);
    return;
  case BL_CHANGES_AGAIN:
    break;
  }
  if (plans->again_ms == 0) {
    bl_log(BL_LOG_WARNING, "%s; trying again", plans->refusal.text);
  }
  plans->next_kind = driver->step.proposal_kind;
  plans->again_ms = now + BL__RETRY_MS;
}

bool bl__plans_go_on(bl_driver_t *driver) {
  bl__plans_t *plans = &driver->plans;
  const bl_driver_step_t *step = &driver->step;
  if (!plans->open) {
    return bl__driver_now_ms(driver) < plans->again_ms || propose_next(driver);
  }
  plans->open = false;
  if (step->proposal_refused) {
    bool recovered = step->proposal_kind == BL_RUN_TRAIN && step->plans[BL_RUN_TRAIN].version != 0;
    if (!recovered) {
      refused_in_setup(driver);
      return true;
    }
    bl_log(BL_LOG_WARNING, "%s; the previous plan stays in force", plans->refusal.text);
    adopt_first(plans); // the stages' plan differs from the one that this driver makes of the same policy
  } else if (step->proposal_kind == BL_RUN_TRAIN) {
    adopt_first(plans);
  }
  return propose_next(driver);
}

// ---- changes --------------------------------------------------------------------------------------------------------

static void answer(caller_t *caller, const bl_policy_answer_t *answer, const bl_error_t *err) {
  static const bl_error_t none = {.status = BL_OK};
  caller->done(err != NULL ? NULL : answer, err != NULL ? err : &none, caller->context);
  free(caller);
}

// Returns the answer if nothing has to be changed.
static bl_policy_answer_t present(const bl_driver_t *driver, const bl_changes_answer_t *said) {
  bl_policy_answer_t answered = {.record = said->record, .unchanged = said->unchanged};
  if (said->in_force) {
    answered.device_slots = &driver->plans.balance.device_slots;
    answered.order = driver->plans.balance.order;
  }
  return answered;
}

// Adds to `err` that the policy in force stays.
static void refuse_change(const bl_driver_t *driver, const bl_policy_t *wanted, bl_error_t *err) {
  const bl_policy_record_t *current = bl_policy_history_current(&driver->plans.changes.history);
  char text[BL_POLICY_TEXT], before[BL_POLICY_TEXT];
  if (err->status == BL_UNAVAILABLE || err->status == BL_DEADLINE) {
    err->status = BL_PRECONDITION; // a store is unreachable, not this driver
  }
  (void)bl_error_prefix(err, "policy %s (version %" PRIu64 ") stays in force, %s was refused",
                        bl_policy_format(&current->policy, before), current->version, bl_policy_format(wanted, text));
  bl_log(BL_LOG_WARNING, "%s", err->text);
}

// Checks that every store of the proposed plan has answered since the change was requested, so that its reservations do
// not hold up the boundary. BL_UNAVAILABLE: not yet; `err` names one. Stores that this driver never reached are left to
// the stages.
static bl_status_t check_stores(const bl_driver_t *driver, uint64_t asked_ms, bl_error_t *err) {
  const bl_device_slots_t *device_slots = &driver->plans.next_balance.device_slots;
  for (size_t i = 0; i < bl_stores_count(driver->stores); i++) {
    bl_store_view_t store = bl_stores_get(driver->stores, i);
    if (bl_driver_lent(driver, device_slots, i) > 0 && store.seen_ms != 0 && store.seen_ms < asked_ms) {
      char name[BL_STORE_TEXT];
      return bl_error_set(err, BL_UNAVAILABLE, "the %s (%.150s) has not answered for %.1f s",
                          bl_store_format((uint32_t)driver->options.job->services.stores.count, (uint32_t)i, name),
                          store.address, (double)(bl__driver_now_ms(driver) - store.seen_ms) * 1e-3);
    }
  }
  return BL_OK;
}

// Makes and proposes a plan of the current change. Returns false if nothing is proposed.
static bool begin_change(bl_driver_t *driver) {
  bl__plans_t *plans = &driver->plans;
  bl_changes_t *changes = &plans->changes;
  const bl_policy_t *wanted = &changes->wanted.policy;
  bl_error_t err;
  if (make_plan(driver, wanted, &err) != BL_OK) {
    bl_changes_unplannable(changes);
    answer(changes->change.caller, NULL, &err);
    return false;
  }
  if (check_stores(driver, changes->change.asked_ms, &err) != BL_OK) {
    drop_proposal(plans);
    if (!bl_changes_stores_away(changes, bl__driver_now_ms(driver))) {
      refuse_change(driver, wanted, &err);
      answer(changes->change.caller, NULL, &err);
    }
    return false;
  }
  propose(driver, BL_RUN_TRAIN);
  bl_changes_proposed(changes, driver->step.proposal.version, bl__driver_now_ms(driver));
  return true;
}

// Answers what a policy would mean, or, for a request that is not a dry run, only that no plan can be made of it.
// Returns true if it was answered.
static bool look_at(bl_driver_t *driver, const bl_policy_request_t *request, bl_policy_record_t *wanted,
                    caller_t *caller) {
  bl_balance_plan_t plan = {0};
  bl_error_t err;
  bl_status_t status = bl_balance_plan_init(&plan, driver->options.training, &wanted->policy, &err);
  bool answered = status != BL_OK || request->dry_run;
  if (answered) {
    wanted->from_step = 0;
    bl_policy_answer_t done = {.record = wanted, .device_slots = &plan.device_slots, .order = plan.order};
    answer(caller, &done, status != BL_OK ? &err : NULL);
  }
  bl_balance_plan_cleanup(&plan);
  return answered;
}

// The stages have answered the proposal for a change: concludes the change.
static void conclude(bl_driver_t *driver) {
  bl__plans_t *plans = &driver->plans;
  bl_changes_t *changes = &plans->changes;
  char text[BL_POLICY_TEXT];
  plans->open = false;
  if (driver->step.proposal_refused) {
    bl_error_t err = plans->refusal;
    const bool waits = bl_changes_refused(changes, err.status, driver->step.highest_attempt, bl__driver_now_ms(driver));
    drop_proposal(plans);
    if (!waits) {
      refuse_change(driver, &changes->wanted.policy, &err);
      answer(changes->change.caller, NULL, &err);
    }
    return;
  }
  adopt(plans);
  bl_changes_agreed(changes, driver->step.highest_attempt);
  const bl_policy_record_t *record = bl_policy_history_current(&changes->history);
  bl_log(BL_LOG_INFO, "policy %s, version %" PRIu64 ", is in force from step %" PRIu64 " on",
         bl_policy_format(&record->policy, text), record->version, record->from_step);
  bl_policy_answer_t done = {
      .record = record, .device_slots = &plans->balance.device_slots, .order = plans->balance.order};
  answer(changes->change.caller, &done, NULL);
}

bool bl__plans_boundary(bl_driver_t *driver, bool held) {
  bl_changes_t *changes = &driver->plans.changes;
  const bl_driver_step_t *step = &driver->step;
  if (changes->phase == BL_CHANGES_PREPARING) {
    conclude(driver);
  }
  for (;;) {
    bl_changes_answer_t said;
    bl_policy_answer_t done;
    bl_error_t err;
    const size_t waiting = changes->waiting_count;
    switch (bl_changes_boundary(changes, step->applied, step->highest_attempt, held, &said, &err)) {
    case BL_CHANGES_NOTHING:
      return false;
    case BL_CHANGES_ANSWER:
      done = err.status == BL_OK ? present(driver, &said) : (bl_policy_answer_t){0};
      answer(changes->change.caller, &done, err.status == BL_OK ? NULL : &err);
      break;
    case BL_CHANGES_LOOK:
      (void)look_at(driver, &changes->change.request, &changes->wanted, changes->change.caller);
      break;
    case BL_CHANGES_MAKE:
      if (begin_change(driver)) {
        return true;
      }
      if (changes->waiting_count == waiting) {
        return false; // it waits for stores, and a step runs in the meantime
      }
      break;
    }
  }
}

void bl__plans_end_waits(bl_driver_t *driver, const bl_error_t *err) {
  bl_change_t change;
  bl_changes_end(&driver->plans.changes);
  while (bl_changes_take(&driver->plans.changes, &change)) {
    answer(change.caller, NULL, err);
  }
}

void bl__plans_cleanup(bl_driver_t *driver) {
  bl__plans_t *plans = &driver->plans;
  bl_change_t change;
  bl_changes_end(&plans->changes);
  while (bl_changes_take(&plans->changes, &change)) {
    free(change.caller);
  }
  drop_proposal(plans);
  bl_balance_plan_cleanup(&plans->balance);
  for (size_t kind = 0; kind < BL_RUN_KINDS; kind++) {
    free(plans->texts[kind]);
  }
}

// ---- for callers ----------------------------------------------------------------------------------------------------

// Answers what needs no stages: refusals, dry runs, what is already in force. Returns false if the request must wait.
static bool answer_at_once(bl_driver_t *driver, const bl_policy_request_t *request, caller_t *caller) {
  bl_policy_record_t wanted;
  bl_changes_answer_t said;
  bl_policy_answer_t done;
  bl_error_t err;
  if (driver->state >= BL__RUN_FINISHED) {
    (void)bl_error_set(&err, BL_PRECONDITION, "the run is %s: no step is left that a policy could be in force for",
                       driver->state == BL__RUN_FINISHED ? "finished" : "ending");
    answer(caller, NULL, &err);
    return true;
  }
  switch (bl_changes_ask(&driver->plans.changes, request, driver->step.applied, &wanted, &said, &err)) {
  case BL_CHANGES_ASK_REFUSED:
    answer(caller, NULL, &err);
    return true;
  case BL_CHANGES_ASK_DONE:
    done = present(driver, &said);
    answer(caller, &done, NULL);
    return true;
  case BL_CHANGES_ASK_LOOK:
    return look_at(driver, request, &wanted, caller);
  case BL_CHANGES_ASK_LATER:
    break;
  }
  return false;
}

static void add_change(bl_driver_t *driver, const bl_policy_request_t *request, caller_t *caller) {
  const uint64_t now = bl__driver_now_ms(driver);
  bl_stores_look(driver->stores, now);
  bl_changes_add(&driver->plans.changes, request, caller, now);
}

static caller_t *make_caller(bl_driver_policy_fn done, void *context) {
  caller_t *caller = malloc(sizeof *caller);
  if (caller != NULL) {
    *caller = (caller_t){.done = done, .context = context};
  }
  return caller;
}

bool bl__plans_wish(bl_driver_t *driver, const bl_policy_t *policy, bl_driver_policy_fn done) {
  caller_t *caller = bl_changes_open_count(&driver->plans.changes) == 0 ? make_caller(done, driver) : NULL;
  if (caller != NULL) {
    add_change(driver, &(bl_policy_request_t){.policy = *policy, .begun = *policy}, caller);
  }
  return caller != NULL;
}

// Returns what a requested policy begins as.
static bl_policy_t begin_of(const bl_driver_t *driver, const bl_policy_t *asked) {
  bl_policy_t begun = *asked;
  bl_policy_begin(&begun, driver->options.training);
  return begun;
}

void bl_driver_set_policy(bl_driver_t *driver, const bl_policy_request_t *request, bl_driver_policy_fn done,
                          void *context) {
  const bl_changes_t *changes = &driver->plans.changes;
  caller_t *caller = bl_changes_full(changes) ? NULL : make_caller(done, context);
  if (caller == NULL) {
    bl_error_t err;
    (void)bl_error_set(&err, BL_EXHAUSTED,
                       "%zu changes of the policy wait for a step boundary: ask again when they are done",
                       changes->waiting_count);
    done(NULL, &err, context);
    return;
  }
  bl_policy_request_t asked = *request;
  asked.begun = begin_of(driver, &request->policy);
  if (answer_at_once(driver, &asked, caller)) {
    return;
  }
  add_change(driver, &asked, caller);
  bl__driver_pump(driver);
}
