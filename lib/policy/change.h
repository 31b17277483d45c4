// SPDX-License-Identifier: Apache-2.0
// The life of a run's policies on the driver's side: what is in force, who asked for another one, what is being
// prepared on all stages. It decides; the driver program around it makes plans, asks stages (step/driver_step.h) and
// answers callers.
//
//   bl_changes_learn(&changes, &left_on_stages);
//   bl_changes_open(&changes, &policy_of_job, applied);      // then the plan of changes.wanted
//   bl_changes_first_agreed(&changes); ... bl_changes_opened(&changes);
//   for (each boundary between two steps)
//     switch (bl_changes_boundary(&changes, applied, attempt, held, &answer, err)) {
//     case BL_CHANGES_NOTHING: run_a_step(); break;
//     case BL_CHANGES_ANSWER:  tell(changes.change.caller, answer or err); break;           // and look again
//     case BL_CHANGES_LOOK:    tell what changes.wanted would mean; break;                  // and look again
//     case BL_CHANGES_MAKE:    make a plan of changes.wanted.policy, then one of
//                              bl_changes_unplannable, bl_changes_stores_away, bl_changes_proposed
//     }
//   and when the stages have answered: bl_changes_agreed or bl_changes_refused
//
//   phase      event                                   phase then
//   CLOSED     open                                    OPENING    next = what was left, or the job's policy
//   OPENING    first_agreed                            OPENING    next is in force
//   OPENING    opened                                  STEADY
//   STEADY     boundary, a change waits                MAKING     next = what is in force and `wanted`
//   MAKING     unplannable                             STEADY     refused
//   MAKING     stores_away, early                      STEADY     waits on, first of all
//   MAKING     stores_away, late                       STEADY     refused
//   MAKING     proposed                                PREPARING  all stages are asked
//   PREPARING  agreed                                  STEADY     next is in force
//   PREPARING  refused: stores are slow, early         STEADY     waits on, first of all
//   PREPARING  refused                                 STEADY     refused
//   any        end                                     ENDED      who waits is answered by bl_changes_take
//
// Rules:
//   1. What stages keep of a predecessor's policies goes on, whatever the job says: a run has one history.
//   2. Only what is in force has a version. A refusal uses none and changes nothing.
//   3. A request that has a name is carried out once, also where a driver died before it answered.
//   4. A step runs between two changes, and while a change waits for stores, unless the run is held.
//   5. Changes are begun in the order in which they were asked for. One that waits stays first.
//   6. Nobody waits for stores without an end: BL_CHANGES_STORES_MS for those that have not shown that they are there, then
//      BL_CHANGES_PROPOSALS_MS and at least BL_CHANGES_PROPOSALS for stages whose stores are slow.
//   7. A policy is in force from the step after the one that was applied when it was proposed: no step runs in between.
//   8. A dry run changes nothing, whenever it is looked at.
//   9. Every change is answered once.
//
// No I/O, no clock, no allocation: time comes in as `now_ms` of one monotonic clock. Fields are for reading.
// Thread: one owner, the driver's loop thread.
#ifndef BALLAST_POLICY_CHANGE_H
#define BALLAST_POLICY_CHANGE_H

#include "policy/history.h"

#define BL_CHANGES_MAX       64   // that wait: bounds what a caller in a loop can pile up
#define BL_CHANGES_STORES_MS 4000 // for the stores of a plan to show that they are there
// For stages to find out about their stores, which takes them 4 s, with NCCL 30 s (acceptor.h of stage-service).
#define BL_CHANGES_PROPOSALS_MS 40000
#define BL_CHANGES_PROPOSALS    2 // also when a step takes longer
// How long the first plan may be refused because a stage does not reach a store, before the run gives up.
#define BL_CHANGES_SETUP_MS 15000

typedef struct bl_policy_request {
  uint64_t request;    // names the wish: asked again with the same, it is not carried out twice. 0: no name
  bl_policy_t policy;  // as it was asked for
  bl_policy_t begun;   // what it begins as (bl_policy_begin of job/balance.h)
  bool rollback;       // instead of `policy`: an earlier one again
  uint64_t to_version; // of a rollback; 0: the one before the present one
  bool dry_run;        // only looks what it would mean
} bl_policy_request_t;

typedef struct bl_change {
  void *caller; // whom to answer; opaque here
  bl_policy_request_t request;
  uint64_t asked_ms;
  uint64_t reservation; // version of the plan that was proposed first; 0: none yet
  uint64_t proposed_ms; // when that was
  unsigned proposals;
} bl_change_t;

typedef enum bl_changes_phase {
  BL_CHANGES_CLOSED,    // what is in force is not known yet; changes wait
  BL_CHANGES_OPENING,   // the first plan is prepared; changes wait
  BL_CHANGES_STEADY,    // `history` is in force, nothing else is asked of the stages
  BL_CHANGES_MAKING,    // `change` is to become a plan
  BL_CHANGES_PREPARING, // the plan of `next` is asked of all stages, for `change`
  BL_CHANGES_ENDED,
} bl_changes_phase_t;

typedef struct bl_changes {
  bl_changes_phase_t phase;
  bl_policy_history_t history; // in force
  bl_policy_history_t next;    // OPENING, MAKING, PREPARING: that would be
  bl_policy_record_t wanted;
  bl_change_t change;                      // MAKING, PREPARING: for whom; afterwards the last one
  bl_change_t waiting[BL_CHANGES_MAX + 1]; // one may come back
  size_t waiting_count;
  uint64_t changed_before;   // no attempt below this one ran since the last change was concluded; 0: none was
  uint64_t refused_since_ms; // OPENING: first refusal; 0: none
} bl_changes_t;              // zeroed: CLOSED

// What there is to say without any change.
typedef struct bl_changes_answer {
  const bl_policy_record_t *record;
  bool unchanged; // it was in force already
  bool in_force;  // `record` is
} bl_changes_answer_t;

// ---- opening --------------------------------------------------------------------------------------------------------

// CLOSED: what stages keep of a predecessor's policies.
void bl_changes_learn(bl_changes_t *changes, const bl_policy_history_t *left);
// CLOSED: `first` is the policy that the job begins with. True: what was learnt goes on.
bool bl_changes_open(bl_changes_t *changes, const bl_policy_t *first, uint64_t applied);
// OPENING: `next` is in force: all stages have prepared its plan, or keep that of a predecessor.
void bl_changes_first_agreed(bl_changes_t *changes);
typedef enum bl_changes_verdict {
  BL_CHANGES_AGAIN, // to be proposed again after a while
  BL_CHANGES_BLAME, // the stage may be another process, which knows nothing of this run: it ends the run, or itself
  BL_CHANGES_FAIL,  // the run ends
} bl_changes_verdict_t;
// OPENING: a stage has refused a plan without which the run cannot go on. `waits`: what the job requires of its paths
// is waited for without an end.
bl_changes_verdict_t bl_changes_first_refused(bl_changes_t *changes, bl_status_t status, bool waits, uint64_t now_ms);
// OPENING: all plans are there, steps begin.
void bl_changes_opened(bl_changes_t *changes);

// ---- asking ---------------------------------------------------------------------------------------------------------

typedef enum bl_changes_ask {
  BL_CHANGES_ASK_REFUSED, // for what err says
  BL_CHANGES_ASK_DONE,    // `answer` says so: it was carried out before, or is in force
  BL_CHANGES_ASK_LOOK,    // `wanted` can be looked at now: what no plan can be made of is refused, a dry run answered;
                          // else bl_changes_add
  BL_CHANGES_ASK_LATER,   // bl_changes_add
} bl_changes_ask_t;
// What can be said at once.
bl_changes_ask_t bl_changes_ask(const bl_changes_t *changes, const bl_policy_request_t *request, uint64_t applied,
                                bl_policy_record_t *wanted, bl_changes_answer_t *answer, bl_error_t *err);
bool bl_changes_full(const bl_changes_t *changes);
// Not full. It waits for a boundary.
void bl_changes_add(bl_changes_t *changes, const bl_policy_request_t *request, void *caller, uint64_t now_ms);
// Those that are not answered.
size_t bl_changes_open_count(const bl_changes_t *changes);

// ---- boundaries -----------------------------------------------------------------------------------------------------

typedef enum bl_changes_turn {
  BL_CHANGES_NOTHING, // a step may run
  BL_CHANGES_ANSWER,  // `change` is answered by `answer`, or where err->status says so by the error
  BL_CHANGES_LOOK,    // `change` is a dry run of `wanted`
  BL_CHANGES_MAKE,    // MAKING
} bl_changes_turn_t;
// STEADY. `attempt`: the highest that was begun; `held`: no step runs in between. Sets err->status in any case.
bl_changes_turn_t bl_changes_boundary(bl_changes_t *changes, uint64_t applied, uint64_t attempt, bool held,
                                      bl_changes_answer_t *answer, bl_error_t *err);
// MAKING: no plan can be made of it. `change` is to be answered with the cause.
void bl_changes_unplannable(bl_changes_t *changes);
// MAKING: a store has not shown that it is there since the change was asked for. True: it waits, and a step runs.
// False: for too long, `change` is to be refused.
bool bl_changes_stores_away(bl_changes_t *changes, uint64_t now_ms);
// MAKING: the plan of `next` is proposed to all stages, with this version.
void bl_changes_proposed(bl_changes_t *changes, uint64_t version, uint64_t now_ms);
// PREPARING: all stages have prepared it. `change` is to be answered with what is in force.
void bl_changes_agreed(bl_changes_t *changes, uint64_t attempt);
// PREPARING: a stage has refused it, with this status. True: it waits, and a step runs. False: `change` is to be
// refused.
bool bl_changes_refused(bl_changes_t *changes, bl_status_t status, uint64_t attempt, uint64_t now_ms);

// ---- the end --------------------------------------------------------------------------------------------------------

void bl_changes_end(bl_changes_t *changes);
// ENDED: one that was not answered; false: there is none.
bool bl_changes_take(bl_changes_t *changes, bl_change_t *change);

#endif
