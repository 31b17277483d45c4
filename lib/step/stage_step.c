// SPDX-License-Identifier: Apache-2.0
#include "step/stage_step.h"

#include <inttypes.h>
#include <string.h>

const char *bl_stage_phase_name(bl_stage_phase_t phase) {
  static const char *const names[] = {"idle", "configuring", "running", "stopping", "voted", "committing", "undoing"};
  return names[phase];
}

static const char *kind_name(bl_run_kind_t kind) {
  static const char *const names[] = {"training", "validation", "generation"};
  return names[kind];
}

// ---- drivers --------------------------------------------------------------------------------------------------------

bool bl_stage_step_takeover(bl_stage_step_t *step, bl_driver_id_t driver) {
  if (driver.epoch == 0 || driver.epoch < step->driver.epoch) {
    return false;
  }
  if (driver.epoch == step->driver.epoch) {
    return driver.id == step->driver.id;
  }
  step->driver = driver;
  return true;
}

bl_stage_decision_t bl_stage_step_check(const bl_stage_step_t *step, bl_driver_id_t driver, bl_error_t *err) {
  if (bl_driver_id_equal(step->driver, driver)) {
    return BL_STAGE_ANSWER;
  }
  if (driver.epoch > step->driver.epoch) {
    bl_error_set(err, BL_PRECONDITION, "driver epoch %" PRIu64 " has not taken this stage over", driver.epoch);
  } else {
    bl_error_set(err, BL_FENCED,
                 "fenced: this stage follows driver epoch %" PRIu64 " (id %016" PRIx64
                 "), the request is of epoch %" PRIu64 " (id %016" PRIx64 ")",
                 step->driver.epoch, step->driver.id, driver.epoch, driver.id);
  }
  return BL_STAGE_REFUSE;
}

static bool follows(const bl_stage_step_t *step, bl_driver_id_t driver, bl_error_t *err) {
  return bl_stage_step_check(step, driver, err) == BL_STAGE_ANSWER;
}

static bl_stage_decision_t refuse_busy(const bl_stage_step_t *step, const char *what, bl_error_t *err) {
  switch (step->phase) {
  case BL_STAGE_CONFIGURING:
    bl_error_set(err, BL_EXHAUSTED, "cannot %s while a configuration is in progress: retry", what);
    break;
  case BL_STAGE_APPLYING:
    bl_error_set(err, BL_EXHAUSTED, "cannot %s while step %" PRIu64 " is being applied: ask again", what,
                 step->applied);
    break;
  default:
    bl_error_set(err, BL_PRECONDITION,
                 "cannot %s while attempt %" PRIu64 " (%s, step %" PRIu64 ") is %s here: abort it first", what,
                 step->run.attempt, kind_name(step->run.kind), step->run.step, bl_stage_phase_name(step->phase));
    break;
  }
  return BL_STAGE_REFUSE;
}

// Whether nothing runs, is kept for a commit, or is in progress.
static bool is_at_rest(const bl_stage_step_t *step) {
  return step->phase == BL_STAGE_IDLE || (step->phase == BL_STAGE_VOTED && step->run.kind != BL_RUN_TRAIN);
}

// ---- configuration --------------------------------------------------------------------------------------------------

static void forget_job(bl_stage_step_t *step) {
  bl_stage_step_t fresh = {.driver = step->driver, .highest_attempt = step->highest_attempt};
  *step = fresh;
}

bl_stage_decision_t bl_stage_step_configure(bl_stage_step_t *step, bl_driver_id_t driver, uint64_t digest,
                                            bl_error_t *err) {
  if (!follows(step, driver, err)) {
    return BL_STAGE_REFUSE;
  }
  if (digest == 0) {
    bl_error_set(err, BL_INVALID, "a configuration needs a digest other than 0");
    return BL_STAGE_REFUSE;
  }
  if (step->phase == BL_STAGE_CONFIGURING && step->configuring == digest) {
    return BL_STAGE_WAIT;
  }
  if (step->configured == digest) {
    return BL_STAGE_ANSWER;
  }
  if (!is_at_rest(step)) {
    return refuse_busy(step, "configure", err);
  }
  forget_job(step);
  step->phase = BL_STAGE_CONFIGURING;
  step->configuring = digest;
  return BL_STAGE_BEGIN;
}

void bl_stage_step_configure_ended(bl_stage_step_t *step, bool well, uint64_t applied) {
  step->configured = well ? step->configuring : 0;
  step->applied = well ? applied : 0;
  step->configuring = 0;
  step->phase = BL_STAGE_IDLE;
}

static bool is_configured(const bl_stage_step_t *step, const char *what, bl_error_t *err) {
  if (step->configured == 0) {
    bl_error_set(err, BL_PRECONDITION, "cannot %s: this stage has no configuration%s", what,
                 step->phase == BL_STAGE_CONFIGURING ? " yet" : " (was it restarted?)");
    return false;
  }
  return true;
}

bl_stage_decision_t bl_stage_step_connect(const bl_stage_step_t *step, bl_driver_id_t driver, bl_error_t *err) {
  if (!follows(step, driver, err) || !is_configured(step, "connect", err)) {
    return BL_STAGE_REFUSE;
  }
  return is_at_rest(step) ? BL_STAGE_ANSWER : refuse_busy(step, "connect", err);
}

bl_stage_decision_t bl_stage_step_release(bl_stage_step_t *step, bl_driver_id_t driver, bl_error_t *err) {
  if (!follows(step, driver, err)) {
    return BL_STAGE_REFUSE;
  }
  if (!is_at_rest(step)) {
    return refuse_busy(step, "release the job", err);
  }
  forget_job(step);
  return BL_STAGE_ANSWER;
}

// ---- plans ----------------------------------------------------------------------------------------------------------

// Returns the kind's plan of this version, or NULL.
static const bl_plan_record_t *find_plan(const bl_stage_step_t *step, bl_run_kind_t kind, uint64_t version) {
  for (size_t i = 0; i < BL_STAGE_PLANS; i++) {
    if (version != 0 && step->plans[kind][i].version == version) {
      return &step->plans[kind][i];
    }
  }
  return NULL;
}

// Returns the index of the kept plan that `plan` replaces: if both places are taken, the one that is not in force.
static size_t place_of(const bl_plan_record_t *plans, bl_plan_record_t plan) {
  bool second_in_force = plans[1].version != 0 && plans[1].version == plan.follows;
  return second_in_force ? 0 : 1;
}

bl_stage_decision_t bl_stage_step_plan(const bl_stage_step_t *step, bl_driver_id_t driver, bl_run_kind_t kind,
                                       bl_plan_record_t plan, uint64_t *replaces, bl_error_t *err) {
  if (!follows(step, driver, err) || !is_configured(step, "prepare a plan", err)) {
    return BL_STAGE_REFUSE;
  }
  if ((unsigned)kind >= BL_RUN_KINDS || plan.version == 0) {
    bl_error_set(err, BL_INVALID, "a plan needs a known kind and a version from 1 on");
    return BL_STAGE_REFUSE;
  }
  const bl_plan_record_t *known = find_plan(step, kind, plan.version);
  if (known && known->digest == plan.digest) {
    return BL_STAGE_ANSWER;
  }
  if (plan.version <= step->plan_version) {
    bl_error_set(err, BL_PRECONDITION,
                 "plan version %" PRIu64 " is taken: the highest prepared or refused here is %" PRIu64
                 ", take a higher one",
                 plan.version, step->plan_version);
    return BL_STAGE_REFUSE;
  }
  if (!is_at_rest(step)) {
    return refuse_busy(step, "prepare a plan", err);
  }
  *replaces = step->plans[kind][place_of(step->plans[kind], plan)].version;
  return BL_STAGE_BEGIN;
}

void bl_stage_step_plan_installed(bl_stage_step_t *step, bl_run_kind_t kind, bl_plan_record_t plan) {
  bl_plan_record_t *plans = step->plans[kind];
  if (place_of(plans, plan) == 0) {
    plans[0] = plans[1];
  }
  plans[plans[0].version == 0 ? 0 : 1] = plan;
  step->plan_version = plan.version;
}

void bl_stage_step_plan_refused(bl_stage_step_t *step, uint64_t version) {
  if (version > step->plan_version) {
    step->plan_version = version;
  }
}

// The plan `version` runs, so it is the one in force. Drops the other plan of its kind.
static void drop_other_plan(bl_plan_record_t *plans, uint64_t version) {
  if (plans[1].version == version) {
    plans[0] = plans[1];
  }
  plans[1] = (bl_plan_record_t){0};
}

// ---- steps ----------------------------------------------------------------------------------------------------------

static bool run_fits(const bl_stage_step_t *step, const bl_run_id_t *run, bl_error_t *err) {
  uint64_t expected = step->applied + (run->kind == BL_RUN_TRAIN ? 1 : 0);
  if (run->step != expected) {
    bl_error_set(err, BL_PRECONDITION,
                 "cannot run %s at step %" PRIu64 ": this stage has applied %" PRIu64 " and expects %" PRIu64,
                 kind_name(run->kind), run->step, step->applied, expected);
    return false;
  }
  if (run->attempt <= step->highest_attempt) {
    bl_error_set(err, BL_PRECONDITION,
                 "attempt %" PRIu64 " of step %" PRIu64 " is out of date: this stage has seen attempt %" PRIu64,
                 run->attempt, run->step, step->highest_attempt);
    return false;
  }
  if (!find_plan(step, run->kind, run->plan_version)) {
    bl_error_set(err, BL_PRECONDITION, "%s plan version %" PRIu64 " was not prepared here", kind_name(run->kind),
                 run->plan_version);
    return false;
  }
  return true;
}

bl_stage_decision_t bl_stage_step_run(bl_stage_step_t *step, bl_driver_id_t driver, const bl_run_id_t *run,
                                      bl_error_t *err) {
  if (!follows(step, driver, err) || !is_configured(step, "run", err)) {
    return BL_STAGE_REFUSE;
  }
  if ((unsigned)run->kind >= BL_RUN_KINDS) {
    bl_error_set(err, BL_INVALID, "unknown kind of run %d", (int)run->kind);
    return BL_STAGE_REFUSE;
  }
  bool same = run->attempt == step->run.attempt && run->step == step->run.step && run->kind == step->run.kind;
  if (same && step->phase == BL_STAGE_RUNNING) {
    return BL_STAGE_WAIT;
  }
  if (same && step->phase == BL_STAGE_VOTED) {
    return BL_STAGE_ANSWER;
  }
  if (!run_fits(step, run, err)) {
    return BL_STAGE_REFUSE;
  }
  if (!is_at_rest(step)) {
    return refuse_busy(step, "run", err);
  }
  drop_other_plan(step->plans[run->kind], run->plan_version);
  step->run = *run;
  step->offer = (bl_offer_t){0};
  step->highest_attempt = run->attempt;
  step->phase = BL_STAGE_RUNNING;
  return BL_STAGE_BEGIN;
}

bl_stage_decision_t bl_stage_step_run_on(bl_stage_step_t *step, bl_driver_id_t driver, const bl_run_id_t *run,
                                         const bl_offer_t *offer, bl_error_t *err) {
  bool offers = offer->attempt != 0;
  if (offers && follows(step, driver, NULL) && (run->kind != BL_RUN_TRAIN || offer->attempt <= run->attempt)) {
    bl_error_set(err, BL_INVALID,
                 "only an attempt of the next step, above attempt %" PRIu64
                 ", can be offered behind a training attempt",
                 run->attempt);
    return BL_STAGE_REFUSE;
  }
  bl_stage_decision_t decision = bl_stage_step_run(step, driver, run, err);
  bool runs = decision == BL_STAGE_BEGIN || decision == BL_STAGE_WAIT;
  if (offers && runs && step->offer.attempt == 0) {
    step->offer = *offer;
  }
  return decision;
}

bl_stage_outcome_t bl_stage_step_run_ended(bl_stage_step_t *step, bool voted) {
  if (step->phase == BL_STAGE_STOPPING) {
    bool undo = step->ahead != BL_AHEAD_NONE;
    step->phase = undo ? BL_STAGE_UNDOING : BL_STAGE_IDLE;
    return undo ? BL_STAGE_UNDO : BL_STAGE_DROP;
  }
  if (step->ahead == BL_AHEAD_RUNNING) {
    step->ahead = voted ? BL_AHEAD_VOTED : BL_AHEAD_FAILED;
    return BL_STAGE_AHEAD;
  }
  step->phase = voted ? BL_STAGE_VOTED : BL_STAGE_IDLE;
  return voted ? BL_STAGE_KEEP : BL_STAGE_FAILED;
}

// ---- ahead of the commit --------------------------------------------------------------------------------------------

bool bl_stage_step_go_on(bl_stage_step_t *step) {
  if (!bl_stage_step_is_prepared(step) || step->offer.attempt == 0 || step->ahead != BL_AHEAD_NONE) {
    return false;
  }
  step->ahead = BL_AHEAD_RUNNING;
  step->highest_attempt = step->offer.attempt;
  return true;
}

bl_run_id_t bl_stage_step_ahead(const bl_stage_step_t *step) {
  return (bl_run_id_t){.kind = BL_RUN_TRAIN,
                       .step = step->run.step + 1,
                       .attempt = step->offer.attempt,
                       .plan_version = step->run.plan_version};
}

void bl_stage_step_undone(bl_stage_step_t *step) {
  step->phase = BL_STAGE_IDLE;
  step->ahead = BL_AHEAD_NONE;
  step->offer = (bl_offer_t){0};
}

uint64_t bl_stage_step_highest(const bl_stage_step_t *step) {
  bool may_begin = step->phase == BL_STAGE_RUNNING && step->offer.attempt > step->highest_attempt;
  return may_begin ? step->offer.attempt : step->highest_attempt;
}

// Confirms the attempt ahead, which becomes `run`.
static bl_stage_decision_t confirm(bl_stage_step_t *step, const bl_commit_t *commit, bl_error_t *err) {
  if (!bl_offer_is_met(&step->offer, commit->scale, commit->learning_rate)) {
    bl_error_set(err, BL_PRECONDITION,
                 "step %" PRIu64 " was applied ahead here with scale %.17g, learning rate %.17g, not with scale %.17g, "
                 "learning rate %.17g: abort it",
                 commit->step, step->offer.scale, step->offer.learning_rate, commit->scale, commit->learning_rate);
    return BL_STAGE_REFUSE;
  }
  static const bl_stage_phase_t phases[] = {
      [BL_AHEAD_RUNNING] = BL_STAGE_RUNNING, [BL_AHEAD_VOTED] = BL_STAGE_VOTED, [BL_AHEAD_FAILED] = BL_STAGE_IDLE};
  step->run = bl_stage_step_ahead(step);
  step->phase = phases[step->ahead];
  step->ahead = BL_AHEAD_NONE;
  step->offer = (bl_offer_t){0};
  step->last_commit = *commit;
  step->applied = commit->step;
  return BL_STAGE_ANSWER;
}

bl_stage_decision_t bl_stage_step_commit(bl_stage_step_t *step, bl_driver_id_t driver, const bl_commit_t *commit,
                                         bl_error_t *err) {
  if (!follows(step, driver, err)) {
    return BL_STAGE_REFUSE;
  }
  if (commit->step != 0 && commit->step == step->applied) {
    if (bl_commit_equal(commit, &step->last_commit)) {
      return step->phase == BL_STAGE_APPLYING ? BL_STAGE_WAIT : BL_STAGE_ANSWER;
    }
    bl_error_set(err, BL_PRECONDITION,
                 "step %" PRIu64 " was applied here with attempt %" PRIu64
                 " (scale %.17g, learning rate %.17g), not with "
                 "attempt %" PRIu64 " (scale %.17g, learning rate %.17g)",
                 commit->step, step->last_commit.attempt, step->last_commit.scale, step->last_commit.learning_rate,
                 commit->attempt, commit->scale, commit->learning_rate);
    return BL_STAGE_REFUSE;
  }
  if (!bl_stage_step_is_prepared(step) || step->run.step != commit->step || step->run.attempt != commit->attempt) {
    bl_error_set(err, BL_PRECONDITION,
                 "attempt %" PRIu64 " of step %" PRIu64 " is not prepared here (applied %" PRIu64 ", %s)",
                 commit->attempt, commit->step, step->applied, bl_stage_phase_name(step->phase));
    return BL_STAGE_REFUSE;
  }
  if (step->ahead != BL_AHEAD_NONE) {
    return confirm(step, commit, err);
  }
  step->offer = (bl_offer_t){0};
  step->last_commit = *commit;
  step->applied = commit->step;
  step->phase = BL_STAGE_APPLYING;
  return BL_STAGE_BEGIN;
}

void bl_stage_step_commit_ended(bl_stage_step_t *step) {
  step->phase = BL_STAGE_IDLE;
}

bl_stage_decision_t bl_stage_step_abort(bl_stage_step_t *step, bl_driver_id_t driver, uint64_t next, uint64_t attempt,
                                        bool *dropped, bl_error_t *err) {
  if (!follows(step, driver, err)) {
    return BL_STAGE_REFUSE;
  }
  if (next != step->applied + 1) {
    bl_error_set(err, BL_PRECONDITION, "cannot abort step %" PRIu64 ": this stage has applied %" PRIu64, next,
                 step->applied);
    return BL_STAGE_REFUSE;
  }
  *dropped = false;
  if (attempt > step->highest_attempt) {
    step->highest_attempt = attempt;
  }
  if (step->run.attempt > attempt) {
    return BL_STAGE_ANSWER;
  }
  switch (step->phase) {
  case BL_STAGE_RUNNING:
    step->phase = BL_STAGE_STOPPING;
    return BL_STAGE_BEGIN;
  case BL_STAGE_STOPPING:
  case BL_STAGE_UNDOING:
    return BL_STAGE_WAIT;
  case BL_STAGE_VOTED:
    if (step->ahead != BL_AHEAD_NONE) {
      step->phase = step->ahead == BL_AHEAD_RUNNING ? BL_STAGE_STOPPING : BL_STAGE_UNDOING;
      return BL_STAGE_BEGIN;
    }
    step->phase = BL_STAGE_IDLE;
    *dropped = true;
    return BL_STAGE_ANSWER;
  default:
    return BL_STAGE_ANSWER;
  }
}

// ---- snapshots ------------------------------------------------------------------------------------------------------

bl_stage_decision_t bl_stage_step_snapshot(const bl_stage_step_t *step, bl_driver_id_t driver, uint64_t applied,
                                           bl_error_t *err) {
  if (!follows(step, driver, err) || !is_configured(step, "copy the weights", err)) {
    return BL_STAGE_REFUSE;
  }
  if (applied != step->applied) {
    bl_error_set(err, BL_PRECONDITION, "cannot copy the weights of step %" PRIu64 ": this stage has applied %" PRIu64,
                 applied, step->applied);
    return BL_STAGE_REFUSE;
  }
  return is_at_rest(step) ? BL_STAGE_ANSWER : refuse_busy(step, "copy the weights", err);
}
