// SPDX-License-Identifier: Apache-2.0
#include "step/world_core.h"

static const bl_plan_record_t first_plan = {.version = PLAN, .digest = PLAN, .policy = PLAN};

// Boundary: configures stages that lack the job, all in one go. False when a stage no longer listens.
bool world_configure_strangers(world_t *world, unsigned d) {
  world_driver_t *driver = &world->drivers[d];
  bool any = false;
  for (unsigned s = 0; s < world->options->stages; s++) {
    any = any || !driver->peers[s].report.ours;
  }
  if (!any) {
    return true;
  }
  for (unsigned s = 0; s < world->options->stages; s++) {
    bl_driver_id_t follows = world->stages[s].step.driver;
    if (!bl_driver_id_equal(follows, driver->step.id)) {
      bl_driver_request_t request = {.kind = BL_DRIVER_REQUEST_RUN, .driver = driver->step.id};
      bl_driver_step_refused(&driver->step, s, &request, follows.epoch > 0 ? BL_FENCED : BL_PRECONDITION);
      if (driver->step.phase != BL_DRIVER_ENDED) { // a driver whose Configure is refused gives up
        driver->step.phase = BL_DRIVER_ENDED;
        driver->step.end = BL_DRIVER_END_LOST;
        driver->step.end_stage = s;
      }
      return false;
    }
  }
  for (unsigned s = 0; s < world->options->stages; s++) {
    world_configure_stage(world, s, driver->step.id);
  }
  bl_driver_step_reset(&driver->step, 0);
  driver->step.plans[BL_RUN_TRAIN] = first_plan;
  driver->step.plan_version = PLAN;
  return true;
}

void world_decide(world_t *world, unsigned d) {
  bl_driver_step_t *step = &world->drivers[d].step;
  if (world_breaks(world, RULE_AS_OFFERED)) {
    step->offer = (bl_offer_t){0};
  }
  (void)bl_driver_step_commit(step, (double)step->run.attempt, 0);
}

// The next attempt, with another offered behind it where there is a step for it.
static void run(world_t *world, unsigned d) {
  bl_driver_step_t *step = &world->drivers[d].step;
  uint64_t attempt = step->offer.attempt != 0 ? step->offer.attempt : step->highest_attempt + 1;
  if (world->options->ahead && step->applied + 1 < world->options->steps && attempt < world->attempts) {
    bl_driver_step_run_on(step, world_offer(attempt, 1).scale, 0);
  } else {
    bl_driver_step_run(step, BL_RUN_TRAIN);
  }
}

// Does what is the shell's turn, then sends what is to be asked.
void world_advance(world_t *world, unsigned d) {
  bl_driver_step_t *step = &world->drivers[d].step;
  if (step->phase == BL_DRIVER_DECIDING) {
    world_decide(world, d);
  } else if (step->phase == BL_DRIVER_BOUNDARY && world_configure_strangers(world, d)) {
    if (step->offer.attempt != 0) {
      run(world, d);
    } else if (world->drivers[d].asked) {
      world->drivers[d].asked = false;
      bl_driver_step_prepare(step, BL_RUN_TRAIN, d + 1u, step->plans[BL_RUN_TRAIN].policy + 1);
    } else if (step->applied < world->options->steps && step->highest_attempt < world->attempts) {
      run(world, d);
    }
  }
  world_check(world, world->deaths > 0 || step->end == BL_DRIVER_END_NONE || step->end == BL_DRIVER_END_FENCED,
              "a driver gives up though nothing was lost");
  if (step->id.epoch <= world->options->epochs) {
    world_send_questions(world, d);
  }
}

// New driver: the plan that it goes on with, where a rule is broken.
static void mistake_plan(world_t *world, unsigned d) {
  world_driver_t *driver = &world->drivers[d];
  bl_plan_record_t *plan = &driver->step.plans[BL_RUN_TRAIN];
  for (unsigned s = 0; s < world->options->stages; s++) {
    for (unsigned i = 0; i < BL_STAGE_PLANS; i++) {
      const bl_plan_record_t *kept = &driver->peers[s].report.plans[i];
      bool newer = world_breaks(world, RULE_PLAN_OF_ALL) && kept->version > plan->version;
      bool older = world_breaks(world, RULE_NEWEST_PLAN) && kept->version > 0 && kept->version < plan->version;
      if (newer || older) {
        *plan = *kept;
      }
    }
  }
}

static void taken(world_t *world, unsigned d, const message_t *answer) {
  bl_driver_step_t *step = &world->drivers[d].step;
  bl_stage_report_t report = {
      .ours = answer->ours,
      .applied = answer->applied,
      .highest_attempt = answer->highest,
      .prepared = answer->prepared,
      .run = {.step = answer->voted_step, .attempt = answer->voted_attempt, .plan_version = answer->voted_plan},
      .ahead = world_offer(answer->voted_attempt, answer->ahead),
      .plan_version = answer->highest_plan,
      .last_commit = {
          .step = answer->last_step, .attempt = answer->last_attempt, .scale = (double)answer->last_attempt}};
  for (unsigned i = 0; i < BL_STAGE_PLANS; i++) {
    report.plans[i] = (bl_plan_record_t){
        .version = answer->plans[i].version, .digest = answer->plans[i].maker, .policy = answer->plans[i].policy};
  }
  if (world_breaks(world, RULE_AHEAD_IS_TOLD)) {
    report.ahead = (bl_offer_t){0};
  }
  bool accepted = answer->kind == ANSWER_DONE;
  if (!accepted) {
    report.epoch = answer->highest;
  }
  bool taking = step->phase == BL_DRIVER_TAKEOVER;
  bl_driver_step_taken(step, answer->stage, answer->epoch, accepted, &report);
  if (taking && step->phase != BL_DRIVER_TAKEOVER) {
    mistake_plan(world, d);
  }
  for (unsigned s = 0; world_breaks(world, RULE_ALL_ARE_TAKEN_OVER) && accepted && s < world->options->stages; s++) {
    bl_driver_step_taken(step, s, answer->epoch, true, &report);
  }
  if (world_breaks(world, RULE_FINISH_COMMITS) && step->phase == BL_DRIVER_COMMITTING) {
    bl_driver_step_abort(step);
  }
  if (world_breaks(world, RULE_ALL_ARE_PREPARED) && step->phase == BL_DRIVER_ABORTING && answer->prepared) {
    step->run = report.run;
    (void)bl_driver_step_commit(step, (double)step->run.attempt, 0);
  }
}

// What driver d tells whoever asked for a policy, and what would contradict it.
static void tell(world_t *world, unsigned d, bool refused) {
  const bl_driver_step_t *step = &world->drivers[d].step;
  unsigned plan = (unsigned)step->proposal.version, from = (unsigned)step->applied + 1;
  if (refused) {
    world->refused |= (uint8_t)(1u << plan);
    world_check(world, (world->begun & (1u << plan)) == 0, "a plan that was refused has run");
    return;
  }
  world->told_from[plan] = (uint8_t)from;
  for (unsigned s = 0; s < world->options->stages; s++) {
    for (unsigned k = from; k <= STEPS; k++) {
      uint8_t as = world->stages[s].applied_plan[k - 1];
      world_check(world, as == 0 || as >= plan, "a step ran under an older policy than was told");
    }
  }
}

static void prepared(world_t *world, unsigned d, const message_t *answer) {
  bl_driver_step_t *step = &world->drivers[d].step;
  bool was = step->phase == BL_DRIVER_PREPARING;
  if (answer->kind == ANSWER_PRECONDITION) {
    bl_driver_request_t request = world_request_of(answer);
    bl_driver_step_refused(step, answer->stage, &request, BL_PRECONDITION);
  } else {
    bl_driver_step_prepared(step, answer->stage, answer->plan);
    for (unsigned i = 0; world_breaks(world, RULE_ALL_HAVE_AGREED) && i < world->options->stages; i++) {
      bl_driver_step_prepared(step, i, answer->plan);
    }
  }
  if (was && step->phase == BL_DRIVER_BOUNDARY) {
    bool refused = step->proposal_refused;
    if (refused && world_breaks(world, RULE_REFUSED_BY_ONE)) {
      step->plans[BL_RUN_TRAIN] = step->proposal;
    }
    tell(world, d, refused);
  }
}

// Driver d hears an answer.
void world_hear(world_t *world, unsigned d, const message_t *answer) {
  bl_driver_step_t *step = &world->drivers[d].step;
  unsigned s = answer->stage;
  bl_driver_request_t request = world_request_of(answer);
  if (request.kind == BL_DRIVER_REQUEST_PREPARE && answer->kind != ANSWER_FENCED) {
    prepared(world, d, answer);
  } else if (answer->kind == ANSWER_FENCED || answer->kind == ANSWER_PRECONDITION) {
    bl_driver_step_refused(step, s, &request, answer->kind == ANSWER_FENCED ? BL_FENCED : BL_PRECONDITION);
  } else if (request.kind == BL_DRIVER_REQUEST_TAKEOVER) {
    taken(world, d, answer);
  } else if (request.kind == BL_DRIVER_REQUEST_RUN) {
    bl_driver_step_voted(step, s, request.run.attempt);
    for (unsigned i = 0; world_breaks(world, RULE_ALL_HAVE_VOTED) && i < world->options->stages; i++) {
      bl_driver_step_voted(step, i, request.run.attempt);
    }
  } else if (request.kind == BL_DRIVER_REQUEST_COMMIT) {
    bl_driver_step_committed(step, s, request.commit.step);
    for (unsigned i = 0; world_breaks(world, RULE_ALL_HAVE_APPLIED) && i < world->options->stages; i++) {
      bl_driver_step_committed(step, i, request.commit.step);
    }
  } else if (request.kind == BL_DRIVER_REQUEST_ABORT) {
    bl_driver_step_aborted(step, s, request.attempt);
  }
}

void world_start_driver(world_t *world, unsigned d, uint64_t epoch) {
  world_driver_t *driver = &world->drivers[d];
  driver->started = true;
  bl_driver_step_init(&driver->step, (bl_driver_id_t){.epoch = epoch, .id = d + 1}, driver->peers,
                      world->options->stages);
}
