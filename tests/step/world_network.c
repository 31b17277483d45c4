// SPDX-License-Identifier: Apache-2.0
#include "step/world_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
  return a->driver == b->driver && a->stage == b->stage && a->type == b->type && a->epoch == b->epoch &&
         a->step == b->step && a->attempt == b->attempt && (a->type != BL_DRIVER_REQUEST_PREPARE || a->plan == b->plan);
}

// The question that driver d asks of a stage now; false when none.
bool world_question(const world_t *world, unsigned d, unsigned stage, message_t *message) {
  bl_driver_request_t request = bl_driver_step_request(&world->drivers[d].step, stage);
  if (!world->drivers[d].started || request.kind == BL_DRIVER_REQUEST_NONE) {
    return false;
  }
  *message = (message_t){.driver = (uint8_t)d,
                         .stage = (uint8_t)stage,
                         .type = (uint8_t)request.kind,
                         .epoch = (uint8_t)request.driver.epoch};
  switch (request.kind) {
  case BL_DRIVER_REQUEST_PREPARE:
    message->plan = (uint8_t)request.plan.version;
    message->maker = (uint8_t)request.plan.digest;
    message->policy = (uint8_t)request.plan.policy;
    message->follows = (uint8_t)request.plan.follows;
    break;
  case BL_DRIVER_REQUEST_RUN:
    message->step = (uint8_t)request.run.step;
    message->attempt = (uint8_t)request.run.attempt;
    message->plan = (uint8_t)request.run.plan_version;
    message->ahead = (uint8_t)request.offer.attempt;
    break;
  case BL_DRIVER_REQUEST_COMMIT:
    message->step = (uint8_t)request.commit.step;
    message->attempt = (uint8_t)request.commit.attempt;
    break;
  case BL_DRIVER_REQUEST_ABORT:
    message->step = (uint8_t)request.next;
    message->attempt = (uint8_t)request.attempt;
    break;
  default:
    break;
  }
  return true;
}

bl_driver_id_t world_sender(const message_t *message) {
  return (bl_driver_id_t){.epoch = message->epoch, .id = message->driver + 1u};
}

bl_driver_request_t world_request_of(const message_t *message) {
  bl_driver_request_t request = {.kind = message->type, .driver = world_sender(message)};
  request.run = (bl_run_id_t){
      .step = message->step, .attempt = message->attempt, .plan_version = message->plan, .kind = BL_RUN_TRAIN};
  request.plan = (bl_plan_record_t){
      .version = message->plan, .digest = message->maker, .policy = message->policy, .follows = message->follows};
  request.commit = (bl_commit_t){.step = message->step, .attempt = message->attempt, .scale = message->attempt};
  request.offer = world_offer(message->attempt, message->type == BL_DRIVER_REQUEST_RUN ? message->ahead : 0);
  request.next = message->step;
  request.attempt = message->attempt;
  return request;
}

void world_send_questions(world_t *world, unsigned d) {
  for (unsigned s = 0; s < world->options->stages; s++) {
    message_t message;
    if (world_question(world, d, s, &message)) {
      add(&world->requests, REQUESTS, &message);
    }
  }
}

void world_remove_messages_of(message_set_t *set, unsigned s) {
  unsigned kept = 0;
  for (unsigned i = 0; i < set->count; i++) {
    if (set->items[i].stage != s) {
      set->items[kept++] = set->items[i];
    }
  }
  set->count = kept;
}

// A question that is handled again is answered anew. Only the newest answer is kept: that the older one arrives instead
// is what happens where the second handling, which changed nothing, does not take place.
void world_answer_anew(world_t *world, const message_t *answer) {
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

// What each driver asks of each stage now.
typedef struct questions {
  message_t asked[DRIVERS][STAGES];
  bool asks[DRIVERS][STAGES];
} questions_t;

static void find_questions(const world_t *world, questions_t *questions) {
  for (unsigned d = 0; d < DRIVERS; d++) {
    for (unsigned s = 0; s < world->options->stages; s++) {
      questions->asks[d][s] = world->drivers[d].started && world_question(world, d, s, &questions->asked[d][s]);
    }
  }
}

// A driver waits for what this is about.
static bool is_wanted(const questions_t *questions, const message_t *message) {
  return questions->asks[message->driver][message->stage] &&
         same_question(&questions->asked[message->driver][message->stage], message);
}

// Answers that no driver will ever look at again are dropped, after making sure that they change nothing.
void world_drop_stale_answers(world_t *world) {
  questions_t questions;
  message_set_t *set = &world->answers;
  unsigned kept = 0;
  find_questions(world, &questions);
  for (unsigned i = 0; i < set->count; i++) {
    const message_t copy = set->items[i], *answer = &copy;
    const world_driver_t *driver = &world->drivers[answer->driver];
    bool fences = answer->kind == ANSWER_FENCED && answer->epoch == driver->step.id.epoch &&
                  driver->step.phase != BL_DRIVER_ENDED && driver->step.phase != BL_DRIVER_TAKEOVER;
    if (is_wanted(&questions, answer) || fences) {
      set->items[kept++] = *answer;
      continue;
    }
    if (world->options->broken_rule == RULE_NONE) {
      static world_t after; // large; the search is one thread
      world_copy(&after, world);
      world_hear(&after, answer->driver, answer);
      world_check(world,
                  memcmp(after.drivers[answer->driver].peers, driver->peers, sizeof driver->peers) == 0 &&
                      after.drivers[answer->driver].step.phase == driver->step.phase,
                  "a late answer changes a driver");
    }
  }
  set->count = kept;
}

// Whether handling this request, now or at any later time, leaves its stage as it is: what it could do is done, or was
// overtaken by a higher epoch, attempt or step, none of which ever falls. Holds only while no rule is broken.
static bool is_spent(const world_t *world, const message_t *message) {
  const bl_stage_step_t *stage = &world->stages[message->stage].step;
  bl_driver_id_t driver = world_sender(message);
  if (driver.epoch < stage->driver.epoch ||
      (driver.epoch == stage->driver.epoch &&
       (driver.id != stage->driver.id || message->type == BL_DRIVER_REQUEST_TAKEOVER))) {
    return true;
  }
  bool is_it = stage->phase == BL_STAGE_RUNNING && stage->run.attempt == message->attempt && stage->offer.attempt == 0;
  bool will_be = stage->ahead != BL_AHEAD_NONE && stage->offer.attempt == message->attempt;
  bool holds = stage->phase == BL_STAGE_RUNNING || stage->phase == BL_STAGE_VOTED;
  switch ((bl_driver_request_kind_t)message->type) {
  case BL_DRIVER_REQUEST_PREPARE:
    return message->plan <= stage->plan_version;
  case BL_DRIVER_REQUEST_RUN:
    // What it offers counts for the attempt that runs, and for the one ahead once that is the one that runs.
    return message->attempt <= stage->highest_attempt && !(message->ahead != 0 && (is_it || will_be));
  case BL_DRIVER_REQUEST_COMMIT:
    return message->step <= stage->applied;
  case BL_DRIVER_REQUEST_ABORT:
    return message->step <= stage->applied ||
           (message->attempt <= stage->highest_attempt && !(holds && stage->run.attempt <= message->attempt));
  case BL_DRIVER_REQUEST_NONE:
  case BL_DRIVER_REQUEST_TAKEOVER:
    break;
  }
  return false;
}

static void check_spent(world_t *world, const message_t *request) {
  static world_t after; // large; the search is one thread
  message_t answer;
  world_copy(&after, world);
  (void)world_handle(&after, request, &answer);
  const bl_stage_step_t *is = &after.stages[request->stage].step, *was = &world->stages[request->stage].step;
  world_check(world, memcmp(is, was, sizeof *is) == 0, "a request that was taken for spent changes a stage");
}

// Requests that can do nothing any more, and whose answer nobody waits for, are dropped: without this the search would
// remember every order in which they were sent.
void world_drop_spent_requests(world_t *world) {
  if (world->options->broken_rule != RULE_NONE) {
    return;
  }
  questions_t questions;
  message_set_t *set = &world->requests;
  unsigned kept = 0;
  find_questions(world, &questions);
  for (unsigned i = 0; i < set->count; i++) {
    const message_t request = set->items[i];
    if (is_wanted(&questions, &request) || !is_spent(world, &request)) {
      set->items[kept++] = request;
    } else {
      check_spent(world, &request);
    }
  }
  set->count = kept;
}
