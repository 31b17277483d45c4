// SPDX-License-Identifier: Apache-2.0
#include "step/world.h"

#include "step/driver_step.h"
#include "step/stage_step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STAGES    3
#define STEPS     3
#define DRIVERS   3 // the first, its successor, and a fresh one that only the recovery check uses
#define SEARCHED  2
#define REQUESTS  56
#define ANSWERS   32
#define JOB       7 // digest of the one configuration
#define PLAN      1
#define UNLIMITED 255

typedef enum { ANSWER_DONE, ANSWER_DECLINED, ANSWER_FENCED, ANSWER_PRECONDITION } answer_kind_t;

// A request that was sent, or the answer to one.
typedef struct message {
  uint8_t driver, stage, verb, epoch;
  uint8_t step, attempt; // of the run, the commit, or what the abort says
  uint8_t kind;          // of an answer
  // Of an answer to Takeover: what the stage says of itself.
  uint8_t ours, applied, highest, prepared, voted_step, voted_attempt, last_step, last_attempt;
} message_t;

typedef struct message_set {
  unsigned count;
  message_t items[REQUESTS];
} message_set_t;

typedef struct world_stage {
  bl_stage_step_t step;
  // What really happened in this process, for the invariants.
  uint8_t floor;             // highest attempt that was begun or given up
  uint8_t applied;           // updates applied
  uint8_t applied_as[STEPS]; // attempt that became step i + 1
  bl_driver_id_t accepted;   // highest driver that a takeover was accepted of
} world_stage_t;

typedef struct world_driver {
  bool started;
  bl_driver_step_t step;
  bl_driver_peer_t peers[STAGES];
} world_driver_t;

typedef struct world {
  const world_options_t *options;
  world_stage_t stages[STAGES];
  world_driver_t drivers[DRIVERS];
  uint8_t deaths;
  message_set_t requests, answers;
  unsigned attempts;  // limit
  const char *broken; // the first violation
} world_t;

const char *world_rule_text(world_rule_t rule) {
  static const char *const texts[] = {
#define X(identifier, text) text,
      WORLD_MUTATIONS(X)
#undef X
  };
  return texts[rule];
}

static bool breaks(const world_t *world, world_rule_t rule) {
  return world->options->broken_rule == rule;
}

static void check(world_t *world, bool holds, const char *invariant) {
  if (!holds && !world->broken) {
    world->broken = invariant;
  }
}

// ---- packing -------------------------------------------------------------------------------------------------------

typedef struct packer {
  explore_state_t *state;
  unsigned at;
  bool writes;
} packer_t;

// Moves one small number between the world and the packed state.
#define MOVE(packer, field)                                                                                            \
  do {                                                                                                                 \
    if ((packer)->writes) {                                                                                            \
      (packer)->state->bytes[(packer)->at++] = (uint8_t)(field);                                                       \
    } else {                                                                                                           \
      (field) = (packer)->state->bytes[(packer)->at++];                                                                \
    }                                                                                                                  \
  } while (0)

static void move_stage(packer_t *packer, world_stage_t *stage) {
  bl_stage_step_t *step = &stage->step;
  MOVE(packer, step->phase);
  MOVE(packer, step->driver.epoch);
  MOVE(packer, step->driver.id);
  MOVE(packer, step->configured);
  MOVE(packer, step->applied);
  MOVE(packer, step->highest_attempt);
  MOVE(packer, step->run.step);
  MOVE(packer, step->run.attempt);
  MOVE(packer, step->last_commit.step);
  MOVE(packer, step->last_commit.attempt);
  MOVE(packer, stage->floor);
  MOVE(packer, stage->applied);
  for (unsigned i = 0; i < STEPS; i++) {
    MOVE(packer, stage->applied_as[i]);
  }
  MOVE(packer, stage->accepted.epoch);
  MOVE(packer, stage->accepted.id);
  if (!packer->writes) {
    step->run.plan_version = step->run.attempt != 0 ? PLAN : 0;
    step->last_commit.scale = (double)step->last_commit.attempt;
    if (step->configured) {
      bl_stage_step_plan_installed(step, BL_RUN_TRAIN, (bl_plan_record_t){.version = PLAN, .digest = PLAN});
    }
  }
}

static void move_driver(packer_t *packer, world_driver_t *driver, unsigned stages) {
  bl_driver_step_t *step = &driver->step;
  MOVE(packer, driver->started);
  if (!driver->started) {
    return;
  }
  MOVE(packer, step->phase);
  MOVE(packer, step->id.epoch);
  MOVE(packer, step->id.id);
  MOVE(packer, step->applied);
  MOVE(packer, step->highest_attempt);
  MOVE(packer, step->run.step);
  MOVE(packer, step->run.attempt);
  MOVE(packer, step->commit.step);
  MOVE(packer, step->commit.attempt);
  MOVE(packer, step->end);
  for (unsigned i = 0; i < stages; i++) {
    bl_driver_peer_t *peer = &driver->peers[i];
    MOVE(packer, peer->answered);
    MOVE(packer, peer->report.ours);
    MOVE(packer, peer->report.applied);
    if (step->phase == BL_DRIVER_TAKEOVER && peer->answered) {
      MOVE(packer, peer->report.highest_attempt);
      MOVE(packer, peer->report.prepared);
      MOVE(packer, peer->report.run.step);
      MOVE(packer, peer->report.run.attempt);
      MOVE(packer, peer->report.last_commit.step);
      MOVE(packer, peer->report.last_commit.attempt);
      peer->report.last_commit.scale = (double)peer->report.last_commit.attempt;
    }
  }
  if (!packer->writes) {
    step->run.plan_version = PLAN;
    step->commit.scale = (double)step->commit.attempt;
    step->stage_count = stages;
  }
}

static void move_messages(packer_t *packer, message_set_t *set, bool answers) {
  MOVE(packer, set->count);
  for (unsigned i = 0; i < set->count; i++) {
    message_t *message = &set->items[i];
    MOVE(packer, message->driver);
    MOVE(packer, message->stage);
    MOVE(packer, message->verb);
    MOVE(packer, message->epoch);
    MOVE(packer, message->step);
    MOVE(packer, message->attempt);
    if (!answers) {
      continue;
    }
    MOVE(packer, message->kind);
    if (message->verb == BL_ASK_TAKEOVER) {
      MOVE(packer, message->ours);
      MOVE(packer, message->applied);
      MOVE(packer, message->highest);
      MOVE(packer, message->prepared);
      MOVE(packer, message->voted_step);
      MOVE(packer, message->voted_attempt);
      MOVE(packer, message->last_step);
      MOVE(packer, message->last_attempt);
    }
  }
}

static void move_world(packer_t *packer, world_t *world) {
  unsigned stages = world->options->stages;
  MOVE(packer, world->deaths);
  for (unsigned i = 0; i < stages; i++) {
    move_stage(packer, &world->stages[i]);
  }
  for (unsigned i = 0; i < SEARCHED; i++) {
    move_driver(packer, &world->drivers[i], stages);
  }
  move_messages(packer, &world->requests, false);
  move_messages(packer, &world->answers, true);
}

// What no machine reads any more is made equal, so that states which differ in nothing else are one.
static void normalise(world_t *world) {
  for (unsigned i = 0; i < world->options->stages; i++) {
    bl_stage_step_t *step = &world->stages[i].step;
    if (step->phase != BL_STAGE_RUNNING && step->phase != BL_STAGE_STOPPING && step->phase != BL_STAGE_VOTED) {
      step->run = (bl_run_id_t){0};
    }
  }
  for (unsigned i = 0; i < SEARCHED; i++) {
    bl_driver_step_t *step = &world->drivers[i].step;
    if (step->phase != BL_DRIVER_RUNNING && step->phase != BL_DRIVER_DECIDING) {
      step->run = (bl_run_id_t){0};
    }
    if (step->phase != BL_DRIVER_COMMITTING) {
      step->commit = (bl_commit_t){0};
    }
    if (step->phase == BL_DRIVER_ENDED) {
      memset(world->drivers[i].peers, 0, sizeof world->drivers[i].peers);
      *step = (bl_driver_step_t){.phase = step->phase, .end = step->end, .peers = step->peers};
    }
  }
}

static void pack(world_t *world, explore_state_t *state) {
  normalise(world);
  packer_t packer = {.state = state, .writes = true};
  if (world->requests.count * 6 + world->answers.count * 15 + 160 > sizeof state->bytes) {
    fprintf(stderr, "world: a state does not fit (%u requests, %u answers)\n", world->requests.count,
            world->answers.count);
    abort();
  }
  move_world(&packer, world);
  state->size = (uint16_t)packer.at;
}

// The machines of drivers point to what they know of stages.
static void relink(world_t *world) {
  for (unsigned i = 0; i < DRIVERS; i++) {
    world->drivers[i].step.peers = world->drivers[i].peers;
  }
}

static void unpack(world_t *world, const world_options_t *options, const explore_state_t *state) {
  memset(world, 0, sizeof *world);
  world->options = options;
  world->attempts = options->attempts;
  explore_state_t copy = *state;
  packer_t packer = {.state = &copy};
  move_world(&packer, world);
  relink(world);
}

// ---- the network ---------------------------------------------------------------------------------------------------

static void add(message_set_t *set, unsigned capacity, const message_t *message) {
  unsigned at = 0;
  while (at < set->count) {
    int order = memcmp(&set->items[at], message, sizeof *message);
    if (order == 0) {
      return;
    }
    if (order > 0) {
      break;
    }
    at++;
  }
  if (set->count == capacity) {
    fprintf(stderr, "world: too many messages\n");
    abort();
  }
  memmove(&set->items[at + 1], &set->items[at], (set->count - at) * sizeof *message);
  set->items[at] = *message;
  set->count++;
}

static bool same_question(const message_t *a, const message_t *b) {
  return a->driver == b->driver && a->stage == b->stage && a->verb == b->verb && a->epoch == b->epoch &&
         a->step == b->step && a->attempt == b->attempt;
}

// The question that driver d asks of a stage now; false when none.
static bool question(const world_t *world, unsigned d, unsigned stage, message_t *message) {
  bl_driver_request_t request = bl_driver_step_request(&world->drivers[d].step, stage);
  if (!world->drivers[d].started || request.verb == BL_ASK_NOTHING) {
    return false;
  }
  *message = (message_t){.driver = (uint8_t)d,
                         .stage = (uint8_t)stage,
                         .verb = (uint8_t)request.verb,
                         .epoch = (uint8_t)request.driver.epoch};
  switch (request.verb) {
  case BL_ASK_RUN:
    message->step = (uint8_t)request.run.step;
    message->attempt = (uint8_t)request.run.attempt;
    break;
  case BL_ASK_COMMIT:
    message->step = (uint8_t)request.commit.step;
    message->attempt = (uint8_t)request.commit.attempt;
    break;
  case BL_ASK_ABORT:
    message->step = (uint8_t)request.next;
    message->attempt = (uint8_t)request.attempt;
    break;
  default:
    break;
  }
  return true;
}

static bl_driver_id_t sender(const message_t *message) {
  return (bl_driver_id_t){.epoch = message->epoch, .id = message->driver + 1u};
}

static bl_driver_request_t request_of(const message_t *message) {
  bl_driver_request_t request = {.verb = message->verb, .driver = sender(message)};
  request.run =
      (bl_run_id_t){.step = message->step, .attempt = message->attempt, .plan_version = PLAN, .kind = BL_RUN_TRAIN};
  request.commit = (bl_commit_t){.step = message->step, .attempt = message->attempt, .scale = message->attempt};
  request.next = message->step;
  request.attempt = message->attempt;
  return request;
}

// ---- stages --------------------------------------------------------------------------------------------------------

static void begin_run(world_t *world, unsigned s, uint64_t attempt) {
  world_stage_t *stage = &world->stages[s];
  check(world, attempt > stage->floor, "a stage begins an attempt again, or after it was told to give it up");
  stage->floor = (uint8_t)attempt;
}

static void apply(world_t *world, unsigned s, const bl_commit_t *commit) {
  world_stage_t *stage = &world->stages[s];
  stage->applied++;
  check(world, stage->applied == commit->step, "a stage applies a step twice, or leaves one out");
  if (commit->step >= 1 && commit->step <= STEPS) {
    stage->applied_as[commit->step - 1] = (uint8_t)commit->attempt;
    for (unsigned other = 0; other < world->options->stages; other++) {
      const bl_stage_step_t *step = &world->stages[other].step;
      uint8_t as = world->stages[other].applied_as[commit->step - 1];
      bool holds = as == commit->attempt || (bl_stage_step_is_prepared(step) && step->run.attempt == commit->attempt);
      check(world, as == 0 || as == commit->attempt, "two stages apply different attempts of a step");
      check(world, holds || world->deaths > 0, "a stage applies what not all have prepared");
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
                                     bl_error_t *err) {
  bl_stage_step_t *step = &world->stages[s].step;
  if (breaks(world, RULE_SAME_VOTE) && step->phase == BL_STAGE_VOTED && step->run.attempt == run.attempt) {
    step->phase = BL_STAGE_IDLE;
    step->highest_attempt = run.attempt - 1;
  }
  bool known = step->run.attempt == run.attempt && step->phase != BL_STAGE_IDLE;
  if (breaks(world, RULE_NEW_ATTEMPT) && !known && step->highest_attempt >= run.attempt) {
    step->highest_attempt = run.attempt - 1;
  }
  bl_stage_decision_t decision = bl_stage_step_run(step, driver, &run, err);
  if (decision == BL_STAGE_BEGIN) {
    begin_run(world, s, run.attempt);
  }
  return decision;
}

static bl_stage_decision_t stage_commit(world_t *world, unsigned s, bl_driver_id_t driver, bl_commit_t commit,
                                        bl_error_t *err) {
  bl_stage_step_t *step = &world->stages[s].step;
  if (breaks(world, RULE_COMMIT_OF_THE_VOTED) && bl_stage_step_is_prepared(step)) {
    commit = (bl_commit_t){.step = step->run.step, .attempt = step->run.attempt, .scale = (double)step->run.attempt};
  }
  bl_stage_decision_t decision = bl_stage_step_commit(step, driver, &commit, err);
  if (decision == BL_STAGE_BEGIN || (decision == BL_STAGE_ANSWER && breaks(world, RULE_COMMIT_ONCE))) {
    apply(world, s, &commit);
  }
  if (decision == BL_STAGE_ANSWER && breaks(world, RULE_COMMIT_ANSWERED_AGAIN)) {
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
  if (breaks(world, RULE_ABORT_IS_REMEMBERED)) {
    stage->step.highest_attempt = before.highest_attempt;
  }
  if (breaks(world, RULE_ABORT_ENDS_THE_VOTE) && decision == BL_STAGE_ANSWER && dropped) {
    stage->step.phase = before.phase;
  }
  return decision;
}

static void report_stage(const world_t *world, unsigned s, message_t *answer) {
  const bl_stage_step_t *step = &world->stages[s].step;
  answer->ours = step->configured == JOB;
  answer->applied = (uint8_t)step->applied;
  answer->highest = (uint8_t)step->highest_attempt;
  answer->prepared = bl_stage_step_is_prepared(step);
  answer->voted_step = answer->prepared ? (uint8_t)step->run.step : 0;
  answer->voted_attempt = answer->prepared ? (uint8_t)step->run.attempt : 0;
  answer->last_step = (uint8_t)step->last_commit.step;
  answer->last_attempt = (uint8_t)step->last_commit.attempt;
}

static bool stage_takeover(world_t *world, unsigned s, bl_driver_id_t driver) {
  world_stage_t *stage = &world->stages[s];
  bool accepted = bl_stage_step_takeover(&stage->step, driver);
  if (!accepted && breaks(world, RULE_EPOCHS_RISE) && driver.epoch < stage->step.driver.epoch) {
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
static bool handle(world_t *world, const message_t *message, message_t *answer) {
  unsigned s = message->stage;
  world_stage_t *stage = &world->stages[s];
  bl_stage_step_t before = stage->step;
  bl_driver_request_t request = request_of(message);
  bl_driver_id_t driver = request.driver;
  if (breaks(world, RULE_FENCING) && message->verb != BL_ASK_TAKEOVER) {
    driver = stage->step.driver;
  }
  bl_error_t err = {.status = BL_OK};
  bl_stage_decision_t decision = BL_STAGE_ANSWER;
  *answer = *message;
  switch (request.verb) {
  case BL_ASK_TAKEOVER:
    answer->kind = stage_takeover(world, s, driver) ? ANSWER_DONE : ANSWER_DECLINED;
    report_stage(world, s, answer);
    if (answer->kind == ANSWER_DECLINED) {
      answer->highest = (uint8_t)stage->step.driver.epoch; // all that counts of a refusal
      answer->ours = answer->applied = answer->prepared = answer->voted_step = answer->voted_attempt = 0;
      answer->last_step = answer->last_attempt = 0;
    }
    return true;
  case BL_ASK_RUN:
    decision = stage_run(world, s, driver, request.run, &err);
    break;
  case BL_ASK_COMMIT:
    decision = stage_commit(world, s, driver, request.commit, &err);
    break;
  case BL_ASK_ABORT:
    decision = stage_abort(world, s, driver, request.next, request.attempt, &err);
    break;
  case BL_ASK_NOTHING:
    break;
  }
  bool changed = memcmp(&before, &stage->step, sizeof before) != 0;
  check(world, !changed || bl_driver_id_equal(request.driver, stage->accepted), "a stale driver changes a stage");
  answer->kind = (uint8_t)answer_kind(decision, &err);
  return decision == BL_STAGE_ANSWER || (decision == BL_STAGE_REFUSE && err.status != BL_EXHAUSTED);
}

static void configure_stage(world_t *world, unsigned s, bl_driver_id_t driver) {
  bl_stage_step_t *step = &world->stages[s].step;
  if (bl_stage_step_configure(step, driver, JOB, NULL) == BL_STAGE_BEGIN) {
    bl_stage_step_configure_ended(step, true);
    bl_stage_step_plan_installed(step, BL_RUN_TRAIN, (bl_plan_record_t){.version = PLAN, .digest = PLAN});
  }
}

static void remove_messages_of(message_set_t *set, unsigned s) {
  unsigned kept = 0;
  for (unsigned i = 0; i < set->count; i++) {
    if (set->items[i].stage != s) {
      set->items[kept++] = set->items[i];
    }
  }
  memset(&set->items[kept], 0, (set->count - kept) * sizeof set->items[0]);
  set->count = kept;
}

// A question that is handled again is answered anew. Only the newest answer is kept: that the older one arrives instead
// is what happens where the second handling, which changed nothing, does not take place.
static void answer_anew(world_t *world, const message_t *answer) {
  message_set_t *set = &world->answers;
  for (unsigned i = 0; i < set->count; i++) {
    if (same_question(&set->items[i], answer)) {
      memmove(&set->items[i], &set->items[i + 1], (set->count - i - 1) * sizeof set->items[0]);
      set->count--;
      break;
    }
  }
  add(set, ANSWERS, answer);
}

static void send_questions(world_t *world, unsigned d);

// The process ends and another begins: its connections, and so all messages of them, are gone; drivers ask again.
static void restart_stage(world_t *world, unsigned s) {
  world->stages[s] = (world_stage_t){0};
  world->deaths++;
  remove_messages_of(&world->requests, s);
  remove_messages_of(&world->answers, s);
  for (unsigned d = 0; d < SEARCHED; d++) {
    send_questions(world, d);
  }
}

// ---- drivers -------------------------------------------------------------------------------------------------------

static bool has_started_steps(const world_t *world) {
  for (unsigned s = 0; s < world->options->stages; s++) {
    if (world->stages[s].step.applied > 0) {
      return true;
    }
  }
  return false;
}

// Boundary: configures stages that lack the job, all in one go. False when a stage no longer listens.
static bool configure_strangers(world_t *world, unsigned d) {
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
    configure_stage(world, s, driver->step.id);
  }
  bl_driver_step_reset(&driver->step);
  return true;
}

static void send_questions(world_t *world, unsigned d) {
  for (unsigned s = 0; s < world->options->stages; s++) {
    message_t message;
    if (question(world, d, s, &message)) {
      add(&world->requests, REQUESTS, &message);
    }
  }
}

// Does what is the shell's turn, then sends what is to be asked.
static void advance(world_t *world, unsigned d) {
  bl_driver_step_t *step = &world->drivers[d].step;
  if (step->phase == BL_DRIVER_DECIDING) {
    bl_driver_step_commit(step, (double)step->run.attempt, 0);
  } else if (step->phase == BL_DRIVER_BOUNDARY && configure_strangers(world, d) &&
             step->applied < world->options->steps && step->highest_attempt < world->attempts) {
    bl_driver_step_run(step, BL_RUN_TRAIN, PLAN);
  }
  check(world, world->deaths > 0 || step->end == BL_DRIVER_END_NONE || step->end == BL_DRIVER_END_FENCED,
        "a driver gives up though nothing was lost");
  if (step->id.epoch <= world->options->epochs) {
    send_questions(world, d);
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
  for (unsigned s = 0; breaks(world, RULE_ALL_ARE_TAKEN_OVER) && accepted && s < world->options->stages; s++) {
    bl_driver_step_taken(step, s, answer->epoch, true, &report);
  }
  if (breaks(world, RULE_FINISH_COMMITS) && step->phase == BL_DRIVER_COMMITTING) {
    bl_driver_step_abort(step);
  }
  if (breaks(world, RULE_ALL_ARE_PREPARED) && step->phase == BL_DRIVER_ABORTING && answer->prepared) {
    step->run = report.run;
    bl_driver_step_commit(step, (double)step->run.attempt, 0);
  }
}

// Driver d hears an answer.
static void hear(world_t *world, unsigned d, const message_t *answer) {
  bl_driver_step_t *step = &world->drivers[d].step;
  unsigned s = answer->stage;
  bl_driver_request_t request = request_of(answer);
  if (answer->kind == ANSWER_FENCED || answer->kind == ANSWER_PRECONDITION) {
    bl_driver_step_refused(step, s, &request, answer->kind == ANSWER_FENCED ? BL_FENCED : BL_PRECONDITION);
  } else if (request.verb == BL_ASK_TAKEOVER) {
    taken(world, d, answer);
  } else if (request.verb == BL_ASK_RUN) {
    bl_driver_step_voted(step, s, request.run.attempt);
    for (unsigned i = 0; breaks(world, RULE_ALL_HAVE_VOTED) && i < world->options->stages; i++) {
      bl_driver_step_voted(step, i, request.run.attempt);
    }
  } else if (request.verb == BL_ASK_COMMIT) {
    bl_driver_step_committed(step, s, request.commit.step);
    for (unsigned i = 0; breaks(world, RULE_ALL_HAVE_APPLIED) && i < world->options->stages; i++) {
      bl_driver_step_committed(step, i, request.commit.step);
    }
  } else if (request.verb == BL_ASK_ABORT) {
    bl_driver_step_aborted(step, s, request.attempt);
  }
}

static void start_driver(world_t *world, unsigned d, uint64_t epoch) {
  world_driver_t *driver = &world->drivers[d];
  driver->started = true;
  bl_driver_step_init(&driver->step, (bl_driver_id_t){.epoch = epoch, .id = d + 1}, driver->peers,
                      world->options->stages);
}

// Answers that no driver will ever look at again are dropped, after making sure that they change nothing.
static void drop_stale_answers(world_t *world) {
  message_set_t kept = {0};
  for (unsigned i = 0; i < world->answers.count; i++) {
    const message_t *answer = &world->answers.items[i];
    const world_driver_t *driver = &world->drivers[answer->driver];
    message_t asked;
    bool wanted = question(world, answer->driver, answer->stage, &asked) && same_question(&asked, answer);
    bool fences = answer->kind == ANSWER_FENCED && answer->epoch == driver->step.id.epoch &&
                  driver->step.phase != BL_DRIVER_ENDED && driver->step.phase != BL_DRIVER_TAKEOVER;
    if (wanted || fences) {
      kept.items[kept.count++] = *answer;
      continue;
    }
    if (world->options->broken_rule == RULE_NONE) {
      static world_t after; // large; the search is one thread
      after = *world;
      relink(&after);
      hear(&after, answer->driver, answer);
      check(world,
            memcmp(after.drivers[answer->driver].peers, driver->peers, sizeof driver->peers) == 0 &&
                after.drivers[answer->driver].step.phase == driver->step.phase,
            "a late answer changes a driver");
    }
  }
  world->answers = kept;
}

// Whether handling this request, now or at any later time, leaves its stage as it is: what it could do is done, or was
// overtaken by a higher epoch, attempt or step, none of which ever falls. Holds only while no rule is broken.
static bool is_spent(const world_t *world, const message_t *message) {
  const bl_stage_step_t *stage = &world->stages[message->stage].step;
  bl_driver_id_t driver = sender(message);
  if (driver.epoch < stage->driver.epoch ||
      (driver.epoch == stage->driver.epoch && (driver.id != stage->driver.id || message->verb == BL_ASK_TAKEOVER))) {
    return true;
  }
  bool holds = stage->phase == BL_STAGE_RUNNING || stage->phase == BL_STAGE_VOTED;
  switch ((bl_driver_verb_t)message->verb) {
  case BL_ASK_RUN:
    return message->attempt <= stage->highest_attempt;
  case BL_ASK_COMMIT:
    return message->step <= stage->applied;
  case BL_ASK_ABORT:
    return message->step <= stage->applied ||
           (message->attempt <= stage->highest_attempt && !(holds && stage->run.attempt <= message->attempt));
  case BL_ASK_NOTHING:
  case BL_ASK_TAKEOVER:
    break;
  }
  return false;
}

// Requests that can do nothing any more, and whose answer nobody waits for, are dropped: without this the search would
// remember every order in which they were sent.
static void drop_spent_requests(world_t *world) {
  if (world->options->broken_rule != RULE_NONE) {
    return;
  }
  message_set_t kept = {0};
  for (unsigned i = 0; i < world->requests.count; i++) {
    const message_t *request = &world->requests.items[i];
    message_t asked;
    bool wanted = question(world, request->driver, request->stage, &asked) && same_question(&asked, request);
    if (wanted || !is_spent(world, request)) {
      kept.items[kept.count++] = *request;
    }
  }
  world->requests = kept;
}

// ---- recovery ------------------------------------------------------------------------------------------------------

// From this very state on nothing is lost any more: does driver d finish the run (or learn that it is fenced)?
static bool finishes(const world_t *from, unsigned d) {
  static world_t world; // large; the search is one thread
  world = *from;
  relink(&world);
  world.attempts = UNLIMITED;
  bl_driver_step_t *step = &world.drivers[d].step;
  bool had_begun = has_started_steps(&world);
  for (unsigned round = 0; round < 64; round++) {
    for (unsigned s = 0; s < world.options->stages; s++) {
      message_t message, answer;
      if (question(&world, d, s, &message) && handle(&world, &message, &answer)) {
        hear(&world, d, &answer);
      }
      bl_stage_step_t *stage = &world.stages[s].step;
      if (stage->phase == BL_STAGE_RUNNING || stage->phase == BL_STAGE_STOPPING) {
        (void)bl_stage_step_run_ended(stage, true);
      } else if (stage->phase == BL_STAGE_APPLYING) {
        bl_stage_step_commit_ended(stage);
      }
    }
    if (step->phase == BL_DRIVER_DECIDING) {
      bl_driver_step_commit(step, (double)step->run.attempt, 0);
    } else if (step->phase == BL_DRIVER_BOUNDARY && step->applied == world.options->steps) {
      break;
    } else if (step->phase == BL_DRIVER_BOUNDARY && configure_strangers(&world, d)) {
      bl_driver_step_run(step, BL_RUN_TRAIN, PLAN);
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

static const char *check_recovery(const world_t *world) {
  static world_t fresh; // large; the search is one thread
  fresh = *world;
  uint64_t epoch = 0;
  for (unsigned s = 0; s < world->options->stages; s++) {
    epoch = fresh.stages[s].step.driver.epoch > epoch ? fresh.stages[s].step.driver.epoch : epoch;
  }
  relink(&fresh);
  start_driver(&fresh, DRIVERS - 1, epoch + 1);
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

// ---- the search's view ---------------------------------------------------------------------------------------------

typedef enum { STAGE_VOTES, STAGE_FAILS, STAGE_HAS_APPLIED, STAGE_RESTARTS, STAGE_EVENTS } stage_event_t;
typedef enum { DRIVER_STARTS_LOW, DRIVER_STARTS_ABOVE, DRIVER_GIVES_UP, DRIVER_EVENTS } driver_event_t;

#define FIRST_ANSWER REQUESTS
#define FIRST_STAGE  (FIRST_ANSWER + ANSWERS)
#define FIRST_DRIVER (FIRST_STAGE + STAGES * STAGE_EVENTS)
#define ACTIONS      (FIRST_DRIVER + SEARCHED * DRIVER_EVENTS)

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
    restart_stage(world, s);
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
    start_driver(world, d, event == DRIVER_STARTS_LOW ? 1 : epoch + 1);
    break;
  case DRIVER_GIVES_UP:
    if (!world->drivers[d].started || step->highest_attempt >= world->attempts) {
      return false;
    }
    if (breaks(world, RULE_DECIDED_IS_DECIDED) && step->phase == BL_DRIVER_COMMITTING) {
      bl_driver_step_abort(step);
    } else if (step->phase == BL_DRIVER_RUNNING) {
      bl_driver_step_abort(step);
    } else {
      return false;
    }
    break;
  case DRIVER_EVENTS:
    return false;
  }
  advance(world, d);
  return true;
}

static bool act(world_t *world, unsigned action) {
  if (action < FIRST_ANSWER) {
    message_t answer;
    if (action >= world->requests.count) {
      return false;
    }
    if (handle(world, &world->requests.items[action], &answer)) {
      answer_anew(world, &answer);
    }
    return true;
  }
  if (action < FIRST_STAGE) {
    unsigned i = action - FIRST_ANSWER;
    if (i >= world->answers.count) {
      return false;
    }
    message_t answer = world->answers.items[i];
    hear(world, answer.driver, &answer);
    advance(world, answer.driver);
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
  relink(&world);
  for (unsigned s = 0; s < world.options->stages; s++) {
    // Stages have the job and nobody to follow: what a driver left that ended before its first step.
    configure_stage(&world, s, (bl_driver_id_t){0});
  }
  start_driver(&world, 0, 1);
  world.attempts = world.options->attempts;
  advance(&world, 0);
  pack(&world, state);
}

static bool successor(const void *context, const explore_state_t *state, unsigned action, explore_step_t *step) {
  static world_t world; // large; the search is one thread
  unpack(&world, context, state);
  if (!act(&world, action)) {
    return false;
  }
  drop_stale_answers(&world);
  drop_spent_requests(&world);
  pack(&world, &step->state);
  step->broken = world.broken;
  return true;
}

static const char *inspect(const void *context, const explore_state_t *state) {
  static world_t world; // large; the search is one thread
  unpack(&world, context, state);
  return check_recovery(&world);
}

static void describe_message(const message_t *message, bool answer, char *text, size_t text_bytes) {
  static const char *const verbs[] = {"nothing", "Takeover", "Run", "Commit", "Abort"};
  static const char *const kinds[] = {"done", "declined", "fenced", "precondition"};
  int length =
      snprintf(text, text_bytes, "%s driver %u, stage %u: %s epoch %u step %u attempt %u", answer ? "hears " : "handle",
               message->driver, message->stage, verbs[message->verb], message->epoch, message->step, message->attempt);
  if (answer && length > 0 && (size_t)length < text_bytes) {
    snprintf(text + length, text_bytes - (size_t)length, " -> %s", kinds[message->kind]);
  }
}

static void describe(const void *context, const explore_state_t *state, unsigned action, char *text,
                     size_t text_bytes) {
  static const char *const stage_events[] = {"ends its run", "fails in its run", "has applied", "is restarted"};
  static const char *const driver_events[] = {"starts with an old epoch", "starts", "gives up"};
  world_t world;
  unpack(&world, context, state);
  if (action < FIRST_ANSWER) {
    describe_message(&world.requests.items[action], false, text, text_bytes);
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
                           .successor = successor,
                           .inspect = inspect,
                           .actions = ACTIONS,
                           .describe = describe};
}
