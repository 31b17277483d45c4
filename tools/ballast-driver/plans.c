// SPDX-License-Identifier: Apache-2.0
#include "driver_core.h"

#include "base/hash.h"
#include "schedule/csv/csv.h"
#include "sys/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CHANGES_MAX 64   // that wait: bounds what a caller in a loop can pile up
#define STORES_MS   4000 // for the stores of a plan to show that they are there
// For stages to find out about their stores, which takes them 4 s, with NCCL 30 s (acceptor.h of stage-service).
#define PROPOSALS_MS    40000
#define PROPOSALS_LEAST 2 // also when a step takes longer

// ---- proposals -------------------------------------------------------------------------------------------------------

// NULL: there is no such plan.
static uint64_t digest_of(const char *text, bl_run_kind_t kind) {
  return text != NULL ? bl_hash64(text, strlen(text), (uint64_t)kind) : 0;
}

static void drop_proposal(bl__plans_t *plans) {
  bl_balance_plan_cleanup(&plans->next_balance);
  free(plans->next_text);
  plans->next_text = NULL;
  plans->open = false;
}

// What the policy means: plans->next_balance and plans->next_text.
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

// All stages have prepared the proposal for training: it is what runs from now on.
static void adopt(bl__plans_t *plans) {
  bl_balance_plan_cleanup(&plans->balance);
  free(plans->texts[BL_RUN_TRAIN]);
  plans->balance = plans->next_balance;
  plans->texts[BL_RUN_TRAIN] = plans->next_text;
  plans->book = plans->next_book;
  plans->next_balance = (bl_balance_plan_t){0};
  plans->next_text = NULL;
}

static void propose(bl_driver_t *driver, bl_run_kind_t kind) {
  bl__plans_t *plans = &driver->plans;
  const char *text = kind == BL_RUN_TRAIN ? plans->next_text : plans->texts[kind];
  uint64_t policy = kind == BL_RUN_TRAIN ? bl_policy_book_current(&plans->next_book)->version : 0;
  plans->open = true;
  plans->refusal = (bl_error_t){.status = BL_OK};
  bl_driver_step_prepare(&driver->step, kind, digest_of(text, kind), policy);
}

bl_stage_plan_text_t bl__plan_text(const bl_driver_t *driver, const bl_driver_request_t *request) {
  const bl__plans_t *plans = &driver->plans;
  bool trains = request->run.kind == BL_RUN_TRAIN;
  return (bl_stage_plan_text_t){.record = request->plan,
                                .reservation = trains && plans->change != NULL ? plans->change->reservation : 0,
                                .kind = request->run.kind,
                                .schedule = trains ? plans->next_text : plans->texts[request->run.kind],
                                .book = trains ? &plans->next_book : NULL};
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

// ---- setup -------------------------------------------------------------------------------------------------------------

const bl_policy_book_t *bl__plans_book(bl_driver_t *driver) {
  bl__plans_t *plans = &driver->plans;
  uint64_t in_force = driver->step.plans[BL_RUN_TRAIN].version;
  for (size_t i = 0; plans->book.count == 0 && in_force != 0 && i < BL_STAGE_PLANS; i++) {
    if (driver->peers[0].report.plans[i].version == in_force) {
      plans->book = driver->stages[0].books[i];
    }
  }
  return &plans->book;
}

// The policies that a predecessor left: those of the plan in force. Else the job's is the first.
static void open_book(bl_driver_t *driver) {
  bl__plans_t *plans = &driver->plans;
  plans->next_book = *bl__plans_book(driver);
  const bl_policy_record_t *current = bl_policy_book_current(&plans->next_book);
  char text[BL_POLICY_TEXT];
  if (current != NULL) {
    bl_log(BL_LOG_INFO, "policy %s, version %" PRIu64 ", is in force since step %" PRIu64,
           bl_policy_format(&current->policy, text), current->version, current->from_step);
    return;
  }
  bl_policy_record_t first = {.policy = bl_policy_of_job(driver->options.job), .from_step = driver->step.applied + 1};
  bl_policy_begin(&first.policy, driver->options.training);
  bl_policy_book_add(&plans->next_book, &first);
}

// Proposes the next plan that the stages need; false when they have all.
static bool propose_next(bl_driver_t *driver) {
  bl__plans_t *plans = &driver->plans;
  for (; plans->next_kind < BL_RUN_KINDS; plans->next_kind++) {
    if (plans->next_kind == BL_RUN_TRAIN) {
      const bl_plan_record_t *in_force = &driver->step.plans[BL_RUN_TRAIN];
      if (in_force->version != 0 && in_force->digest == digest_of(plans->next_text, BL_RUN_TRAIN)) {
        adopt(plans);
        continue;
      }
    } else if (plans->texts[plans->next_kind] == NULL) {
      continue;
    }
    propose(driver, plans->next_kind++);
    return true;
  }
  plans->setting_up = false;
  return false;
}

bool bl__plans_begin(bl_driver_t *driver) {
  bl_error_t err;
  open_book(driver);
  if (make_plan(driver, &bl_policy_book_current(&driver->plans.next_book)->policy, &err) != BL_OK) {
    bl__driver_fail(driver, &err);
    return true;
  }
  driver->plans.setting_up = true;
  driver->plans.next_kind = BL_RUN_TRAIN;
  return propose_next(driver);
}

// A stage refuses a first plan: stores may still be coming up, so that it is proposed again for a while.
static void refused_in_setup(bl_driver_t *driver) {
  bl__plans_t *plans = &driver->plans;
  uint64_t now = bl__driver_now_ms(driver);
  bool passes = plans->refusal.status == BL_UNAVAILABLE || plans->refusal.status == BL_DEADLINE;
  plans->setup_began_ms = plans->setup_began_ms == 0 ? now : plans->setup_began_ms;
  // What the job requires of its paths is waited for: the stage says that it is not ready until it is there.
  const bool waits = driver->options.job->balance.require != BL_JOB_DATA_PATH_AUTO;
  if (plans->refusal.status == BL_PRECONDITION) { // it may be another process, which knows nothing of this run
    plans->again_ms = UINT64_MAX;
    bl__presence_blame(&driver->stages[driver->step.refuser], &plans->refusal);
    return;
  }
  if (!passes || (!waits && now - plans->setup_began_ms > BL_DRIVER_STORES_MS)) {
    bl__driver_fail(driver, &plans->refusal);
    return;
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
    bl_log(BL_LOG_WARNING, "%s; the plan before goes on", plans->refusal.text);
    adopt(plans); // the stages' plan differs from what this driver would make of the same policy
  } else if (step->proposal_kind == BL_RUN_TRAIN) {
    adopt(plans);
  }
  return propose_next(driver);
}

// ---- changes -------------------------------------------------------------------------------------------------------------

static void answer(bl__change_t *change, const bl_policy_answer_t *answer, const bl_error_t *err) {
  static const bl_error_t none = {.status = BL_OK};
  change->done(err != NULL ? NULL : answer, err != NULL ? err : &none, change->context);
  free(change);
}

static bl__change_t *take_change(bl__plans_t *plans) {
  bl__change_t *change = plans->changes;
  plans->changes = change->next;
  plans->waiting--;
  return change;
}

// What the request asks for now, as a record to be added to the book.
static bl_status_t resolve(const bl_driver_t *driver, const bl_policy_request_t *request, bl_policy_record_t *record,
                           bl_error_t *err) {
  *record = (bl_policy_record_t){
      .policy = request->policy, .request = request->request, .from_step = driver->step.applied + 1};
  if (request->rollback) {
    const bl_policy_record_t *earlier;
    bl_status_t status = bl_policy_book_rollback(&driver->plans.book, request->to_version, &earlier, err);
    if (status != BL_OK) {
      return status;
    }
    record->policy = earlier->policy;
    record->restores = earlier->version;
  }
  const bl_policy_record_t *current = bl_policy_book_current(&driver->plans.book);
  const bl_policy_t *now = current != NULL ? &current->policy : NULL;
  bool on = now != NULL && now->kind == BL_POLICY_AUTO && record->policy.kind == BL_POLICY_AUTO;
  if (on && record->policy.chosen == BL_POLICY_AUTO && now->cap == record->policy.cap &&
      now->devices == record->policy.devices) {
    record->policy = *now; // what it has chosen stays
  }
  bl_policy_begin(&record->policy, driver->options.training);
  const bl_schedule_t *schedule = driver->options.training->schedule;
  if (record->policy.kind == BL_POLICY_BPIPE && record->policy.cap == 0) {
    record->policy.cap = bl_balance_bpipe_cap(schedule->stages) * schedule->chunks;
  }
  return BL_OK;
}

// True when the request needs no change: it was carried out before, or what it asks for is in force.
static bool is_done(const bl_driver_t *driver, const bl_policy_request_t *request, const bl_policy_record_t *wanted,
                    bl_policy_answer_t *answered) {
  const bl_policy_book_t *book = &driver->plans.book;
  const bl_policy_record_t *current = bl_policy_book_current(book);
  const bl_policy_record_t *before = bl_policy_book_find_request(book, request->request);
  bool unchanged = before == NULL && current != NULL && bl_policy_equal(&current->policy, &wanted->policy);
  *answered = (bl_policy_answer_t){.record = before != NULL ? before : current, .unchanged = unchanged};
  if (answered->record == current) {
    answered->holdings = &driver->plans.balance.holdings;
    answered->order = driver->plans.balance.order;
  }
  return before != NULL || unchanged;
}

// Says in `err` why the policy in force stays.
static void refuse_change(const bl_driver_t *driver, const bl_policy_t *wanted, bl_error_t *err) {
  const bl_policy_record_t *current = bl_policy_book_current(&driver->plans.book);
  char text[BL_POLICY_TEXT], before[BL_POLICY_TEXT];
  if (err->status == BL_UNAVAILABLE || err->status == BL_DEADLINE) {
    err->status = BL_PRECONDITION; // it is a store that cannot be reached, not this driver that is not there
  }
  (void)bl_error_prefix(err, "policy %s (version %" PRIu64 ") stays in force, %s was refused",
                        bl_policy_format(&current->policy, before), current->version, bl_policy_format(wanted, text));
  bl_log(BL_LOG_WARNING, "%s", err->text);
}

// Whether every store of the proposed plan has shown that it is there since the change was asked for, so that its
// reservations do not hold the boundary up. BL_UNAVAILABLE: not yet; then `err` names one. Stores that this driver never
// reached are left to the stages.
static bl_status_t check_stores(const bl_driver_t *driver, const bl__change_t *change, bl_error_t *err) {
  const bl_holdings_t *holdings = &driver->plans.next_balance.holdings;
  for (size_t d = 0; d < holdings->devices && d < bl_stores_count(driver->stores); d++) {
    bl_store_view_t store = bl_stores_get(driver->stores, d);
    if (holdings->lent[d] > 0 && store.seen_ms != 0 && store.seen_ms < change->asked_ms) {
      return bl_error_set(err, BL_UNAVAILABLE, "the store of device %zu (%.150s) has not answered for %.1f s", d,
                          store.address, (double)(bl__driver_now_ms(driver) - store.seen_ms) * 1e-3);
    }
  }
  return BL_OK;
}

typedef enum { CHANGE_BEGUN, CHANGE_ANSWERED, CHANGE_WAITS } change_state_t;

static change_state_t begin_change(bl_driver_t *driver, bl__change_t *change) {
  bl__plans_t *plans = &driver->plans;
  bl_policy_record_t wanted;
  bl_policy_answer_t done;
  bl_error_t err;
  bl_status_t status = resolve(driver, &change->request, &wanted, &err);
  if (status == BL_OK && is_done(driver, &change->request, &wanted, &done)) {
    answer(change, &done, NULL);
    return CHANGE_ANSWERED;
  }
  if (status == BL_OK) {
    status = make_plan(driver, &wanted.policy, &err);
  }
  if (status == BL_OK && check_stores(driver, change, &err) != BL_OK) {
    drop_proposal(plans);
    if (bl__driver_now_ms(driver) - change->asked_ms < STORES_MS) {
      return CHANGE_WAITS;
    }
    status = err.status;
    refuse_change(driver, &wanted.policy, &err);
  }
  if (status != BL_OK) {
    answer(change, NULL, &err);
    return CHANGE_ANSWERED;
  }
  plans->change = change;
  plans->next_book = plans->book;
  bl_policy_book_add(&plans->next_book, &wanted);
  propose(driver, BL_RUN_TRAIN);
  if (change->proposals++ == 0) {
    change->reservation = driver->step.proposal.version;
    change->proposed_ms = bl__driver_now_ms(driver);
  }
  return CHANGE_BEGUN;
}

// Stores of some stage have not answered at once: steps go on while they are waited for, and the plan is proposed again.
static bool waits_for_stores(const bl_driver_t *driver, const bl__change_t *change) {
  bool early = change->proposals <= PROPOSALS_LEAST || bl__driver_now_ms(driver) - change->proposed_ms < PROPOSALS_MS;
  return driver->plans.refusal.status == BL_DEADLINE && early;
}

static void conclude(bl_driver_t *driver) {
  bl__plans_t *plans = &driver->plans;
  bl__change_t *change = plans->change;
  const bl_policy_record_t *wanted = bl_policy_book_current(&plans->next_book);
  char text[BL_POLICY_TEXT];
  plans->change = NULL;
  plans->open = false;
  plans->changed_after = driver->step.highest_attempt;
  if (driver->step.proposal_refused && waits_for_stores(driver, change)) {
    drop_proposal(plans);
    change->next = plans->changes;
    plans->changes = change;
    plans->waiting++;
    return;
  }
  if (driver->step.proposal_refused) {
    bl_error_t err = plans->refusal;
    refuse_change(driver, &wanted->policy, &err);
    drop_proposal(plans);
    answer(change, NULL, &err);
    return;
  }
  adopt(plans);
  const bl_policy_record_t *record = bl_policy_book_current(&plans->book);
  bl_log(BL_LOG_INFO, "policy %s, version %" PRIu64 ", is in force from step %" PRIu64 " on",
         bl_policy_format(&record->policy, text), record->version, record->from_step);
  bl_policy_answer_t done = {.record = record, .holdings = &plans->balance.holdings, .order = plans->balance.order};
  answer(change, &done, NULL);
}

bool bl__plans_boundary(bl_driver_t *driver, bool held) {
  bl__plans_t *plans = &driver->plans;
  if (plans->open) {
    conclude(driver);
  }
  while (plans->changes != NULL) {
    if (!held && plans->changed_after == driver->step.highest_attempt && driver->step.highest_attempt > 0) {
      return false; // a step runs under each
    }
    bl__change_t *change = take_change(plans);
    switch (begin_change(driver, change)) {
    case CHANGE_BEGUN:
      return true;
    case CHANGE_ANSWERED:
      break;
    case CHANGE_WAITS:
      change->next = plans->changes;
      plans->changes = change;
      plans->waiting++;
      return false; // a step runs meanwhile
    }
  }
  return false;
}

void bl__plans_end_waits(bl_driver_t *driver, const bl_error_t *err) {
  bl__plans_t *plans = &driver->plans;
  if (plans->change != NULL) {
    bl__change_t *change = plans->change;
    plans->change = NULL;
    answer(change, NULL, err);
  }
  while (plans->changes != NULL) {
    answer(take_change(plans), NULL, err);
  }
}

void bl__plans_cleanup(bl_driver_t *driver) {
  bl__plans_t *plans = &driver->plans;
  free(plans->change);
  while (plans->changes != NULL) {
    free(take_change(plans));
  }
  drop_proposal(plans);
  bl_balance_plan_cleanup(&plans->balance);
  for (size_t kind = 0; kind < BL_RUN_KINDS; kind++) {
    free(plans->texts[kind]);
  }
}

// ---- for callers -----------------------------------------------------------------------------------------------------------

// Answers what can be answered without the stages: refusals, dry runs, what is so already. False when it must wait.
static bool answer_at_once(bl_driver_t *driver, bl__change_t *change) {
  const bl_policy_request_t *request = &change->request;
  bl_policy_record_t wanted;
  bl_policy_answer_t done = {0};
  bl_error_t err;
  if (driver->life >= BL__FINISHED) {
    (void)bl_error_set(&err, BL_PRECONDITION, "the run is %s: no step is left that a policy could be in force for",
                       driver->life == BL__FINISHED ? "finished" : "ending");
    answer(change, NULL, &err);
    return true;
  }
  if (driver->life < BL__DRIVING) {
    return false; // the policies in force are not known yet
  }
  bl_status_t status = resolve(driver, request, &wanted, &err);
  bool idle = driver->plans.changes == NULL && driver->plans.change == NULL;
  if (status == BL_OK && (idle || request->dry_run) && is_done(driver, request, &wanted, &done)) {
    answer(change, &done, NULL);
    return true;
  }
  bl_balance_plan_t plan = {0};
  if (status == BL_OK) {
    status = bl_balance_plan_init(&plan, driver->options.training, &wanted.policy, &err);
  }
  bool refuse = status != BL_OK, answered = refuse || request->dry_run;
  if (answered) { // and then the change is gone
    wanted.from_step = 0;
    done = (bl_policy_answer_t){.record = &wanted, .holdings = &plan.holdings, .order = plan.order};
    answer(change, &done, refuse ? &err : NULL);
  }
  bl_balance_plan_cleanup(&plan);
  return answered;
}

static void append_change(bl_driver_t *driver, bl__change_t *change) {
  bl__plans_t *plans = &driver->plans;
  bl__change_t **last = &plans->changes;
  change->asked_ms = bl__driver_now_ms(driver);
  bl_stores_look(driver->stores, change->asked_ms);
  while (*last != NULL) {
    last = &(*last)->next;
  }
  *last = change;
  plans->waiting++;
}

bool bl__plans_wish(bl_driver_t *driver, const bl_policy_t *policy, bl_driver_policy_fn done) {
  bl__plans_t *plans = &driver->plans;
  bl__change_t *change = plans->waiting == 0 && plans->change == NULL ? malloc(sizeof *change) : NULL;
  if (change != NULL) {
    *change = (bl__change_t){.request = {.policy = *policy}, .done = done, .context = driver};
    append_change(driver, change);
  }
  return change != NULL;
}

void bl_driver_set_policy(bl_driver_t *driver, const bl_policy_request_t *request, bl_driver_policy_fn done,
                          void *context) {
  bl__plans_t *plans = &driver->plans;
  bl__change_t *change = malloc(sizeof *change);
  if (change == NULL || plans->waiting >= CHANGES_MAX) {
    bl_error_t err;
    (void)bl_error_set(&err, BL_EXHAUSTED,
                       "%zu changes of the policy wait for a step boundary: ask again when they are done",
                       plans->waiting);
    free(change);
    done(NULL, &err, context);
    return;
  }
  *change = (bl__change_t){.request = *request, .done = done, .context = context};
  if (answer_at_once(driver, change)) {
    return;
  }
  append_change(driver, change);
  bl__driver_pump(driver);
}

bl_policies_view_t bl_driver_policies(const bl_driver_t *driver) {
  const bl__plans_t *plans = &driver->plans;
  return (bl_policies_view_t){.book = &plans->book,
                              .holdings = &plans->balance.holdings,
                              .order = plans->balance.order,
                              .waiting = plans->waiting + (plans->change != NULL ? 1 : 0),
                              .decision = bl__automatic_decision(driver),
                              .reasons = bl__automatic_reasons(driver),
                              .plan_version = driver->step.plans[BL_RUN_TRAIN].version};
}
