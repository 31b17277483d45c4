// SPDX-License-Identifier: Apache-2.0
#include "step/world.h"

#include "step/world_core.h"

#include <stdio.h>
#include <string.h>

const char *world_rule_text(world_rule_t rule) {
  static const char *const texts[] = {
#define X(identifier, text) text,
      WORLD_MUTATIONS(X)
#undef X
  };
  return texts[rule];
}

typedef enum {
  STAGE_VOTES,
  STAGE_VOTES_AND_GOES_ON,
  STAGE_FAILS,
  STAGE_VOTES_AHEAD,
  STAGE_FAILS_AHEAD,
  STAGE_HAS_UNDONE,
  STAGE_HAS_APPLIED,
  STAGE_RESTARTS,
  STAGE_EVENTS
} stage_event_t;
typedef enum { DRIVER_STARTS_LOW, DRIVER_STARTS_ABOVE, DRIVER_GIVES_UP, DRIVER_IS_ASKED, DRIVER_EVENTS } driver_event_t;

#define FIRST_REFUSAL REQUESTS
#define FIRST_ANSWER  (FIRST_REFUSAL + REQUESTS)
#define FIRST_STAGE   (FIRST_ANSWER + ANSWERS)
#define FIRST_DRIVER  (FIRST_STAGE + STAGES * STAGE_EVENTS)
#define ACTIONS       (FIRST_DRIVER + SEARCHED * DRIVER_EVENTS)

static bool stage_event(world_t *world, unsigned s, stage_event_t event) {
  bl_stage_step_t *step = &world->stages[s].step;
  if (s >= world->options->stages) {
    return false;
  }
  switch (event) {
  case STAGE_VOTES:
    if (step->phase != BL_STAGE_RUNNING && step->phase != BL_STAGE_STOPPING) {
      return false;
    }
    (void)bl_stage_step_run_ended(step, true);
    return true;
  case STAGE_VOTES_AND_GOES_ON:
    if (step->phase != BL_STAGE_RUNNING || step->offer.attempt == 0) {
      return false;
    }
    (void)bl_stage_step_run_ended(step, true);
    return world_goes_on(world, s);
  case STAGE_VOTES_AHEAD:
  case STAGE_FAILS_AHEAD:
    if (step->phase != BL_STAGE_VOTED || step->ahead != BL_AHEAD_RUNNING ||
        (event == STAGE_FAILS_AHEAD && step->offer.attempt >= world->attempts)) {
      return false;
    }
    (void)bl_stage_step_run_ended(step, event == STAGE_VOTES_AHEAD);
    return true;
  case STAGE_HAS_UNDONE:
    if (step->phase != BL_STAGE_UNDOING) {
      return false;
    }
    world_undone(world, s);
    return true;
  case STAGE_FAILS: // an aborted run that fails is as one that ends
    if (step->phase != BL_STAGE_RUNNING || step->run.attempt >= world->attempts) {
      return false;
    }
    (void)bl_stage_step_run_ended(step, false);
    return true;
  case STAGE_HAS_APPLIED:
    if (step->phase != BL_STAGE_APPLYING) {
      return false;
    }
    bl_stage_step_commit_ended(step);
    return true;
  case STAGE_RESTARTS:
    if (world->deaths >= world->options->deaths) {
      return false;
    }
    world_restart_stage(world, s);
    return true;
  case STAGE_EVENTS:
    break;
  }
  return false;
}

static bool driver_event(world_t *world, unsigned d, driver_event_t event) {
  bl_driver_step_t *step = &world->drivers[d].step;
  uint64_t epoch = 0;
  switch (event) {
  case DRIVER_STARTS_LOW: // it has read the stages' states long ago
  case DRIVER_STARTS_ABOVE:
    if (world->drivers[d].started) {
      return false;
    }
    for (unsigned s = 0; s < world->options->stages; s++) {
      uint64_t followed = world->stages[s].step.driver.epoch;
      epoch = followed > epoch ? followed : epoch;
    }
    if ((event == DRIVER_STARTS_ABOVE && epoch == 0) || epoch >= world->options->epochs) {
      return false;
    }
    world_start_driver(world, d, event == DRIVER_STARTS_LOW ? 1 : epoch + 1);
    break;
  case DRIVER_GIVES_UP:
    if (!world->drivers[d].started || step->highest_attempt >= world->attempts) {
      return false;
    }
    if (world_breaks(world, RULE_DECIDED_IS_DECIDED) && step->phase == BL_DRIVER_COMMITTING) {
      bl_driver_step_abort(step);
    } else if (step->phase == BL_DRIVER_RUNNING) {
      bl_driver_step_abort(step);
    } else {
      return false;
    }
    break;
  case DRIVER_IS_ASKED: // for another policy; it sees to that at the next boundary
    if (!world->drivers[d].started || world->drivers[d].asked || step->phase == BL_DRIVER_ENDED ||
        world->policies >= world->options->policies || step->id.epoch > world->options->epochs) {
      return false;
    }
    world->drivers[d].asked = true;
    world->policies++;
    break;
  case DRIVER_EVENTS:
    return false;
  }
  world_advance(world, d);
  return true;
}

static bool act(world_t *world, unsigned action) {
  if (action < FIRST_ANSWER) {
    message_t answer;
    bool refuses = action >= FIRST_REFUSAL;
    unsigned i = action % FIRST_REFUSAL;
    if (refuses) {
      bool refused = world_refuse(world, &world->requests.items[i], &answer);
      if (refused) {
        world_answer_anew(world, &answer);
      }
      return refused;
    }
    if (world_handle(world, &world->requests.items[i], &answer)) {
      world_answer_anew(world, &answer);
    }
    return true;
  }
  if (action < FIRST_STAGE) {
    unsigned i = action - FIRST_ANSWER;
    message_t answer = world->answers.items[i];
    world_hear(world, answer.driver, &answer);
    world_advance(world, answer.driver);
    return true;
  }
  if (action < FIRST_DRIVER) {
    unsigned i = action - FIRST_STAGE;
    return stage_event(world, i / STAGE_EVENTS, i % STAGE_EVENTS);
  }
  unsigned i = action - FIRST_DRIVER;
  return driver_event(world, i / DRIVER_EVENTS, i % DRIVER_EVENTS);
}

static void initial(const void *context, explore_state_t *state) {
  world_t world = {.options = context};
  world_relink(&world);
  for (unsigned s = 0; s < world.options->stages; s++) {
    // Stages have the job and nobody to follow: what a driver left that ended before its first step.
    world_configure_stage(&world, s, (bl_driver_id_t){0});
  }
  world_start_driver(&world, 0, 1);
  world.attempts = world.options->attempts;
  world_advance(&world, 0);
  world_pack(&world, state);
}

// Is there what the action is about? Most requests and answers that numbers stand for are not.
static bool is_there(const world_t *world, unsigned action) {
  if (action < FIRST_ANSWER) {
    return action % FIRST_REFUSAL < world->requests.count;
  }
  return action >= FIRST_STAGE || action - FIRST_ANSWER < world->answers.count;
}

static world_t before; // large; the search is one thread

static void enter(const void *context, const explore_state_t *state) {
  world_unpack(&before, context, state);
}

static bool successor(const void *context, unsigned action, explore_step_t *step) {
  static world_t world;
  (void)context;
  if (!is_there(&before, action)) {
    return false;
  }
  world_copy(&world, &before);
  if (!act(&world, action)) {
    return false;
  }
  world_drop_stale_answers(&world);
  world_drop_spent_requests(&world);
  world_pack(&world, &step->state);
  step->broken = world.broken;
  return true;
}

static const char *inspect(const void *context, const explore_state_t *state) {
  static world_t world; // large; the search is one thread
  world_unpack(&world, context, state);
  return world_check_recovery(&world);
}

static void describe_message(const message_t *message, bool answer, char *text, size_t text_bytes) {
  static const char *const names[] = {"nothing", "Takeover", "PreparePlan", "Run", "Commit", "Abort"};
  static const char *const kinds[] = {"done", "declined", "fenced", "precondition"};
  int length = snprintf(text, text_bytes, "%s driver %u, stage %u: %s epoch %u step %u attempt %u plan %u",
                        answer ? "hears " : "handle", message->driver, message->stage, names[message->type],
                        message->epoch, message->step, message->attempt, message->plan);
  if (answer && length > 0 && (size_t)length < text_bytes) {
    snprintf(text + length, text_bytes - (size_t)length, " -> %s", kinds[message->kind]);
  }
}

static void describe(const void *context, const explore_state_t *state, unsigned action, char *text,
                     size_t text_bytes) {
  static const char *const stage_events[] = {
      "ends its run",           "ends its run and goes on", "fails in its run", "ends its run ahead",
      "fails in its run ahead", "has taken back",           "has applied",      "is restarted"};
  static const char *const driver_events[] = {"starts with an old epoch", "starts", "gives up",
                                              "is asked for another policy"};
  world_t world;
  world_unpack(&world, context, state);
  if (action < FIRST_REFUSAL) {
    describe_message(&world.requests.items[action], false, text, text_bytes);
  } else if (action < FIRST_ANSWER) {
    snprintf(text, text_bytes, "stage %u refuses plan %u", world.requests.items[action - FIRST_REFUSAL].stage,
             world.requests.items[action - FIRST_REFUSAL].plan);
  } else if (action < FIRST_STAGE) {
    describe_message(&world.answers.items[action - FIRST_ANSWER], true, text, text_bytes);
  } else if (action < FIRST_DRIVER) {
    snprintf(text, text_bytes, "stage %u %s", (action - FIRST_STAGE) / STAGE_EVENTS,
             stage_events[(action - FIRST_STAGE) % STAGE_EVENTS]);
  } else {
    snprintf(text, text_bytes, "driver %u %s", (action - FIRST_DRIVER) / DRIVER_EVENTS,
             driver_events[(action - FIRST_DRIVER) % DRIVER_EVENTS]);
  }
}

explore_model_t world_model(const world_options_t *options) {
  return (explore_model_t){.context = options,
                           .initial = initial,
                           .enter = enter,
                           .successor = successor,
                           .inspect = inspect,
                           .actions = ACTIONS,
                           .describe = describe};
}
