// SPDX-License-Identifier: Apache-2.0
#include "step/world_core.h"

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
      bl_driver_request_t request = {.verb = BL_ASK_RUN, .driver = driver->step.id};
      bl_driver_step_refused(&driver->step, s, &request, follows.epoch > 0 ? BL_FENCED : BL_PRECONDITION);
      bl_driver_step_lost(&driver->step, s);
      return false;
    }
  }
  for (unsigned s = 0; s < world->options->stages; s++) {
    world_configure_stage(world, s, driver->step.id);
  }
  bl_driver_step_reset(&driver->step, 0);
  return true;
}

// Does what is the shell's turn, then sends what is to be asked.
void world_advance(world_t *world, unsigned d) {
  bl_driver_step_t *step = &world->drivers[d].step;
  if (step->phase == BL_DRIVER_DECIDING) {
    bl_driver_step_commit(step, (double)step->run.attempt, 0);
  } else if (step->phase == BL_DRIVER_BOUNDARY && world_configure_strangers(world, d) &&
             step->applied < world->options->steps && step->highest_attempt < world->attempts) {
    bl_driver_step_run(step, BL_RUN_TRAIN, PLAN);
  }
  world_check(world, world->deaths > 0 || step->end == BL_DRIVER_END_NONE || step->end == BL_DRIVER_END_FENCED,
              "a driver gives up though nothing was lost");
  if (step->id.epoch <= world->options->epochs) {
    world_send_questions(world, d);
  }
}

static void taken(world_t *world, unsigned d, const message_t *answer) {
  bl_driver_step_t *step = &world->drivers[d].step;
  bl_stage_report_t report = {.ours = answer->ours,
                              .applied = answer->applied,
                              .highest_attempt = answer->highest,
                              .prepared = answer->prepared,
                              .run = {.step = answer->voted_step, .attempt = answer->voted_attempt},
                              .last_commit = {.step = answer->last_step,
                                              .attempt = answer->last_attempt,
                                              .scale = (double)answer->last_attempt}};
  bool accepted = answer->kind == ANSWER_DONE;
  if (!accepted) {
    report.epoch = answer->highest;
  }
  bl_driver_step_taken(step, answer->stage, answer->epoch, accepted, &report);
  for (unsigned s = 0; world_breaks(world, RULE_ALL_ARE_TAKEN_OVER) && accepted && s < world->options->stages; s++) {
    bl_driver_step_taken(step, s, answer->epoch, true, &report);
  }
  if (world_breaks(world, RULE_FINISH_COMMITS) && step->phase == BL_DRIVER_COMMITTING) {
    bl_driver_step_abort(step);
  }
  if (world_breaks(world, RULE_ALL_ARE_PREPARED) && step->phase == BL_DRIVER_ABORTING && answer->prepared) {
    step->run = report.run;
    bl_driver_step_commit(step, (double)step->run.attempt, 0);
  }
}

// Driver d hears an answer.
void world_hear(world_t *world, unsigned d, const message_t *answer) {
  bl_driver_step_t *step = &world->drivers[d].step;
  unsigned s = answer->stage;
  bl_driver_request_t request = world_request_of(answer);
  if (answer->kind == ANSWER_FENCED || answer->kind == ANSWER_PRECONDITION) {
    bl_driver_step_refused(step, s, &request, answer->kind == ANSWER_FENCED ? BL_FENCED : BL_PRECONDITION);
  } else if (request.verb == BL_ASK_TAKEOVER) {
    taken(world, d, answer);
  } else if (request.verb == BL_ASK_RUN) {
    bl_driver_step_voted(step, s, request.run.attempt);
    for (unsigned i = 0; world_breaks(world, RULE_ALL_HAVE_VOTED) && i < world->options->stages; i++) {
      bl_driver_step_voted(step, i, request.run.attempt);
    }
  } else if (request.verb == BL_ASK_COMMIT) {
    bl_driver_step_committed(step, s, request.commit.step);
    for (unsigned i = 0; world_breaks(world, RULE_ALL_HAVE_APPLIED) && i < world->options->stages; i++) {
      bl_driver_step_committed(step, i, request.commit.step);
    }
  } else if (request.verb == BL_ASK_ABORT) {
    bl_driver_step_aborted(step, s, request.attempt);
  }
}

void world_start_driver(world_t *world, unsigned d, uint64_t epoch) {
  world_driver_t *driver = &world->drivers[d];
  driver->started = true;
  bl_driver_step_init(&driver->step, (bl_driver_id_t){.epoch = epoch, .id = d + 1}, driver->peers,
                      world->options->stages);
}
