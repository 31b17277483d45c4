// SPDX-License-Identifier: Apache-2.0
// State machine for changes of a run's policy, on the driver's side: what is in force, which changes were requested,
// what all stages are preparing. It decides; the driver program around it makes plans, calls the stages
// (step/driver_step.h) and answers callers.
//
//   bl_changes_learn(&changes, &left_on_stages);
//   bl_changes_open(&changes, &policy_of_job, applied);      // then the plan of changes.wanted
//   bl_changes_first_agreed(&changes); ... bl_changes_opened(&changes);
//   for (each boundary between two steps)
//     switch (bl_changes_boundary(&changes, applied, attempt, held, &answer, err)) {
//     case BL_CHANGES_NOTHING: run_a_step(); break;
//     case BL_CHANGES_ANSWER:  answer changes.change.caller with answer or err; break;      // and call it again
//     case BL_CHANGES_LOOK:    answer what changes.wanted would mean; break;                // and call it again
//     case BL_CHANGES_MAKE:    make a plan of changes.wanted.policy, then call one of
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
//   MAKING     stores_away, early                      STEADY     keeps waiting, first in the queue
//   MAKING     stores_away, late                       STEADY     refused
//   MAKING     proposed                                PREPARING  all stages are called
//   PREPARING  agreed                                  STEADY     next is in force
//   PREPARING  refused: stores are slow, early         STEADY     keeps waiting, first in the queue
//   PREPARING  refused                                 STEADY     refused
//   any        end                                     ENDED      bl_changes_take returns the changes that wait
//
// Rules:
//   1. The policies that stages keep of a predecessor stay in force, whatever the job says: a run has one history.
//   2. Only what is in force has a version. A refusal uses none and changes nothing.
//   3. A request that has a name is carried out once, even if a driver died before it answered.
//   4. A step runs between two changes, and while a change waits for stores, unless the run is held.
//   5. Changes begin in the order in which they were requested. One that waits stays first.
//   6. Every wait for stores is bounded: BL_CHANGES_STORES_MS for stores that have not answered yet, then
//      BL_CHANGES_PROPOSALS_MS and at least BL_CHANGES_PROPOSALS proposals for stages whose stores are slow.
//   7. A policy is in force from the step after the one that was applied when it was proposed: no step runs in between.
//   8. A dry run changes nothing, at whatever time it is answered.
//   9. Every change is answered once.
//
// No I/O, no clock, no allocation: the caller passes time as `now_ms` of one monotonic clock. Fields are for reading.
// Thread: one owner, the driver's loop thread.
#ifndef BALLAST_POLICY_CHANGE_H
#define BALLAST_POLICY_CHANGE_H

#include "policy/history.h"

#define BL_CHANGES_MAX       64   // changes that may wait; bounds what a caller in a loop can queue
#define BL_CHANGES_STORES_MS 4000 // for the stores of a plan to answer
// For stages to find out whether their stores answer, which takes 4 s, with NCCL 30 s (store_session.h of
// stage-service).
#define BL_CHANGES_PROPOSALS_MS 40000
#define BL_CHANGES_PROPOSALS    2 // also if a step takes longer
// Time for which a stage may refuse the first plan because it does not reach a store. After that the run fails.
#define BL_CHANGES_SETUP_MS 15000

typedef struct bl_policy_request {
  uint64_t request;    // names the request: a repetition with the same name is not carried out twice. 0: no name
  bl_policy_t policy;  // as requested
  bl_policy_t begun;   // what it begins as (bl_policy_begin of job/balance.h)
  bool rollback;       // restore an earlier policy instead of `policy`
  uint64_t to_version; // of a rollback; 0: the one before the present one
  bool dry_run;        // only report what it would mean
} bl_policy_request_t;

typedef struct bl_change {
  void *caller; // to be answered; opaque here
  bl_policy_request_t request;
  uint64_t asked_ms;
  uint64_t reservation; // version of the plan that was proposed first; 0: none yet
  uint64_t proposed_ms; // when that was
  unsigned proposals;
} bl_change_t;

typedef enum bl_changes_phase {
  BL_CHANGES_CLOSED,    // what is in force is not known yet; changes wait
  BL_CHANGES_OPENING,   // the first plan is being prepared; changes wait
  BL_CHANGES_STEADY,    // `history` is in force, no change is in progress
  BL_CHANGES_MAKING,    // a plan is to be made of `change`
  BL_CHANGES_PREPARING, // all stages are to prepare the plan of `next`, for `change`
  BL_CHANGES_ENDED,
} bl_changes_phase_t;

typedef struct bl_changes {
  bl_changes_phase_t phase;
  bl_policy_history_t history; // in force
  bl_policy_history_t next;    // OPENING, MAKING, PREPARING: the history if it succeeds
  bl_policy_record_t wanted;
  bl_change_t change;                      // MAKING, PREPARING: the current one; afterwards the last one
  bl_change_t waiting[BL_CHANGES_MAX + 1]; // + 1: the current one may return to the queue
  size_t waiting_count;
  uint64_t changed_before;   // attempts since the end of the last change have this number or more; 0: there was none
  uint64_t refused_since_ms; // OPENING: first refusal; 0: none
} bl_changes_t;              // zeroed: CLOSED

// An answer that needs no change.
typedef struct bl_changes_answer {
  const bl_policy_record_t *record;
  bool unchanged; // it was already in force
  bool in_force;  // `record` is
} bl_changes_answer_t;

// ---- opening --------------------------------------------------------------------------------------------------------

// CLOSED: passes in the policies that stages keep of a predecessor.
void bl_changes_learn(bl_changes_t *changes, const bl_policy_history_t *left);
// CLOSED: `first` is the policy that the job begins with. Returns true if the history passed to bl_changes_learn
// continues.
bool bl_changes_open(bl_changes_t *changes, const bl_policy_t *first, uint64_t applied);
// OPENING: `next` is in force. All stages have prepared its plan, or keep that of a predecessor.
void bl_changes_first_agreed(bl_changes_t *changes);
typedef enum bl_changes_verdict {
  BL_CHANGES_AGAIN, // propose it again later
  BL_CHANGES_BLAME, // the run ends with this refusal, or, if the stage is a new process, because of its restart
  BL_CHANGES_FAIL,  // the run ends
} bl_changes_verdict_t;
// OPENING: a stage has refused a plan without which the run cannot continue. `waits`: the job requires certain paths,
// and waits for them without a limit.
bl_changes_verdict_t bl_changes_first_refused(bl_changes_t *changes, bl_status_t status, bool waits, uint64_t now_ms);
// OPENING: all plans are prepared, steps begin.
void bl_changes_opened(bl_changes_t *changes);

// ---- requests -------------------------------------------------------------------------------------------------------

typedef enum bl_changes_ask {
  BL_CHANGES_ASK_REFUSED, // refused; err has the cause
  BL_CHANGES_ASK_DONE,    // `answer` is set: the request was carried out before, or its policy is in force
  BL_CHANGES_ASK_LOOK,    // `wanted` can be planned now: refuse it if there is no plan, answer a dry run,
                          // otherwise bl_changes_add
  BL_CHANGES_ASK_LATER,   // bl_changes_add
} bl_changes_ask_t;
// Returns what can be answered at once.
bl_changes_ask_t bl_changes_ask(const bl_changes_t *changes, const bl_policy_request_t *request, uint64_t applied,
                                bl_policy_record_t *wanted, bl_changes_answer_t *answer, bl_error_t *err);
bool bl_changes_full(const bl_changes_t *changes);
// Appends a change, which waits for a boundary. Call only if not full.
void bl_changes_add(bl_changes_t *changes, const bl_policy_request_t *request, void *caller, uint64_t now_ms);
// Returns the number of changes that are not answered.
size_t bl_changes_open_count(const bl_changes_t *changes);

// ---- boundaries -----------------------------------------------------------------------------------------------------

typedef enum bl_changes_action {
  BL_CHANGES_NOTHING, // a step may run
  BL_CHANGES_ANSWER,  // answer `change` with `answer`, or with the error if err->status is not BL_OK
  BL_CHANGES_LOOK,    // `change` is a dry run of `wanted`
  BL_CHANGES_MAKE,    // the phase is MAKING: make a plan
} bl_changes_action_t;
// STEADY. `attempt`: the highest that was begun; `held`: no step runs in between. Always sets err->status.
bl_changes_action_t bl_changes_boundary(bl_changes_t *changes, uint64_t applied, uint64_t attempt, bool held,
                                        bl_changes_answer_t *answer, bl_error_t *err);
// MAKING: no plan can be made of it. Answer `change` with the cause.
void bl_changes_unplannable(bl_changes_t *changes);
// MAKING: a store has not answered since the change was requested. True: the change waits, and a step runs. False: it
// has waited too long, refuse `change`.
bool bl_changes_stores_away(bl_changes_t *changes, uint64_t now_ms);
// MAKING: the plan of `next` was proposed to all stages with this version.
void bl_changes_proposed(bl_changes_t *changes, uint64_t version, uint64_t now_ms);
// PREPARING: all stages have prepared it. Answer `change` with what is in force.
void bl_changes_agreed(bl_changes_t *changes, uint64_t attempt);
// PREPARING: a stage has refused it with this status. True: the change waits, and a step runs. False: refuse `change`.
bool bl_changes_refused(bl_changes_t *changes, bl_status_t status, uint64_t attempt, uint64_t now_ms);

// ---- the end --------------------------------------------------------------------------------------------------------

void bl_changes_end(bl_changes_t *changes);
// ENDED: removes a change that was not answered. Returns false if there is none.
bool bl_changes_take(bl_changes_t *changes, bl_change_t *change);

#endif
