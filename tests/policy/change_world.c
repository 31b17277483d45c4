// SPDX-License-Identifier: Apache-2.0
#include "policy/change_world.h"

#include "policy/change.h"
#include "step/driver_step.h"
#include "step/stage_step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STAGES   2
#define DRIVERS  3
#define VERSIONS 8 // of plans, from 1 on
#define STEPS    6
#define BOOK     6 // records of a history
#define DELAY_MS (BL_CHANGES_PROPOSALS_MS + 1)

const char *change_rule_text(change_rule_t rule) {
  static const char *const texts[] = {
#define X(identifier, text) text,
      CHANGE_RULES(X)
#undef X
  };
  return texts[rule];
}

typedef enum { AGREES, REFUSES, IS_SLOW, SAYS } stage_says_t;
typedef enum { NOT_ASKED, ASKED, IN_FORCE, REFUSED, LOST } wish_state_t; // LOST: its driver died

// What a driver has proposed.
typedef struct proposal {
  bool made;
  uint64_t policy, follows;
  bl_policy_record_t records[BOOK];
  size_t count;
} proposal_t;

typedef struct stage {
  bl_stage_step_t step;
  uint8_t ran[STEPS + 1]; // [step] version of the policy that it ran under; 0: it did not
} stage_t;

typedef struct wish {
  wish_state_t state;
  uint8_t version;  // as told
  uint8_t order;    // in which it was asked of this driver, from 1
  uint8_t asked_at; // so many delays had passed
  uint8_t tries;    // how often it was proposed
  uint8_t tried_at; // first
} wish_t;

typedef struct world {
  const change_options_t *options;
  stage_t stages[STAGES];
  proposal_t proposals[DRIVERS][VERSIONS + 1];
  uint8_t asked[DRIVERS][VERSIONS + 1];        // bit of every stage that was asked
  uint8_t said[DRIVERS][VERSIONS + 1][STAGES]; // bit of every answer that was sent
  uint8_t driver;                              // the present one
  bool alive, proposed;                        // PREPARING was begun, or the first plan proposed, and is not concluded
  bool stepped;                                // a step ran since the last change of this driver was in force
  bl_driver_step_t step;
  bl_driver_peer_t peers[STAGES];
  bl_changes_t changes;
  uint8_t delays;
  wish_t wishes[WISHES];
  const char *broken;
} world_t;

static bool breaks(const world_t *world, change_rule_t rule) {
  return world->options->broken_rule == rule;
}

static void check(world_t *world, bool holds, const char *invariant) {
  world->broken = world->broken == NULL && !holds ? invariant : world->broken;
}

static uint64_t now_of(const world_t *world) {
  return 1 + world->delays * (uint64_t)DELAY_MS;
}

static bl_driver_id_t id_of(unsigned driver) {
  return (bl_driver_id_t){.epoch = driver + 1, .id = driver + 1};
}

// ---- policies: cap 2 + w of wish w, 1 of the job --------------------------------------------------------------------

static bl_policy_t policy_of(unsigned cap) {
  return (bl_policy_t){.kind = BL_POLICY_CAP, .cap = cap};
}

static bl_policy_request_t request_of(const world_t *world, unsigned wish) {
  const change_wish_t kind = world->options->wishes[wish];
  bl_policy_request_t request = {.request = wish + 1, .dry_run = kind == WISH_DRY_RUN};
  request.rollback = kind == WISH_ROLLBACK;
  request.policy = request.begun = policy_of(request.rollback ? 0 : 2 + wish);
  return request;
}

static bool in_book(const bl_policy_history_t *history, unsigned wish) {
  return bl_policy_history_find_request(history, wish + 1) != NULL;
}

static void check_history(world_t *world) {
  const bl_policy_history_t *history = &world->changes.history;
  for (size_t i = 0; i < history->count; i++) {
    const bl_policy_record_t *record = &history->records[i];
    check(world, record->version == i + 1, "versions of policies do not count on");
    check(world, i == 0 || record->from_step >= history->records[i - 1].from_step,
          "a policy is in force from a step on that is before that of the one before");
    for (size_t k = 0; k < i; k++) {
      bool same = record->request != 0 && record->request == history->records[k].request;
      bool again = record->restores == 0 && record->policy.cap == history->records[k].policy.cap;
      check(world, !same && !again, "a request was carried out twice");
    }
  }
  for (unsigned w = 0; w < WISHES; w++) {
    for (size_t i = 0; world->options->wishes[w] == WISH_DRY_RUN && i < history->count; i++) {
      check(world, history->records[i].policy.cap != 2 + w, "a dry run was carried out");
    }
    check(world, world->wishes[w].state != REFUSED || !in_book(history, w), "what was said to be refused is in force");
  }
}

// ---- stages ---------------------------------------------------------------------------------------------------------

static bl_policy_history_t history_of(const world_t *world, const bl_plan_record_t *plan) {
  const proposal_t *proposal = &world->proposals[plan->digest - 1][plan->version];
  bl_policy_history_t history = {.count = proposal->count};
  memcpy(history.records, proposal->records, sizeof proposal->records);
  return history;
}

static bl_plan_record_t plan_of(const world_t *world, unsigned driver, unsigned version) {
  const proposal_t *proposal = &world->proposals[driver][version];
  return (bl_plan_record_t){
      .version = version, .digest = driver + 1, .policy = proposal->policy, .follows = proposal->follows};
}

// A question arrives, be it for the first time or not.
static bool stage_hears(world_t *world, unsigned driver, unsigned version, unsigned s, stage_says_t says) {
  if ((world->asked[driver][version] >> s & 1) == 0) {
    return false;
  }
  bl_stage_step_t *step = &world->stages[s].step;
  const bl_plan_record_t plan = plan_of(world, driver, version);
  uint64_t replaces;
  bl_error_t err;
  switch (bl_stage_step_plan(step, id_of(driver), BL_RUN_TRAIN, plan, &replaces, &err)) {
  case BL_STAGE_BEGIN:
    if (says == AGREES) {
      bl_stage_step_plan_installed(step, BL_RUN_TRAIN, plan);
    } else {
      bl_stage_step_plan_refused(step, version);
    }
    break;
  case BL_STAGE_ANSWER:
    if (says != AGREES) {
      return false;
    }
    break;
  default:
    if (says != REFUSES) {
      return false;
    }
    break;
  }
  world->said[driver][version][s] |= (uint8_t)(1u << says);
  return true;
}

// All stages run the next step and commit it.
static void run_step(world_t *world) {
  bl_driver_step_t *step = &world->step;
  bl_driver_step_run(step, BL_RUN_TRAIN);
  for (unsigned s = 0; s < world->options->stages; s++) {
    bl_stage_step_t *stage = &world->stages[s].step;
    bl_error_t err;
    check(world, bl_stage_step_run(stage, step->id, &step->run, &err) == BL_STAGE_BEGIN, "a stage refuses a step");
    (void)bl_stage_step_run_ended(stage, true);
    bl_driver_step_voted(step, s, step->run.attempt);
  }
  (void)bl_driver_step_commit(step, 1, 0);
  for (unsigned s = 0; s < world->options->stages && world->broken == NULL; s++) {
    bl_stage_step_t *stage = &world->stages[s].step;
    bl_error_t err;
    (void)bl_stage_step_commit(stage, step->id, &step->commit, &err);
    bl_stage_step_commit_ended(stage);
    const bl_policy_history_t kept = history_of(world, &stage->plans[BL_RUN_TRAIN][0]);
    const bl_policy_record_t *current = bl_policy_history_current(&kept);
    const bl_policy_record_t *said = bl_policy_history_of_step(&world->changes.history, step->run.step);
    world->stages[s].ran[step->run.step] = (uint8_t)current->version;
    check(world, current->version == said->version && bl_policy_equal(&current->policy, &said->policy),
          "a step ran under another policy than the history says");
    bl_driver_step_committed(step, s, step->run.step);
  }
  world->stepped = true;
  for (unsigned w = 0; w < WISHES; w++) {
    const wish_t *wish = &world->wishes[w];
    uint8_t ran = world->stages[0].ran[step->applied];
    check(world, wish->state != IN_FORCE || wish->version == 0 || ran >= wish->version,
          "a step ran under an older policy than was said to be in force");
  }
}

// ---- drivers --------------------------------------------------------------------------------------------------------

static void answer(world_t *world, const bl_change_t *change, wish_state_t state, const bl_policy_record_t *record) {
  wish_t *wish = change->caller;
  check(world, wish->state == ASKED, "a change was answered twice");
  *wish = (wish_t){.state = state};
  wish->version = record != NULL ? (uint8_t)record->version : 0;
}

static void propose(world_t *world) {
  const bl_policy_record_t *current = bl_policy_history_current(&world->changes.next);
  bl_driver_step_prepare(&world->step, BL_RUN_TRAIN, world->driver + 1u, current->version);
  const bl_plan_record_t *plan = &world->step.proposal;
  proposal_t *proposal = &world->proposals[world->driver][plan->version];
  *proposal =
      (proposal_t){.made = true, .policy = plan->policy, .follows = plan->follows, .count = world->changes.next.count};
  memcpy(proposal->records, world->changes.next.records, sizeof proposal->records);
  world->proposed = true;
}

static bool may_propose(const world_t *world) {
  return world->step.plan_version < world->options->versions;
}

static void adopt(world_t *world) {
  if (breaks(world, RULE_NAMED_ONCE)) {
    for (size_t i = 0; i < world->changes.history.count; i++) {
      world->changes.history.records[i].request = 0;
    }
  }
  check_history(world);
}

static void conclude_first(world_t *world) {
  world->proposed = false;
  if (!world->step.proposal_refused) {
    bl_changes_first_agreed(&world->changes);
    bl_changes_opened(&world->changes);
    adopt(world);
    return;
  }
  const bool slow = (world->said[world->driver][world->step.proposal.version][world->step.refuser] >> IS_SLOW & 1) != 0;
  if (bl_changes_first_refused(&world->changes, slow ? BL_DEADLINE : BL_EXHAUSTED, false, now_of(world)) !=
          BL_CHANGES_AGAIN ||
      !may_propose(world)) {
    world->alive = false; // the run ends before its first step
    world->driver = DRIVERS;
    return;
  }
  propose(world);
}

static void rotate(bl_changes_t *changes) {
  bl_change_t first = changes->waiting[0];
  memmove(changes->waiting, changes->waiting + 1, (changes->waiting_count - 1) * sizeof first);
  changes->waiting[changes->waiting_count - 1] = first;
}

// Nobody who asked before waits still.
static void check_order(world_t *world, const wish_t *first) {
  for (unsigned w = 0; w < WISHES; w++) {
    const wish_t *other = &world->wishes[w];
    check(world, other->state != ASKED || other == first || other->order > first->order,
          "a change has overtaken one that was asked for before");
  }
}

// The stages have answered what was proposed for a change.
static void conclude(world_t *world, bl_status_t status) {
  bl_changes_t *changes = &world->changes;
  const bl_policy_history_t before = changes->history;
  world->proposed = false;
  if (breaks(world, RULE_FROM_NEXT_STEP) && world->step.plans[BL_RUN_TRAIN].version != 0 &&
      world->step.applied < world->options->steps) {
    run_step(world);
  }
  if (!world->step.proposal_refused || (status != BL_DEADLINE && breaks(world, RULE_REFUSAL_CHANGES_NOTHING))) {
    check(world, world->stepped, "no step ran between two changes");
    bl_changes_agreed(changes, world->step.highest_attempt);
    world->stepped = false;
    adopt(world);
    const bl_change_t done = changes->change;
    check_order(world, done.caller);
    answer(world, &done, world->step.proposal_refused ? REFUSED : IN_FORCE,
           bl_policy_history_current(&changes->history));
    check_history(world);
    if (breaks(world, RULE_ANSWERED_ONCE)) {
      changes->waiting[changes->waiting_count++] = done;
    }
  } else {
    if (breaks(world, RULE_WAIT_FOR_SLOW_ENDS)) {
      changes->change.proposals = 0;
    }
    const wish_t *wish = changes->change.caller;
    const bool late = wish->tries > BL_CHANGES_PROPOSALS && world->delays > wish->tried_at;
    const bool again = bl_changes_refused(changes, status, world->step.highest_attempt, now_of(world));
    check(world, !(again && late), "slow stores are waited for without an end");
    check(world, before.count == changes->history.count, "a refusal changed the history");
    const bl_change_t done = changes->change;
    if (!again) {
      answer(world, &done, REFUSED, NULL);
    } else if (breaks(world, RULE_FIRST_STAYS_FIRST)) {
      rotate(changes);
    }
  }
  if (breaks(world, RULE_STEP_BETWEEN)) {
    changes->changed_before = UINT64_MAX;
  }
}

typedef enum { PLAN_FITS, NO_PLAN, STORES_ARE_AWAY, PLANS } plan_result_t;

// Between two steps. False: not now.
static bool boundary(world_t *world, plan_result_t result) {
  bl_changes_t *changes = &world->changes;
  bool concluded = false;
  if (!world->alive || world->step.phase != BL_DRIVER_BOUNDARY) {
    return false;
  }
  if (world->proposed) {
    if (result != PLAN_FITS) {
      return false;
    }
    if (changes->phase == BL_CHANGES_OPENING) {
      conclude_first(world);
      return true;
    }
    const bool slow =
        (world->said[world->driver][world->step.proposal.version][world->step.refuser] >> IS_SLOW & 1) != 0;
    conclude(world, slow ? BL_DEADLINE : BL_EXHAUSTED);
    concluded = true;
  }
  bool used = result == PLAN_FITS; // whether `result` mattered
  for (;;) {
    bl_changes_answer_t said;
    bl_error_t err;
    switch (bl_changes_boundary(changes, world->step.applied, world->step.highest_attempt, false, &said, &err)) {
    case BL_CHANGES_ANSWER: {
      const bl_change_t done = changes->change;
      answer(world, &done, err.status == BL_OK ? IN_FORCE : REFUSED, err.status == BL_OK ? said.record : NULL);
      continue;
    }
    case BL_CHANGES_LOOK: {
      const bl_change_t done = changes->change;
      answer(world, &done, IN_FORCE, NULL);
      continue;
    }
    case BL_CHANGES_MAKE: {
      used = true;
      const bl_change_t change = changes->change;
      if (result == NO_PLAN || !may_propose(world)) {
        bl_changes_unplannable(changes);
        answer(world, &change, REFUSED, NULL);
        continue;
      }
      if (result == STORES_ARE_AWAY) {
        if (breaks(world, RULE_WAIT_FOR_ABSENT_ENDS)) {
          changes->change.asked_ms = now_of(world);
        }
        const bool late = world->delays > ((wish_t *)change.caller)->asked_at;
        const bool waits = bl_changes_stores_away(changes, now_of(world));
        check(world, !(waits && late), "stores that are away are waited for without an end");
        if (!waits) {
          answer(world, &change, REFUSED, NULL);
          continue;
        }
        break;
      }
      wish_t *wish = change.caller;
      wish->tried_at = wish->tries++ == 0 ? world->delays : wish->tried_at;
      propose(world);
      bl_changes_proposed(changes, world->step.proposal.version, now_of(world));
      return true;
    }
    case BL_CHANGES_NOTHING:
      break;
    }
    break;
  }
  if (used && world->step.applied < world->options->steps) {
    run_step(world);
    return true;
  }
  return concluded || (used && result != PLAN_FITS);
}

static bool ask(world_t *world, unsigned w) {
  wish_t *wish = &world->wishes[w];
  if (!world->alive || world->options->wishes[w] == WISH_NONE || (wish->state != NOT_ASKED && wish->state != LOST)) {
    return false;
  }
  for (unsigned earlier = 0; earlier < w; earlier++) {
    if (world->options->wishes[earlier] != WISH_NONE && world->wishes[earlier].state == NOT_ASKED) {
      return false; // asked in the order of their numbers
    }
  }
  bl_policy_request_t request = request_of(world, w);
  const bl_change_t change = {.caller = wish, .request = request};
  bl_policy_record_t wanted;
  bl_changes_answer_t said;
  bl_error_t err;
  uint8_t order = 1;
  for (unsigned other = 0; other < WISHES; other++) {
    order += world->wishes[other].state == ASKED && world->wishes[other].order >= order
                 ? (uint8_t)(world->wishes[other].order + 1 - order)
                 : 0;
  }
  *wish = (wish_t){.state = ASKED, .order = order, .asked_at = world->delays};
  switch (bl_changes_ask(&world->changes, &request, world->step.applied, &wanted, &said, &err)) {
  case BL_CHANGES_ASK_REFUSED:
    answer(world, &change, REFUSED, NULL);
    return true;
  case BL_CHANGES_ASK_DONE:
    answer(world, &change, IN_FORCE, said.record);
    return true;
  case BL_CHANGES_ASK_LOOK:
    if (request.dry_run) {
      answer(world, &change, IN_FORCE, NULL);
      return true;
    }
    break;
  case BL_CHANGES_ASK_LATER:
    break;
  }
  if (breaks(world, RULE_DRY_RUN)) {
    request.dry_run = false;
  }
  bl_changes_add(&world->changes, &request, wish, now_of(world));
  return true;
}

// The stages are taken over at once: how, tests/step has searched.
static void start_driver(world_t *world, unsigned driver) {
  world->driver = (uint8_t)driver;
  world->alive = true;
  world->proposed = world->stepped = false;
  world->stepped = true; // rule 4 is of one driver
  memset(&world->changes, 0, sizeof world->changes);
  bl_driver_step_init(&world->step, id_of(driver), world->peers, world->options->stages);
  for (unsigned s = 0; s < world->options->stages; s++) {
    bl_stage_step_t *stage = &world->stages[s].step;
    (void)bl_stage_step_takeover(stage, id_of(driver));
    bl_stage_report_t report = {.epoch = driver + 1,
                                .ours = true,
                                .applied = stage->applied,
                                .highest_attempt = stage->highest_attempt,
                                .last_commit = stage->last_commit,
                                .plan_version = stage->plan_version};
    memcpy(report.plans, stage->plans[BL_RUN_TRAIN], sizeof report.plans);
    bl_driver_step_taken(&world->step, s, driver + 1, true, &report);
  }
  for (unsigned s = 0; s < world->options->stages && world->step.phase == BL_DRIVER_ABORTING; s++) {
    bl_error_t err;
    bool dropped;
    (void)bl_stage_step_abort(&world->stages[s].step, id_of(driver), world->step.applied + 1,
                              world->step.highest_attempt, &dropped, &err);
    bl_driver_step_aborted(&world->step, s, world->step.highest_attempt);
  }
  const bl_plan_record_t *in_force = &world->step.plans[BL_RUN_TRAIN];
  const bool recovers = in_force->version != 0 && !breaks(world, RULE_LEFT_GOES_ON);
  const bl_policy_history_t left = recovers ? history_of(world, in_force) : (bl_policy_history_t){0};
  const bl_policy_t first = policy_of(1);
  bl_changes_learn(&world->changes, &left);
  if (bl_changes_open(&world->changes, &first, world->step.applied)) {
    bl_changes_first_agreed(&world->changes);
    bl_changes_opened(&world->changes);
    adopt(world);
  } else {
    propose(world);
  }
}

static bool die(world_t *world) {
  if (!world->alive || world->driver + 1u >= world->options->drivers) {
    return false;
  }
  bl_change_t change;
  bl_changes_end(&world->changes);
  while (bl_changes_take(&world->changes, &change)) {
    wish_t *wish = change.caller;
    check(world, wish->state == ASKED, "a change that was answered waits");
    *wish = (wish_t){.state = LOST};
  }
  for (unsigned w = 0; w < WISHES; w++) {
    check(world, world->wishes[w].state != ASKED, "a change got lost");
  }
  world->alive = false;
  return true;
}

// The driver asks all stages what it wants to ask now.
static void send(world_t *world) {
  for (unsigned s = 0; world->alive && s < world->options->stages; s++) {
    bl_driver_request_t request = bl_driver_step_request(&world->step, s);
    if (request.kind == BL_DRIVER_REQUEST_PREPARE) {
      world->asked[world->driver][request.plan.version] |= (uint8_t)(1u << s);
    }
  }
}

static bool driver_hears(world_t *world, unsigned version, unsigned s, stage_says_t says) {
  if (!world->alive || world->driver >= DRIVERS || (world->said[world->driver][version][s] >> says & 1) == 0) {
    return false;
  }
  if (says == AGREES) {
    bl_driver_step_prepared(&world->step, s, version);
  } else {
    bl_driver_step_plan_refused(&world->step, s, version);
  }
  return true;
}

// Whether anything may come of plan `version` of `driver` yet.
static bool is_kept(const world_t *world, unsigned driver, unsigned version) {
  const bl_plan_record_t *in_force = &world->step.plans[BL_RUN_TRAIN];
  bool kept = world->asked[driver][version] != 0 ||
              (world->alive && driver == world->driver && world->step.proposal.version == version) ||
              (world->alive && in_force->version == version && in_force->digest == driver + 1u);
  for (unsigned s = 0; s < world->options->stages; s++) {
    for (unsigned i = 0; i < BL_STAGE_PLANS; i++) {
      const bl_plan_record_t *plan = &world->stages[s].step.plans[BL_RUN_TRAIN][i];
      kept = kept || (plan->version == version && plan->digest == driver + 1u);
    }
  }
  return kept;
}

// What comes too late, and of a driver that is gone, changes nothing: it arrives once more, and is forgotten.
static void drop_stale(world_t *world, unsigned driver, unsigned version, unsigned s) {
  bl_driver_step_t *step = &world->step;
  bl_stage_step_t *stage = &world->stages[s].step;
  const bool present = world->alive && driver == world->driver;
  if (present && step->phase == BL_DRIVER_PREPARING && step->proposal.version == version) {
    return;
  }
  for (stage_says_t says = AGREES; present && says < SAYS; says++) {
    const bl_driver_phase_t phase = step->phase;
    const uint64_t in_force = step->plans[BL_RUN_TRAIN].version;
    (void)driver_hears(world, version, s, says);
    check(world, step->phase == phase && step->plans[BL_RUN_TRAIN].version == in_force,
          "a late answer changed the driver");
  }
  if (!(present && world->proposed && step->proposal.version == version)) {
    world->said[driver][version][s] = 0;
  }
  const bool spent = stage->driver.epoch != driver + 1u || version <= stage->plan_version;
  if (spent && (world->asked[driver][version] >> s & 1) != 0) {
    const uint64_t before = stage->plan_version;
    const uint8_t said = world->said[driver][version][s];
    (void)stage_hears(world, driver, version, s, AGREES);
    check(world, stage->plan_version == before, "a late question changed a stage");
    world->said[driver][version][s] = said;
    world->asked[driver][version] &= (uint8_t) ~(1u << s);
  }
}

static void forget(world_t *world) {
  for (unsigned d = 0; d < world->options->drivers; d++) {
    for (unsigned v = 1; v <= world->options->versions; v++) {
      for (unsigned s = 0; s < world->options->stages && world->proposals[d][v].made; s++) {
        drop_stale(world, d, v, s);
      }
      if (world->proposals[d][v].made && !is_kept(world, d, v)) {
        world->proposals[d][v] = (proposal_t){0};
      }
    }
  }
}

// ---- the search -----------------------------------------------------------------------------------------------------

enum {
  FIRST_QUESTION = 0,
  FIRST_ANSWER = FIRST_QUESTION + DRIVERS * VERSIONS * STAGES * SAYS,
  FIRST_BOUNDARY = FIRST_ANSWER + VERSIONS * STAGES * SAYS,
  FIRST_WISH = FIRST_BOUNDARY + PLANS,
  DRIVER_DIES = FIRST_WISH + WISHES,
  DRIVER_STARTS,
  TIME_PASSES,
  ACTIONS
};

// Whether a look at the network rules the action out.
static bool is_possible(const world_t *world, unsigned action) {
  unsigned rest = action < FIRST_ANSWER ? action % (VERSIONS * STAGES * SAYS) : action - FIRST_ANSWER;
  unsigned version = 1 + rest / (STAGES * SAYS), s = rest / SAYS % STAGES;
  if (action < FIRST_ANSWER) {
    unsigned driver = action / (VERSIONS * STAGES * SAYS);
    bool said = (world->said[driver][version][s] >> rest % SAYS & 1) != 0; // and would be said again
    return (world->asked[driver][version] >> s & 1) != 0 && !said;
  }
  return action >= FIRST_BOUNDARY || (world->alive && (world->said[world->driver][version][s] >> rest % SAYS & 1) != 0);
}

static bool act(world_t *world, unsigned action) {
  bool done = false;
  if (action < FIRST_ANSWER) {
    unsigned driver = action / (VERSIONS * STAGES * SAYS), rest = action % (VERSIONS * STAGES * SAYS);
    done = stage_hears(world, driver, 1 + rest / (STAGES * SAYS), rest / SAYS % STAGES, rest % SAYS);
  } else if (action < FIRST_BOUNDARY) {
    unsigned rest = action - FIRST_ANSWER;
    done = driver_hears(world, 1 + rest / (STAGES * SAYS), rest / SAYS % STAGES, rest % SAYS);
  } else if (action < FIRST_WISH) {
    plan_result_t result = action - FIRST_BOUNDARY;
    done = (result != STORES_ARE_AWAY || world->options->absent) && boundary(world, result);
  } else if (action < DRIVER_DIES) {
    done = ask(world, action - FIRST_WISH);
  } else if (action == DRIVER_DIES) {
    done = die(world);
  } else if (action == DRIVER_STARTS) {
    done = !world->alive && world->driver + 1u < world->options->drivers;
    if (done) {
      start_driver(world, world->driver + 1u);
      done = world->step.plan_version <= world->options->versions;
    }
  } else if (action == TIME_PASSES) {
    done = world->alive && world->delays < world->options->delays;
    world->delays += done;
  }
  send(world);
  return done;
}

// ---- packing --------------------------------------------------------------------------------------------------------

typedef struct tape {
  uint8_t *bytes;
  size_t at;
  bool writes;
} tape_t;

static void byte(tape_t *tape, uint64_t *value) {
  if (tape->at >= EXPLORE_STATE_BYTES || (tape->writes && *value > UINT8_MAX)) {
    fprintf(stderr, "change_world: a state does not fit\n");
    abort();
  }
  if (tape->writes) {
    tape->bytes[tape->at] = (uint8_t)*value;
  } else {
    *value = tape->bytes[tape->at];
  }
  tape->at++;
}

#define BYTE(tape, place)                                                                                              \
  do {                                                                                                                 \
    uint64_t value_ = (uint64_t)(place);                                                                               \
    byte(tape, &value_);                                                                                               \
    (place) = value_;                                                                                                  \
  } while (0)

static void tape_record(tape_t *tape, bl_policy_record_t *record) {
  uint64_t cap = record->policy.cap;
  byte(tape, &cap);
  record->policy = policy_of((unsigned)cap);
  BYTE(tape, record->version);
  BYTE(tape, record->from_step);
  BYTE(tape, record->request);
  BYTE(tape, record->restores);
}

static void tape_records(tape_t *tape, bl_policy_record_t *records, size_t *count) {
  BYTE(tape, *count);
  for (size_t i = 0; i < *count && i < BOOK; i++) {
    tape_record(tape, &records[i]);
  }
}

static void tape_history(tape_t *tape, bl_policy_history_t *history) {
  tape_records(tape, history->records, &history->count);
}

static void tape_plan(tape_t *tape, bl_plan_record_t *plan) {
  BYTE(tape, plan->version);
  BYTE(tape, plan->digest);
  BYTE(tape, plan->policy);
  BYTE(tape, plan->follows);
}

// Times as which delay they are of: 0 none, else 1 + delays then.
static void tape_time(tape_t *tape, uint64_t *ms) {
  uint64_t which = *ms == 0 ? 0 : 1 + (*ms - 1) / DELAY_MS;
  byte(tape, &which);
  *ms = which == 0 ? 0 : 1 + (which - 1) * DELAY_MS;
}

static void tape_change(tape_t *tape, world_t *world, bl_change_t *change) {
  uint64_t w = change->caller != NULL ? (uint64_t)((wish_t *)change->caller - world->wishes) : 0;
  uint64_t dry = change->request.dry_run, proposals = change->proposals;
  byte(tape, &w);
  byte(tape, &dry);
  byte(tape, &proposals);
  change->request = request_of(world, (unsigned)w);
  change->request.dry_run = dry;
  change->caller = &world->wishes[w];
  change->proposals = (unsigned)proposals;
  BYTE(tape, change->reservation);
  tape_time(tape, &change->asked_ms);
  tape_time(tape, &change->proposed_ms);
}

static void tape_changes(tape_t *tape, world_t *world) {
  bl_changes_t *changes = &world->changes;
  BYTE(tape, changes->phase);
  tape_history(tape, &changes->history);
  if (changes->phase == BL_CHANGES_OPENING || changes->phase == BL_CHANGES_PREPARING) {
    tape_history(tape, &changes->next);
  }
  if (changes->phase == BL_CHANGES_PREPARING) {
    tape_change(tape, world, &changes->change);
  }
  BYTE(tape, changes->waiting_count);
  for (size_t i = 0; i < changes->waiting_count; i++) {
    tape_change(tape, world, &changes->waiting[i]);
  }
  uint64_t after = changes->changed_before == UINT64_MAX ? UINT8_MAX : changes->changed_before;
  byte(tape, &after);
  changes->changed_before = after == UINT8_MAX ? UINT64_MAX : after;
  tape_time(tape, &changes->refused_since_ms);
}

static void tape_driver(tape_t *tape, world_t *world) {
  bl_driver_step_t *step = &world->step;
  if (!tape->writes) {
    bl_driver_step_init(step, id_of(world->driver), world->peers, world->options->stages);
  }
  BYTE(tape, step->phase);
  BYTE(tape, step->applied);
  BYTE(tape, step->highest_attempt);
  BYTE(tape, step->plan_version);
  BYTE(tape, step->proposal_refused);
  BYTE(tape, step->refuser);
  BYTE(tape, step->commit.attempt);
  step->commit.step = step->applied;
  step->commit.scale = 1;
  tape_plan(tape, &step->plans[BL_RUN_TRAIN]);
  tape_plan(tape, &step->proposal);
  for (unsigned s = 0; s < world->options->stages; s++) {
    BYTE(tape, world->peers[s].answered);
  }
  tape_changes(tape, world);
}

static void tape_stage(tape_t *tape, stage_t *stage) {
  bl_stage_step_t *step = &stage->step;
  BYTE(tape, step->driver.epoch);
  step->driver.id = step->driver.epoch;
  step->configured = 1;
  BYTE(tape, step->applied);
  BYTE(tape, step->highest_attempt);
  BYTE(tape, step->plan_version);
  BYTE(tape, step->last_commit.attempt);
  step->last_commit.step = step->applied;
  step->last_commit.scale = step->applied > 0 ? 1 : 0;
  for (unsigned i = 0; i < BL_STAGE_PLANS; i++) {
    tape_plan(tape, &step->plans[BL_RUN_TRAIN][i]);
  }
  for (unsigned k = 1; k <= step->applied; k++) {
    BYTE(tape, stage->ran[k]);
  }
}

static void tape_world(tape_t *tape, world_t *world) {
  BYTE(tape, world->driver);
  BYTE(tape, world->alive);
  BYTE(tape, world->proposed);
  BYTE(tape, world->stepped);
  BYTE(tape, world->delays);
  for (unsigned w = 0; w < WISHES; w++) {
    BYTE(tape, world->wishes[w].state);
    BYTE(tape, world->wishes[w].version);
    BYTE(tape, world->wishes[w].order);
    BYTE(tape, world->wishes[w].asked_at);
    BYTE(tape, world->wishes[w].tries);
    BYTE(tape, world->wishes[w].tried_at);
  }
  for (unsigned s = 0; s < world->options->stages; s++) {
    tape_stage(tape, &world->stages[s]);
  }
  for (unsigned d = 0; d < world->options->drivers; d++) {
    for (unsigned v = 1; v <= world->options->versions; v++) {
      proposal_t *proposal = &world->proposals[d][v];
      BYTE(tape, proposal->made);
      if (!proposal->made) {
        continue;
      }
      BYTE(tape, proposal->policy);
      BYTE(tape, proposal->follows);
      tape_records(tape, proposal->records, &proposal->count);
      BYTE(tape, world->asked[d][v]);
      for (unsigned s = 0; s < world->options->stages; s++) {
        BYTE(tape, world->said[d][v][s]);
      }
    }
  }
  if (world->alive) {
    tape_driver(tape, world);
  }
}

static void pack(world_t *world, explore_state_t *state) {
  tape_t tape = {.bytes = state->bytes, .writes = true};
  memset(state->bytes, 0, sizeof state->bytes);
  tape_world(&tape, world);
  state->size = (uint16_t)tape.at;
}

static void unpack(world_t *world, const void *context, const explore_state_t *state) {
  tape_t tape = {.bytes = (uint8_t *)(uintptr_t)state->bytes};
  memset(world, 0, sizeof *world);
  world->options = context;
  tape_world(&tape, world);
}

// ---- the model ------------------------------------------------------------------------------------------------------

static world_t scratch; // large; the search is one thread

static void initial(const void *context, explore_state_t *state) {
  world_t *world = &scratch;
  memset(world, 0, sizeof *world);
  world->options = context;
  for (unsigned s = 0; s < world->options->stages; s++) {
    world->stages[s].step.configured = 1;
  }
  start_driver(world, 0);
  send(world);
  pack(world, state);
}

static world_t from;
static const explore_state_t *state_of_from;

static void enter(const void *context, const explore_state_t *state) {
  unpack(&from, context, state);
  state_of_from = state;
}

static bool successor(const void *context, unsigned action, explore_step_t *step) {
  world_t *world = &scratch;
  if (!is_possible(&from, action)) {
    return false;
  }
  unpack(world, context, state_of_from); // callers are known by where they lie
  if (!act(world, action)) {
    return false;
  }
  forget(world);
  pack(world, &step->state);
  step->broken = world->broken;
  return true;
}

// From here on all goes well: a driver is there, stages agree, steps go on. Everything that was asked for is answered.
static const char *inspect(const void *context, const explore_state_t *state) {
  world_t *world = &scratch;
  unpack(world, context, state);
  change_options_t well = *world->options;
  if (world->driver >= DRIVERS) {
    return NULL; // the run has failed before its first step
  }
  well.drivers = DRIVERS;
  well.versions = VERSIONS;
  well.steps = STEPS;
  world->options = &well;
  if (!world->alive) {
    if (world->driver + 1u >= DRIVERS) {
      return NULL;
    }
    start_driver(world, world->driver + 1u);
    if (world->step.plan_version > VERSIONS) {
      return NULL;
    }
  }
  for (unsigned round = 0; round < 4 * VERSIONS; round++) {
    send(world);
    const unsigned version = (unsigned)world->step.proposal.version;
    for (unsigned s = 0; world->step.phase == BL_DRIVER_PREPARING && s < well.stages; s++) {
      (void)stage_hears(world, world->driver, version, s, AGREES);
      for (stage_says_t says = AGREES; says < SAYS; says++) {
        (void)driver_hears(world, version, s, says);
      }
    }
    if (world->driver >= DRIVERS || (!boundary(world, PLAN_FITS) && world->step.phase == BL_DRIVER_BOUNDARY)) {
      break;
    }
  }
  for (unsigned w = 0; w < WISHES && world->driver < DRIVERS; w++) {
    check(world, world->wishes[w].state != ASKED || world->step.applied >= STEPS || !may_propose(world),
          "a change is never answered");
  }
  return world->broken;
}

static void describe(const void *context, const explore_state_t *state, unsigned action, char *text,
                     size_t text_bytes) {
  static const char *const says[] = {"agrees", "refuses", "has slow stores"};
  static const char *const plans[] = {"", ": no plan can be made", ": stores are away"};
  static const char *const others[] = {"the driver dies", "the next driver starts", "time passes"};
  (void)context;
  (void)state;
  if (action < FIRST_ANSWER) {
    unsigned rest = action % (VERSIONS * STAGES * SAYS);
    snprintf(text, text_bytes, "plan %u of driver %u reaches stage %u, which %s", 1 + rest / (STAGES * SAYS),
             action / (VERSIONS * STAGES * SAYS), rest / SAYS % STAGES, says[rest % SAYS]);
  } else if (action < FIRST_BOUNDARY) {
    unsigned rest = action - FIRST_ANSWER;
    snprintf(text, text_bytes, "the driver hears of plan %u that stage %u %s", 1 + rest / (STAGES * SAYS),
             rest / SAYS % STAGES, says[rest % SAYS]);
  } else if (action < FIRST_WISH) {
    snprintf(text, text_bytes, "a boundary%s", plans[action - FIRST_BOUNDARY]);
  } else if (action < DRIVER_DIES) {
    snprintf(text, text_bytes, "wish %u is asked for", action - FIRST_WISH);
  } else {
    snprintf(text, text_bytes, "%s", others[action - DRIVER_DIES]);
  }
}

explore_model_t change_model(const change_options_t *options) {
  return (explore_model_t){.context = options,
                           .initial = initial,
                           .enter = enter,
                           .successor = successor,
                           .inspect = inspect,
                           .actions = ACTIONS,
                           .describe = describe};
}
