// SPDX-License-Identifier: Apache-2.0
// The driver's side of the step protocol (PROTOCOL.md sections 2 and 3). It takes over all stages and finishes or
// aborts what a predecessor left. Then it puts plans in force, runs attempts, and commits or aborts them. This file
// decides; the driver program around it ("the shell") makes the calls.
//
// The machine is level-triggered: at any time bl_driver_step_request returns what to request of each stage now, and it
// returns the same until the answer is passed in. So a lost call is simply repeated, if need be for ever. A late answer
// to a request that is no longer current changes nothing.
//
//   bl_driver_step_init(&step, id, peers, stage_count);
//   for (;;) {
//     for (stage ...) {
//       bl_driver_request_t request = bl_driver_step_request(&step, stage);
//       if (request.kind != BL_DRIVER_REQUEST_NONE) call(stage, request);      // unless just that call is in flight
//     }
//     ... an answer arrives: bl_driver_step_taken / _prepared / _voted / _committed / _aborted / _refused ...
//     switch (step.phase) {
//     case BL_DRIVER_DECIDING: bl_driver_step_commit(&step, scale, rate); or bl_driver_step_abort(&step);
//     case BL_DRIVER_BOUNDARY: bl_driver_step_run(&step, BL_RUN_TRAIN); or bl_driver_step_prepare; or validate, pause,
//                              stop
//     case BL_DRIVER_ENDED:    bl_driver_step_explain(&step, name, &err);
//     }
//   }
//
// Rules:
//   1. Before every stage has accepted this driver, only Takeover is called.
//   2. What a predecessor left: a step that any stage applied is committed on the rest with the same record. An attempt
//      that is prepared on all stages is decided (the votes arrive with the takeover). Anything else is aborted up to
//      the highest attempt that any stage has seen. A run of which no step has been committed since its stages were
//      configured has not begun, whether it starts from nothing or from a checkpoint: stages that lack its
//      configuration are simply configured.
//   3. A commit is decided only when every stage has a vote for the same attempt. Once it is decided, it is requested
//      until all stages have applied it, and nothing is aborted any more.
//   4. A new attempt has a number above all that any stage has seen. It begins only when no stage has another one.
//   5. A refusal with BL_FENCED after the takeover ends this driver: there is a newer one.
//   6. A stage that lost its state (it was restarted) ends the run, which must then start from a checkpoint. If the
//      loss is found at the takeover, the shell may let all stages start over instead (may_start_over).
//
//   7. A plan is in force once all stages have prepared it, and from then on no older plan runs. A plan that any stage
//      refused is never in force, and a stage that refused a plan does not prepare it later. So the plan in force is
//      the newest that all stages keep, and this is how the next driver finds it.
//   8. A new plan names the plan in force (follows), which stages keep along with the new one. Its version is above all
//      that any stage has seen.
//
//   9. A training attempt may come with an offer (record.h): then stages continue with the next step before this one is
//      committed. What they applied ahead is committed with the offered numbers, or it is aborted. After that commit,
//      the offered attempt runs next.
//
// Votes are opaque here: the shell keeps the payload of each stage's vote for the attempt in `run`.
// No I/O, no clock, no allocation. Fields are for reading. Thread: one owner, the driver's loop thread.
#ifndef BALLAST_STEP_DRIVER_STEP_H
#define BALLAST_STEP_DRIVER_STEP_H

#include "base/error.h"
#include "step/record.h"

#include <stddef.h>

typedef enum bl_driver_phase {
  BL_DRIVER_TAKEOVER,   // requests all stages to follow
  BL_DRIVER_ABORTING,   // aborts attempts
  BL_DRIVER_PREPARING,  // all stages are to prepare `proposal`
  BL_DRIVER_RUNNING,    // `run` runs on all stages
  BL_DRIVER_DECIDING,   // all stages have voted: the shell chooses what follows
  BL_DRIVER_COMMITTING, // `commit` is decided
  BL_DRIVER_BOUNDARY,   // between attempts: the shell chooses what follows
  BL_DRIVER_ENDED,      // final; bl_driver_step_explain returns the cause
} bl_driver_phase_t;

typedef enum bl_driver_end {
  BL_DRIVER_END_NONE,
  BL_DRIVER_END_FENCED,   // a newer driver took over (BL_FENCED)
  BL_DRIVER_END_LOST,     // a stage lost its state: restart from a checkpoint (BL_DATA_LOSS)
  BL_DRIVER_END_DIVERGED, // stages contradict each other: a bug, or stages of different runs (BL_INTERNAL)
} bl_driver_end_t;

// What a stage reports of itself in answer to Takeover.
typedef struct bl_stage_report {
  uint64_t epoch;           // of the driver that it follows; after a refusal the one to exceed
  bool ours;                // it has the configuration that this driver's job gives it
  uint64_t applied;         // this and the rest count only if `ours`, except highest_attempt
  uint64_t highest_attempt; // of any job
  bool prepared;            // it keeps the vote of a training attempt: `run`
  bl_run_id_t run;
  bl_offer_t ahead; // what was applied and begun after it; attempt 0: nothing
  bl_commit_t last_commit;
  uint64_t plan_version;                  // highest ever prepared or refused, of any kind
  bl_plan_record_t plans[BL_STAGE_PLANS]; // of BL_RUN_TRAIN; version 0: none
} bl_stage_report_t;

// What the driver knows of one stage. The caller provides one per stage, zeroed or not.
typedef struct bl_driver_peer {
  bool answered; // the request of this phase
  bl_stage_report_t report;
} bl_driver_peer_t;

typedef struct bl_driver_step {
  bl_driver_phase_t phase;
  bl_driver_id_t id;
  uint64_t applied;                     // last step that all stages have applied
  uint64_t highest_attempt;             // known to this driver
  bl_run_id_t run;                      // RUNNING, DECIDING; in ABORTING and COMMITTING the last one
  bl_offer_t offer;                     // what may begin after `run`, until that attempt is `run`; attempt 0: nothing
  bool sweeps;                          // COMMITTING: attempts that a predecessor let begin after it are to be aborted
  uint64_t recorder;                    // of the next commits; set by the shell
  bl_plan_record_t plans[BL_RUN_KINDS]; // in force on all stages; version 0: none
  bl_plan_record_t proposal;            // PREPARING; afterwards the last one
  bl_run_kind_t proposal_kind;
  bool proposal_refused;   // the last proposal was refused, by
  size_t refuser;          // this stage
  uint64_t plan_version;   // highest known to this driver
  bl_commit_t commit;      // COMMITTING; afterwards the last one, step 0 when none is known
  bl_driver_peer_t *peers; // [stage_count], the caller's
  size_t stage_count;
  bool may_start_over; // set by the shell after init: if a stage has lost its state, all start over
  bool starts_over;    // after TAKEOVER: `end_stage` has lost its state, and all stages are to start over
  bl_driver_end_t end;
  size_t end_stage; // the stage that `end` is about
} bl_driver_step_t;

typedef enum bl_driver_request_kind {
  BL_DRIVER_REQUEST_NONE,
  BL_DRIVER_REQUEST_TAKEOVER,
  BL_DRIVER_REQUEST_PREPARE, // plan, kind in run.kind
  BL_DRIVER_REQUEST_RUN,     // run, offer
  BL_DRIVER_REQUEST_COMMIT,  // commit
  BL_DRIVER_REQUEST_ABORT,   // next, attempt
} bl_driver_request_kind_t;

// One request to a stage. If bl_driver_request_equal returns true for two, the call in flight serves for both.
typedef struct bl_driver_request {
  bl_driver_request_kind_t kind;
  bl_driver_id_t driver;
  bl_run_id_t run;
  bl_offer_t offer;
  bl_plan_record_t plan;
  bl_commit_t commit;
  uint64_t next;    // ABORT: the step that these attempts must not apply
  uint64_t attempt; // ABORT: up to this one
} bl_driver_request_t;
bool bl_driver_request_equal(const bl_driver_request_t *a, const bl_driver_request_t *b);

// Begins in TAKEOVER with id.epoch, which should be above the epochs that stages report (Status). If it is not, a
// higher one is tried. stage_count >= 1.
void bl_driver_step_init(bl_driver_step_t *step, bl_driver_id_t id, bl_driver_peer_t *peers, size_t stage_count);

// Returns what to request of `stage` now. BL_DRIVER_REQUEST_NONE: its answer is known, or the shell is to decide.
bl_driver_request_t bl_driver_step_request(const bl_driver_step_t *step, size_t stage);

// ---- answers. Each names the request that it answers; an answer to a request that is not current is ignored. --------

// Takeover with epoch `epoch` was answered.
void bl_driver_step_taken(bl_driver_step_t *step, size_t stage, uint64_t epoch, bool accepted,
                          const bl_stage_report_t *report);
// PreparePlan was answered.
void bl_driver_step_prepared(bl_driver_step_t *step, size_t stage, uint64_t version);
// PreparePlan was refused for good: the plan before stays in force. (Pass a refusal with BL_FENCED to _refused. Do not
// pass in a refusal that is temporary.)
void bl_driver_step_plan_refused(bl_driver_step_t *step, size_t stage, uint64_t version);
// Run was answered with a vote.
void bl_driver_step_voted(bl_driver_step_t *step, size_t stage, uint64_t attempt);
// Run failed on this stage for a reason other than a lost call: the attempt is aborted on all stages. The shell bounds
// how often.
void bl_driver_step_run_failed(bl_driver_step_t *step, size_t stage, uint64_t attempt);
void bl_driver_step_committed(bl_driver_step_t *step, size_t stage, uint64_t committed_step);
void bl_driver_step_aborted(bl_driver_step_t *step, size_t stage, uint64_t attempt);
// The stage's state machine refused `request` with BL_FENCED or BL_PRECONDITION. (For a Run, BL_PRECONDITION aborts the
// attempt as run_failed does.) Errors of the call itself (BL_UNAVAILABLE, BL_DEADLINE) are not passed in: the request
// stays current.
void bl_driver_step_refused(bl_driver_step_t *step, size_t stage, const bl_driver_request_t *request,
                            bl_status_t status);

// ---- what the shell chooses ----------------------------------------------------------------------------------------

// BOUNDARY: requests all stages to prepare a plan of this kind that carries out policy version `policy` (0 for the
// forward-only kinds). At the next BOUNDARY `proposal_refused` says whether a stage refused it; if not, the plan is in
// force.
void bl_driver_step_prepare(bl_driver_step_t *step, bl_run_kind_t kind, uint64_t digest, uint64_t policy);
// BOUNDARY, with a plan of this kind in force: starts an attempt. BL_RUN_TRAIN: of step applied + 1. The other kinds
// use the weights as they are.
void bl_driver_step_run(bl_driver_step_t *step, bl_run_kind_t kind);
// BOUNDARY: starts a training attempt with an offer: stages may continue as if it were committed with these numbers. If
// `offer` is set at the BOUNDARY after its commit, call a training run or bl_driver_step_abort next.
void bl_driver_step_run_on(bl_driver_step_t *step, double scale, double learning_rate);
// DECIDING of a training attempt: commits it. Returns false if stages may have applied it ahead with other numbers;
// then it is aborted on all of them.
bool bl_driver_step_commit(bl_driver_step_t *step, double scale, double learning_rate);
// DECIDING of a forward-only attempt: enters BOUNDARY. Its votes need no undoing.
void bl_driver_step_close(bl_driver_step_t *step);
// RUNNING or DECIDING, or BOUNDARY with an offer: aborts the attempt and the one after it on all stages, then enters
// BOUNDARY.
void bl_driver_step_abort(bl_driver_step_t *step);
// BOUNDARY: all stages have been configured for this job from scratch. Their weights are those after step `applied`, 0
// unless they come from a checkpoint. No plan is in force. Attempts and plan versions continue to count.
void bl_driver_step_reset(bl_driver_step_t *step, uint64_t applied);

// ENDED: returns the status and sets a message for people, in which stage end_stage is called `name`. Otherwise BL_OK.
bl_status_t bl_driver_step_explain(const bl_driver_step_t *step, const char *name, bl_error_t *err);

#endif
