// SPDX-License-Identifier: Apache-2.0
#include "step/world_core.h"

static bool has_started_steps(const world_t *world) {
  for (unsigned s = 0; s < world->options->stages; s++) {
    if (world->stages[s].step.applied > 0) {
      return true;
    }
  }
  return false;
}

// From this very state on nothing is lost any more: does driver d finish the run (or learn that it is fenced)?
static bool finishes(const world_t *from, unsigned d) {
  static world_t world; // large; the search is one thread
  world_copy(&world, from);
  world.attempts = UNLIMITED;
  bl_driver_step_t *step = &world.drivers[d].step;
  bool had_begun = has_started_steps(&world);
  for (unsigned round = 0; round < 64; round++) {
    for (unsigned s = 0; s < world.options->stages; s++) {
      message_t message, answer;
      if (world_question(&world, d, s, &message) && world_handle(&world, &message, &answer)) {
        world_hear(&world, d, &answer);
      }
      bl_stage_step_t *stage = &world.stages[s].step;
      if (stage->phase == BL_STAGE_RUNNING || stage->phase == BL_STAGE_STOPPING || stage->ahead == BL_AHEAD_RUNNING) {
        (void)bl_stage_step_run_ended(stage, true);
      } else if (stage->phase == BL_STAGE_UNDOING) {
        world_undone(&world, s);
      } else if (stage->phase == BL_STAGE_APPLYING) {
        bl_stage_step_commit_ended(stage);
      }
    }
    if (step->phase == BL_DRIVER_DECIDING) {
      world_decide(&world, d);
    } else if (step->phase == BL_DRIVER_BOUNDARY && step->applied == world.options->steps) {
      break;
    } else if (step->phase == BL_DRIVER_BOUNDARY && world_configure_strangers(&world, d)) {
      bl_driver_step_run(step, BL_RUN_TRAIN);
    } else if (step->phase == BL_DRIVER_ENDED) {
      bool is_new = d == DRIVERS - 1;
      return step->end == BL_DRIVER_END_FENCED ? !is_new : world.deaths > 0 && (had_begun || !is_new);
    }
  }
  for (unsigned s = 0; s < world.options->stages; s++) {
    // A stage that was lost after the end is nobody's concern any more.
    bool lost = world.deaths > 0 && !bl_driver_id_equal(world.stages[s].step.driver, step->id);
    if (world.stages[s].step.applied != world.options->steps && !lost) {
      return false;
    }
  }
  return !world.broken;
}

const char *world_check_recovery(const world_t *world) {
  static world_t fresh; // large; the search is one thread
  world_copy(&fresh, world);
  uint64_t epoch = 0;
  for (unsigned s = 0; s < world->options->stages; s++) {
    epoch = fresh.stages[s].step.driver.epoch > epoch ? fresh.stages[s].step.driver.epoch : epoch;
  }
  world_start_driver(&fresh, DRIVERS - 1, epoch + 1);
  if (!finishes(&fresh, DRIVERS - 1)) {
    return "a new driver cannot finish the run";
  }
  for (unsigned d = 0; d < SEARCHED; d++) {
    if (world->drivers[d].started && world->drivers[d].step.phase != BL_DRIVER_ENDED && !finishes(world, d)) {
      return "a driver is stuck though nothing is lost any more";
    }
  }
  return NULL;
}
