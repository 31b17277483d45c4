// SPDX-License-Identifier: Apache-2.0
#include "step/world_core.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static void move_plan(packer_t *packer, bl_plan_record_t *plan) {
  MOVE(packer, plan->version);
  MOVE(packer, plan->digest);
  MOVE(packer, plan->policy);
}

static void move_plans(packer_t *packer, bl_plan_record_t plans[BL_STAGE_PLANS]) {
  for (unsigned i = 0; i < BL_STAGE_PLANS; i++) {
    move_plan(packer, &plans[i]);
  }
}

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
  MOVE(packer, step->run.plan_version);
  MOVE(packer, step->offer.attempt);
  MOVE(packer, step->ahead);
  MOVE(packer, step->plan_version);
  move_plans(packer, step->plans[BL_RUN_TRAIN]);
  MOVE(packer, step->last_commit.step);
  MOVE(packer, step->last_commit.attempt);
  MOVE(packer, stage->floor);
  MOVE(packer, stage->applied);
  MOVE(packer, stage->ahead);
  for (unsigned i = 0; i < STEPS; i++) {
    MOVE(packer, stage->applied_as[i]);
    MOVE(packer, stage->applied_plan[i]);
  }
  MOVE(packer, stage->accepted.epoch);
  MOVE(packer, stage->accepted.id);
  if (!packer->writes) {
    step->last_commit.scale = (double)step->last_commit.attempt;
    step->offer = world_offer(step->run.attempt, step->offer.attempt);
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
  MOVE(packer, step->run.plan_version);
  MOVE(packer, step->offer.attempt);
  MOVE(packer, step->sweeps);
  MOVE(packer, driver->asked);
  MOVE(packer, step->plan_version);
  move_plan(packer, &step->plans[BL_RUN_TRAIN]);
  move_plan(packer, &step->proposal);
  MOVE(packer, step->proposal.follows);
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
      MOVE(packer, peer->report.run.plan_version);
      MOVE(packer, peer->report.ahead.attempt);
      MOVE(packer, peer->report.plan_version);
      move_plans(packer, peer->report.plans);
      MOVE(packer, peer->report.last_commit.step);
      MOVE(packer, peer->report.last_commit.attempt);
      peer->report.last_commit.scale = (double)peer->report.last_commit.attempt;
      peer->report.ahead = world_offer(peer->report.run.attempt, peer->report.ahead.attempt);
    }
  }
  if (!packer->writes) {
    step->commit.scale = (double)step->commit.attempt;
    step->offer = world_offer(step->run.attempt, step->offer.attempt);
    step->stage_count = stages;
  }
}

static void move_messages(packer_t *packer, message_set_t *set, bool answers) {
  MOVE(packer, set->count);
  for (unsigned i = 0; i < set->count; i++) {
    message_t *message = &set->items[i];
    MOVE(packer, message->driver);
    MOVE(packer, message->stage);
    MOVE(packer, message->type);
    MOVE(packer, message->epoch);
    MOVE(packer, message->step);
    MOVE(packer, message->attempt);
    MOVE(packer, message->plan);
    MOVE(packer, message->ahead);
    if (message->type == BL_DRIVER_REQUEST_PREPARE) {
      MOVE(packer, message->maker);
      MOVE(packer, message->policy);
      MOVE(packer, message->follows);
    }
    if (!answers) {
      continue;
    }
    MOVE(packer, message->kind);
    if (message->type == BL_DRIVER_REQUEST_TAKEOVER) {
      MOVE(packer, message->ours);
      MOVE(packer, message->applied);
      MOVE(packer, message->highest);
      MOVE(packer, message->prepared);
      MOVE(packer, message->voted_step);
      MOVE(packer, message->voted_attempt);
      MOVE(packer, message->last_step);
      MOVE(packer, message->last_attempt);
      MOVE(packer, message->voted_plan);
      MOVE(packer, message->highest_plan);
      for (unsigned k = 0; k < BL_STAGE_PLANS; k++) {
        MOVE(packer, message->plans[k].version);
        MOVE(packer, message->plans[k].maker);
        MOVE(packer, message->plans[k].policy);
      }
    }
  }
}

static void move_world(packer_t *packer, world_t *world) {
  unsigned stages = world->options->stages;
  MOVE(packer, world->deaths);
  MOVE(packer, world->policies);
  MOVE(packer, world->refused);
  MOVE(packer, world->begun);
  for (unsigned i = 0; i < PLANS; i++) {
    MOVE(packer, world->told_from[i]);
  }
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
    if (step->phase != BL_STAGE_RUNNING && step->phase != BL_STAGE_STOPPING && step->phase != BL_STAGE_VOTED &&
        step->phase != BL_STAGE_UNDOING) {
      step->run = (bl_run_id_t){0};
      step->offer = (bl_offer_t){0};
    } else if (step->phase == BL_STAGE_VOTED && step->ahead == BL_AHEAD_NONE) {
      step->offer = (bl_offer_t){0}; // what it declined
    }
    for (unsigned k = 0; k < BL_STAGE_PLANS; k++) {
      step->plans[BL_RUN_TRAIN][k].follows = 0;
    }
  }
  for (unsigned i = 0; i < SEARCHED; i++) {
    bl_driver_step_t *step = &world->drivers[i].step;
    if (step->phase != BL_DRIVER_RUNNING && step->phase != BL_DRIVER_DECIDING && step->offer.attempt == 0) {
      step->run = (bl_run_id_t){0};
    }
    step->proposal_refused = false;
    step->refuser = 0;
    step->plans[BL_RUN_TRAIN].follows = 0;
    if (step->phase != BL_DRIVER_PREPARING) {
      step->proposal = (bl_plan_record_t){0};
    }
    if (step->phase != BL_DRIVER_COMMITTING) {
      step->commit = (bl_commit_t){0};
    }
    if (step->phase == BL_DRIVER_ENDED) {
      world->drivers[i].asked = false;
      memset(world->drivers[i].peers, 0, sizeof world->drivers[i].peers);
      *step = (bl_driver_step_t){.phase = step->phase, .end = step->end, .peers = step->peers};
    }
  }
}

void world_pack(world_t *world, explore_state_t *state) {
  normalise(world);
  packer_t packer = {.state = state, .writes = true};
  if (world->requests.count * 11 + world->answers.count * 27 + 210 > sizeof state->bytes) {
    fprintf(stderr, "world: a state does not fit (%u requests, %u answers)\n", world->requests.count,
            world->answers.count);
    abort();
  }
  move_world(&packer, world);
  state->size = (uint16_t)packer.at;
}

// The machines of drivers point to what they know of stages.
void world_relink(world_t *world) {
  for (unsigned i = 0; i < DRIVERS; i++) {
    world->drivers[i].step.peers = world->drivers[i].peers;
  }
}

static void copy_messages(message_set_t *to, const message_set_t *from) {
  to->count = from->count;
  memcpy(to->items, from->items, from->count * sizeof from->items[0]);
}

void world_copy(world_t *to, const world_t *from) {
  memcpy(to, from, offsetof(world_t, requests));
  copy_messages(&to->requests, &from->requests);
  copy_messages(&to->answers, &from->answers);
  world_relink(to);
}

void world_unpack(world_t *world, const world_options_t *options, const explore_state_t *state) {
  memset(world, 0, sizeof *world);
  world->options = options;
  world->attempts = options->attempts;
  explore_state_t copy = *state;
  packer_t packer = {.state = &copy};
  move_world(&packer, world);
  world_relink(world);
}
