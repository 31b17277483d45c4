// SPDX-License-Identifier: Apache-2.0
#include "step/world_core.h"

#include <string.h>

static void begin_run(world_t *world, unsigned s, uint64_t step, uint64_t attempt) {
  world_stage_t *stage = &world->stages[s];
  world_check(world, step == stage->applied + (stage->ahead != 0) + 1u, "a step runs on other weights than it should");
  uint8_t plan = (uint8_t)(1u << stage->step.run.plan_version);
  world_check(world, (world->refused & plan) == 0, "a plan that was refused runs");
  world->begun |= plan;
  world_check(world, attempt > stage->floor, "a stage begins an attempt again, or after it was told to give it up");
  stage->floor = (uint8_t)attempt;
}

bool world_goes_on(world_t *world, unsigned s) {
  world_stage_t *stage = &world->stages[s];
  if (!bl_stage_step_go_on(&stage->step)) {
    return false;
  }
  stage->ahead = (uint8_t)stage->step.run.attempt;
  bl_run_id_t next = bl_stage_step_ahead(&stage->step);
  begin_run(world, s, next.step, next.attempt);
  return true;
}

void world_undone(world_t *world, unsigned s) {
  if (!world_breaks(world, RULE_TAKEN_BACK)) {
    world->stages[s].ahead = 0;
  }
  bl_stage_step_undone(&world->stages[s].step);
}

static void apply(world_t *world, unsigned s, const bl_commit_t *commit) {
  world_stage_t *stage = &world->stages[s];
  world_check(world, stage->ahead == 0 || stage->ahead == commit->attempt,
              "a stage applies a step on top of another that was given up");
  stage->ahead = 0;
  stage->applied++;
  world_check(world, stage->applied == commit->step, "a stage applies a step twice, or leaves one out");
  if (commit->step >= 1 && commit->step <= STEPS) {
    unsigned plan = (unsigned)stage->step.run.plan_version;
    stage->applied_as[commit->step - 1] = (uint8_t)commit->attempt;
    stage->applied_plan[commit->step - 1] = (uint8_t)plan;
    for (unsigned newer = plan + 1; newer < PLANS; newer++) {
      world_check(world, world->told_from[newer] == 0 || commit->step < world->told_from[newer],
                  "a step runs under an older policy than was told");
    }
    for (unsigned other = 0; other < world->options->stages; other++) {
      const bl_stage_step_t *step = &world->stages[other].step;
      uint8_t as = world->stages[other].applied_as[commit->step - 1];
      uint8_t under = world->stages[other].applied_plan[commit->step - 1];
      world_check(world, under == 0 || under == plan, "two stages apply a step under different plans");
      bool holds = as == commit->attempt || (bl_stage_step_is_prepared(step) && step->run.attempt == commit->attempt);
      world_check(world, as == 0 || as == commit->attempt, "two stages apply different attempts of a step");
      world_check(world, holds || world->deaths > 0, "a stage applies what not all have prepared");
    }
  }
}

static answer_kind_t answer_kind(bl_stage_decision_t decision, const bl_error_t *err) {
  if (decision != BL_STAGE_REFUSE) {
    return ANSWER_DONE;
  }
  return err->status == BL_FENCED ? ANSWER_FENCED : ANSWER_PRECONDITION;
}

static bl_stage_decision_t stage_run(world_t *world, unsigned s, bl_driver_id_t driver, bl_run_id_t run,
                                     bl_offer_t offer, bl_error_t *err) {
  bl_stage_step_t *step = &world->stages[s].step;
  if (world_breaks(world, RULE_SAME_VOTE) && step->phase == BL_STAGE_VOTED && step->run.attempt == run.attempt) {
    step->phase = BL_STAGE_IDLE;
    step->highest_attempt = run.attempt - 1;
  }
  bool known = step->run.attempt == run.attempt && step->phase != BL_STAGE_IDLE;
  if (world_breaks(world, RULE_NEW_ATTEMPT) && !known && step->highest_attempt >= run.attempt) {
    step->highest_attempt = run.attempt - 1;
  }
  bl_stage_decision_t decision = bl_stage_step_run_on(step, driver, &run, &offer, err);
  if (decision == BL_STAGE_BEGIN) {
    begin_run(world, s, run.step, run.attempt);
  }
  return decision;
}

// `able`: the stage can do what the plan says.
static bl_stage_decision_t stage_prepare(world_t *world, unsigned s, bl_driver_id_t driver, bl_plan_record_t plan,
                                         bool able, bl_error_t *err) {
  bl_stage_step_t *step = &world->stages[s].step;
  uint64_t replaces, highest = step->plan_version;
  if (world_breaks(world, RULE_PLAN_IN_FORCE_IS_KEPT)) {
    plan.follows = 0;
  }
  bl_stage_decision_t decision = bl_stage_step_plan(step, driver, BL_RUN_TRAIN, plan, &replaces, err);
  if (decision != BL_STAGE_BEGIN) {
    return decision;
  }
  if (able) {
    bl_stage_step_plan_installed(step, BL_RUN_TRAIN, plan);
    return BL_STAGE_ANSWER;
  }
  bl_stage_step_plan_refused(step, plan.version);
  if (world_breaks(world, RULE_REFUSAL_IS_FINAL)) {
    step->plan_version = highest;
  }
  err->status = BL_PRECONDITION;
  return BL_STAGE_REFUSE;
}

static bl_stage_decision_t stage_commit(world_t *world, unsigned s, bl_driver_id_t driver, bl_commit_t commit,
                                        bl_error_t *err) {
  bl_stage_step_t *step = &world->stages[s].step;
  if (world_breaks(world, RULE_COMMIT_OF_THE_VOTED) && bl_stage_step_is_prepared(step)) {
    commit = (bl_commit_t){.step = step->run.step, .attempt = step->run.attempt, .scale = (double)step->run.attempt};
  }
  const double offered = step->offer.scale;
  const uint64_t before = step->applied;
  bl_stage_decision_t decision = bl_stage_step_commit(step, driver, &commit, err);
  const bool confirmed = decision == BL_STAGE_ANSWER && step->applied != before;
  world_check(world, !confirmed || offered == commit.scale,
              "a stage keeps an update with other numbers than were committed");
  if (decision == BL_STAGE_BEGIN || confirmed ||
      (decision == BL_STAGE_ANSWER && world_breaks(world, RULE_COMMIT_ONCE))) {
    apply(world, s, &commit);
  }
  if (decision == BL_STAGE_ANSWER && world_breaks(world, RULE_COMMIT_ANSWERED_AGAIN)) {
    decision = BL_STAGE_REFUSE;
    err->status = BL_PRECONDITION;
  }
  return decision;
}

static bl_stage_decision_t stage_abort(world_t *world, unsigned s, bl_driver_id_t driver, uint64_t next,
                                       uint64_t attempt, bl_error_t *err) {
  world_stage_t *stage = &world->stages[s];
  bl_stage_step_t before = stage->step;
  bool dropped;
  bl_stage_decision_t decision = bl_stage_step_abort(&stage->step, driver, next, attempt, &dropped, err);
  if (decision != BL_STAGE_REFUSE && attempt > stage->floor) {
    stage->floor = (uint8_t)attempt;
  }
  if (world_breaks(world, RULE_ABORT_IS_REMEMBERED)) {
    stage->step.highest_attempt = before.highest_attempt;
  }
  if (world_breaks(world, RULE_ABORT_ENDS_THE_VOTE) && decision == BL_STAGE_ANSWER && dropped) {
    stage->step.phase = before.phase;
  }
  return decision;
}

static void report_stage(const world_t *world, unsigned s, message_t *answer) {
  const bl_stage_step_t *step = &world->stages[s].step;
  answer->ours = step->configured == JOB;
  answer->applied = (uint8_t)step->applied;
  answer->highest = (uint8_t)bl_stage_step_highest(step);
  answer->ahead = step->phase == BL_STAGE_VOTED && step->ahead != BL_AHEAD_NONE ? (uint8_t)step->offer.attempt : 0;
  answer->prepared = bl_stage_step_is_prepared(step);
  answer->voted_step = answer->prepared ? (uint8_t)step->run.step : 0;
  answer->voted_attempt = answer->prepared ? (uint8_t)step->run.attempt : 0;
  answer->last_step = (uint8_t)step->last_commit.step;
  answer->last_attempt = (uint8_t)step->last_commit.attempt;
  answer->voted_plan = answer->prepared ? (uint8_t)step->run.plan_version : 0;
  answer->highest_plan = (uint8_t)step->plan_version;
  for (unsigned i = 0; i < BL_STAGE_PLANS; i++) {
    const bl_plan_record_t *plan = &step->plans[BL_RUN_TRAIN][i];
    answer->plans[i].version = (uint8_t)plan->version;
    answer->plans[i].maker = (uint8_t)plan->digest;
    answer->plans[i].policy = (uint8_t)plan->policy;
  }
}

static bool stage_takeover(world_t *world, unsigned s, bl_driver_id_t driver) {
  world_stage_t *stage = &world->stages[s];
  bool accepted = bl_stage_step_takeover(&stage->step, driver);
  if (!accepted && world_breaks(world, RULE_EPOCHS_RISE) && driver.epoch < stage->step.driver.epoch) {
    stage->step.driver = driver;
    accepted = true;
  }
  if (accepted && driver.epoch > stage->accepted.epoch) {
    stage->accepted = driver;
  }
  return accepted;
}

// A stage handles a request; true when it answers it at once. While it works it answers nothing: the network will
// deliver the request again.
bool world_handle(world_t *world, const message_t *message, message_t *answer) {
  unsigned s = message->stage;
  world_stage_t *stage = &world->stages[s];
  bl_stage_step_t before = stage->step;
  bl_driver_request_t request = world_request_of(message);
  bl_driver_id_t driver = request.driver;
  if (world_breaks(world, RULE_FENCING) && message->type != BL_DRIVER_REQUEST_TAKEOVER) {
    driver = stage->step.driver;
  }
  bl_error_t err = {.status = BL_OK};
  bl_stage_decision_t decision = BL_STAGE_ANSWER;
  *answer = *message;
  switch (request.kind) {
  case BL_DRIVER_REQUEST_TAKEOVER:
    answer->kind = stage_takeover(world, s, driver) ? ANSWER_DONE : ANSWER_DECLINED;
    report_stage(world, s, answer);
    if (answer->kind == ANSWER_DECLINED) {
      answer->highest = (uint8_t)stage->step.driver.epoch; // all that counts of a refusal
      answer->ours = answer->applied = answer->prepared = answer->voted_step = answer->voted_attempt = 0;
      answer->last_step = answer->last_attempt = answer->voted_plan = answer->highest_plan = answer->ahead = 0;
      memset(answer->plans, 0, sizeof answer->plans);
    }
    return true;
  case BL_DRIVER_REQUEST_PREPARE:
    decision = stage_prepare(world, s, driver, request.plan, true, &err);
    break;
  case BL_DRIVER_REQUEST_RUN:
    decision = stage_run(world, s, driver, request.run, request.offer, &err);
    break;
  case BL_DRIVER_REQUEST_COMMIT:
    decision = stage_commit(world, s, driver, request.commit, &err);
    break;
  case BL_DRIVER_REQUEST_ABORT:
    decision = stage_abort(world, s, driver, request.next, request.attempt, &err);
    break;
  case BL_DRIVER_REQUEST_NONE:
    break;
  }
  bool changed = memcmp(&before, &stage->step, sizeof before) != 0;
  world_check(world, !changed || bl_driver_id_equal(request.driver, stage->accepted), "a stale driver changes a stage");
  answer->kind = (uint8_t)answer_kind(decision, &err);
  return decision == BL_STAGE_ANSWER || (decision == BL_STAGE_REFUSE && err.status != BL_EXHAUSTED);
}

bool world_refuse(world_t *world, const message_t *message, message_t *answer) {
  bl_driver_request_t request = world_request_of(message);
  const bl_stage_step_t *step = &world->stages[message->stage].step;
  bl_error_t err = {.status = BL_OK};
  bool would = request.kind == BL_DRIVER_REQUEST_PREPARE && bl_driver_id_equal(step->driver, request.driver) &&
               request.plan.version > step->plan_version &&
               stage_prepare(world, message->stage, request.driver, request.plan, false, &err) == BL_STAGE_REFUSE;
  *answer = *message;
  answer->kind = ANSWER_PRECONDITION;
  return would;
}

void world_configure_stage(world_t *world, unsigned s, bl_driver_id_t driver) {
  bl_stage_step_t *step = &world->stages[s].step;
  if (bl_stage_step_configure(step, driver, JOB, NULL) == BL_STAGE_BEGIN) {
    bl_stage_step_configure_ended(step, true, 0);
    bl_stage_step_plan_installed(step, BL_RUN_TRAIN,
                                 (bl_plan_record_t){.version = PLAN, .digest = PLAN, .policy = PLAN});
  }
}

// The process ends and another begins: its connections, and so all messages of them, are gone; drivers ask again.
void world_restart_stage(world_t *world, unsigned s) {
  world->stages[s] = (world_stage_t){0};
  world->deaths++;
  world_remove_messages_of(&world->requests, s);
  world_remove_messages_of(&world->answers, s);
  for (unsigned d = 0; d < SEARCHED; d++) {
    world_send_questions(world, d);
  }
}
