// SPDX-License-Identifier: Apache-2.0
// What the files that make up the world share: its state, and who does what.
//
//   world.c          the search's view: actions, descriptions
//   world_pack.c     states as bytes
//   world_network.c  requests and answers on their way
//   world_stages.c   stages, with the invariants that are theirs
//   world_drivers.c  drivers
//   world_recovery.c whether a run can still be finished
#ifndef TESTS_STEP_WORLD_CORE_H
#define TESTS_STEP_WORLD_CORE_H

#include "step/driver_step.h"
#include "step/stage_step.h"
#include "step/world.h"

#define STAGES    3
#define STEPS     3
#define DRIVERS   3 // the first, its successor, and a fresh one that only the recovery check uses
#define SEARCHED  2
#define REQUESTS  56
#define ANSWERS   32
#define JOB       7 // digest of the one configuration
#define PLAN      1
#define PLANS     8 // versions count below this
#define UNLIMITED 255

typedef enum { ANSWER_DONE, ANSWER_DECLINED, ANSWER_FENCED, ANSWER_PRECONDITION } answer_kind_t;

// A request that was sent, or the answer to one.
typedef struct message {
  uint8_t driver, stage, type, epoch;
  uint8_t step, attempt; // of the run, the commit, or what the abort says
  uint8_t plan, maker;   // of the run or the plan: its version, and who made it (its digest)
  uint8_t policy, follows;
  uint8_t ahead; // of the run: the attempt that is offered; of an answer to Takeover: that has begun
  uint8_t kind;  // of an answer
  // Of an answer to Takeover: what the stage says of itself.
  uint8_t ours, applied, highest, prepared, voted_step, voted_attempt, last_step, last_attempt;
  uint8_t voted_plan, highest_plan;
  struct {
    uint8_t version, maker, policy;
  } plans[BL_STAGE_PLANS];
} message_t;

typedef struct message_set {
  unsigned count;
  message_t items[REQUESTS];
} message_set_t;

typedef struct world_stage {
  bl_stage_step_t step;
  // What really happened in this process, for the invariants.
  uint8_t floor;             // highest attempt that was begun or given up
  uint8_t applied;           // updates applied and committed
  uint8_t ahead;             // attempt whose update is in the weights before its commit; 0: none
  uint8_t applied_as[STEPS]; // attempt that became step i + 1
  uint8_t applied_plan[STEPS];
  bl_driver_id_t accepted; // highest driver that a takeover was accepted of
} world_stage_t;

typedef struct world_driver {
  bool started;
  bool asked; // for another policy
  bl_driver_step_t step;
  bl_driver_peer_t peers[STAGES];
} world_driver_t;

typedef struct world {
  const world_options_t *options;
  world_stage_t stages[STAGES];
  world_driver_t drivers[DRIVERS];
  uint8_t deaths;
  uint8_t policies;                // asked for so far
  uint8_t told_from[PLANS];        // a driver said that this plan is in force from this step on
  uint8_t refused, begun;          // plans that a driver said are refused; that some stage ran. One bit per version
  unsigned attempts;               // limit
  const char *broken;              // the first violation
  message_set_t requests, answers; // last: most of their entries are empty
} world_t;

static inline bool world_breaks(const world_t *world, world_rule_t rule) {
  return world->options->broken_rule == rule;
}

static inline void world_check(world_t *world, bool holds, const char *invariant) {
  if (!holds && !world->broken) {
    world->broken = invariant;
  }
}

// The numbers of a commit are those of its attempt; an offer guesses them, wrongly behind the first attempt of a run.
static inline bl_offer_t world_offer(uint64_t behind, uint64_t attempt) {
  double scale = behind == 1 ? 0.5 : (double)behind;
  return attempt == 0 ? (bl_offer_t){0} : (bl_offer_t){.attempt = attempt, .scale = scale};
}

// world_pack.c
void world_pack(world_t *world, explore_state_t *state);
void world_unpack(world_t *world, const world_options_t *options, const explore_state_t *state);
// The machines of drivers point to what they know of stages.
void world_relink(world_t *world);
void world_copy(world_t *to, const world_t *from);

// world_network.c
bl_driver_id_t world_sender(const message_t *message);
bl_driver_request_t world_request_of(const message_t *message);
// The question that driver d asks of a stage now; false when none.
bool world_question(const world_t *world, unsigned d, unsigned stage, message_t *message);
void world_send_questions(world_t *world, unsigned d);
void world_answer_anew(world_t *world, const message_t *answer);
void world_remove_messages_of(message_set_t *set, unsigned s);
void world_drop_stale_answers(world_t *world);
void world_drop_spent_requests(world_t *world);

// world_stages.c
// The stage cannot do what the plan says: it refuses, where else it would prepare it. False when this is no such request.
bool world_refuse(world_t *world, const message_t *message, message_t *answer);
// A stage handles a request; true when it answers it at once. While it works it answers nothing: the network will
// deliver the request again.
bool world_handle(world_t *world, const message_t *message, message_t *answer);
// The run of a stage has ended with a vote: whether it goes on with the next step at once.
bool world_goes_on(world_t *world, unsigned s);
// What was applied ahead has been taken back.
void world_undone(world_t *world, unsigned s);
void world_configure_stage(world_t *world, unsigned s, bl_driver_id_t driver);
void world_restart_stage(world_t *world, unsigned s);

// world_drivers.c
void world_start_driver(world_t *world, unsigned d, uint64_t epoch);
// Driver d hears an answer.
void world_hear(world_t *world, unsigned d, const message_t *answer);
// Does what is the shell's turn, then sends what is to be asked.
void world_advance(world_t *world, unsigned d);
// Decides the attempt that all have voted for.
void world_decide(world_t *world, unsigned d);
// Boundary: configures stages that lack the job, all in one go. False when a stage no longer listens.
bool world_configure_strangers(world_t *world, unsigned d);

// world_recovery.c
// NULL, or what a run cannot do any more from this state on.
const char *world_check_recovery(const world_t *world);

#endif
