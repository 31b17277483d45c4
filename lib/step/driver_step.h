// SPDX-License-Identifier: Apache-2.0
// The driver's side of the step protocol (PROTOCOL.md sections 2 and 3): takes over all stages, finishes or gives up what
// a predecessor left, then puts plans in force, runs attempts, commits or aborts them. It decides; the driver program
// around it calls.
//
// The machine is level-triggered: at any time bl_driver_step_request says what each stage is to be asked now, and it
// goes on saying so until the answer has been told. So a lost call is simply made again, for ever if need be, and a
// late answer to a question no longer asked changes nothing.
//
//   bl_driver_step_init(&step, id, peers, stage_count);
//   for (;;) {
//     for (stage ...) {
//       bl_driver_request_t request = bl_driver_step_request(&step, stage);
//       if (request.verb != BL_ASK_NOTHING) call(stage, request);      // unless just that call is under way
//     }
//     ... an answer comes: bl_driver_step_taken / _prepared / _voted / _committed / _aborted / _refused ...
//     switch (step.phase) {
//     case BL_DRIVER_DECIDING: bl_driver_step_commit(&step, scale, rate); or bl_driver_step_abort(&step);
//     case BL_DRIVER_BOUNDARY: bl_driver_step_run(&step, BL_RUN_TRAIN); or bl_driver_step_prepare; or validate, pause,
//                              stop
//     case BL_DRIVER_ENDED:    bl_driver_step_explain(&step, name, &err);
//     }
//   }
//
// Rules:
//   1. Nothing but Takeover is asked before every stage has accepted this driver.
//   2. What a predecessor left: a step that any stage applied is committed on the rest with the same record; an attempt
//      that is prepared on all is decided (votes come with the takeover); anything else is aborted up to the highest
//      attempt any stage has seen. A run of which no step has been committed since its stages were configured has not
//      begun, be it from nothing or from a checkpoint: stages that lack it are simply configured.
//   3. A commit is decided only when every stage has a vote for the same attempt. Once decided it is asked for until all
//      have applied it; nothing is aborted any more.
//   4. A new attempt has a number above all that any stage has seen, and is begun only when no stage has any other.
//   5. A refusal with BL_FENCED after the takeover ends this driver: there is a newer one.
//   6. A stage that lost what it had (it was restarted) ends the run: it must start again from a checkpoint.
//
//   7. A plan is in force once all stages have prepared it, and from then on nothing older runs. One that any stage
//      refused is never in force, and a stage that refused it stays with that. So the plan in force is the newest that all
//      stages keep: this is how the next driver knows it.
//   8. A new plan names the one in force (follows), which stages keep beside it. It has a version above all that any stage
//      has seen.
//
//   9. A training attempt may come with an offer (record.h): then stages go on with the next step before this one is
//      committed. What they applied ahead is committed with the offered numbers or given up; after that commit, the next
//      thing is the offered attempt.
//
// Votes are opaque here: the shell keeps their payload per stage, of the attempt in `run`.
// No I/O, no clock, no allocation. Fields are for reading. Thread: one owner, the driver's loop thread.
#ifndef BALLAST_STEP_DRIVER_STEP_H
#define BALLAST_STEP_DRIVER_STEP_H

#include "base/error.h"
#include "step/record.h"

#include <stddef.h>

typedef enum bl_driver_phase {
  BL_DRIVER_TAKEOVER,   // asking all stages to follow
  BL_DRIVER_ABORTING,   // giving up attempts
  BL_DRIVER_PREPARING,  // `proposal` is asked of all stages
  BL_DRIVER_RUNNING,    // `run` runs on all stages
  BL_DRIVER_DECIDING,   // all stages have voted: the shell says what follows
  BL_DRIVER_COMMITTING, // `commit` is decided
  BL_DRIVER_BOUNDARY,   // between attempts: the shell says what follows
  BL_DRIVER_ENDED,      // for ever; bl_driver_step_explain says why
} bl_driver_phase_t;

typedef enum bl_driver_end {
  BL_DRIVER_END_NONE,
  BL_DRIVER_END_FENCED,   // a newer driver took over (BL_FENCED)
  BL_DRIVER_END_LOST,     // a stage lost its state: restart from a checkpoint (BL_DATA_LOSS)
  BL_DRIVER_END_DIVERGED, // stages contradict each other: a bug, or stages of different runs (BL_INTERNAL)
} bl_driver_end_t;

// What a stage said of itself when it was taken over.
typedef struct bl_stage_report {
  uint64_t epoch;           // of the driver it follows; when refused, the one to exceed
  bool ours;                // it has the configuration that this driver's job gives it
  uint64_t applied;         // the rest counts only if `ours`, but for highest_attempt
  uint64_t highest_attempt; // of any job
  bool prepared;            // it keeps a vote of a training attempt: `run`
  bl_run_id_t run;
  bl_offer_t ahead; // what was applied and begun behind it; attempt 0: nothing
  bl_commit_t last_commit;
  uint64_t plan_version;                  // highest ever prepared or refused, of any kind
  bl_plan_record_t plans[BL_STAGE_PLANS]; // of BL_RUN_TRAIN; version 0: none
} bl_stage_report_t;

// What the driver knows of one stage. The caller provides one per stage, zeroed or not.
typedef struct bl_driver_peer {
  bool answered; // the question of this phase
  bl_stage_report_t report;
} bl_driver_peer_t;

typedef struct bl_driver_step {
  bl_driver_phase_t phase;
  bl_driver_id_t id;
  uint64_t applied;                     // the last step that all stages have applied
  uint64_t highest_attempt;             // known to this driver
  bl_run_id_t run;                      // RUNNING, DECIDING; in ABORTING and COMMITTING the last one
  bl_offer_t offer;                     // what may begin behind `run`, until that attempt is `run`; attempt 0: nothing
  bool sweeps;                          // COMMITTING: a predecessor let attempts begin behind it, which are given up
  uint64_t recorder;                    // of the next commits; the shell sets it
  bl_plan_record_t plans[BL_RUN_KINDS]; // in force on all stages; version 0: none
  bl_plan_record_t proposal;            // PREPARING; afterwards the last one
  bl_run_kind_t proposal_kind;
  bool proposal_refused;   // the last one, by
  size_t refuser;          // this stage
  uint64_t plan_version;   // highest known to this driver
  bl_commit_t commit;      // COMMITTING; afterwards the last one, step 0 when none is known
  bl_driver_peer_t *peers; // [stage_count], the caller's
  size_t stage_count;
  bool may_start_over; // the shell sets it after init: there is a checkpoint to begin from again
  bool starts_over;    // after TAKEOVER: `end_stage` has lost its state, and all are to begin from the checkpoint
  bl_driver_end_t end;
  size_t end_stage; // the stage that `end` is about
} bl_driver_step_t;

typedef enum bl_driver_verb {
  BL_ASK_NOTHING,
  BL_ASK_TAKEOVER,
  BL_ASK_PREPARE, // plan, kind in run.kind
  BL_ASK_RUN,     // run, offer
  BL_ASK_COMMIT,  // commit
  BL_ASK_ABORT,   // next, attempt
} bl_driver_verb_t;

// One question. Two are the same exactly when bl_driver_request_equal says so: then the one under way is enough.
typedef struct bl_driver_request {
  bl_driver_verb_t verb;
  bl_driver_id_t driver;
  bl_run_id_t run;
  bl_offer_t offer;
  bl_plan_record_t plan;
  bl_commit_t commit;
  uint64_t next;    // ABORT: the step that must not be applied by these attempts
  uint64_t attempt; // ABORT: up to this one
} bl_driver_request_t;
bool bl_driver_request_equal(const bl_driver_request_t *a, const bl_driver_request_t *b);

// Begins in TAKEOVER with id.epoch, which should be above what stages say they follow (Status); when it is not, a higher
// one is tried. stage_count >= 1.
void bl_driver_step_init(bl_driver_step_t *step, bl_driver_id_t id, bl_driver_peer_t *peers, size_t stage_count);

// What `stage` is to be asked now; BL_ASK_NOTHING when its answer is known or it is the shell's turn.
bl_driver_request_t bl_driver_step_request(const bl_driver_step_t *step, size_t stage);

// ---- answers. Each says which question it answers; one that is not (or no longer) asked is ignored. -----------------

// Takeover with epoch `epoch` was answered.
void bl_driver_step_taken(bl_driver_step_t *step, size_t stage, uint64_t epoch, bool accepted,
                          const bl_stage_report_t *report);
// PreparePlan was answered.
void bl_driver_step_prepared(bl_driver_step_t *step, size_t stage, uint64_t version);
// PreparePlan was refused, for good: the plan before stays in force. (A refusal with BL_FENCED goes to _refused; one that
// passes by itself is not told.)
void bl_driver_step_plan_refused(bl_driver_step_t *step, size_t stage, uint64_t version);
// Run was answered with a vote.
void bl_driver_step_voted(bl_driver_step_t *step, size_t stage, uint64_t attempt);
// Run failed on this stage for a reason other than a lost call: the attempt is given up on all stages. The shell bounds
// how often.
void bl_driver_step_run_failed(bl_driver_step_t *step, size_t stage, uint64_t attempt);
void bl_driver_step_committed(bl_driver_step_t *step, size_t stage, uint64_t committed_step);
void bl_driver_step_aborted(bl_driver_step_t *step, size_t stage, uint64_t attempt);
// `request` was refused by the stage's state machine with BL_FENCED or BL_PRECONDITION. (For a Run, BL_PRECONDITION
// gives the attempt up as run_failed does.) What a call's transport says (BL_UNAVAILABLE, BL_DEADLINE) is not told
// here: the question stands.
void bl_driver_step_refused(bl_driver_step_t *step, size_t stage, const bl_driver_request_t *request,
                            bl_status_t status);

// ---- the shell's turn ----------------------------------------------------------------------------------------------

// BOUNDARY: asks all stages to prepare a plan of this kind that carries out the version `policy` (0 for the forward-only
// kinds). At the next BOUNDARY `proposal_refused` says how it ended; when it is not, the plan is in force.
void bl_driver_step_prepare(bl_driver_step_t *step, bl_run_kind_t kind, uint64_t digest, uint64_t policy);
// BOUNDARY, with a plan of this kind in force: starts an attempt. BL_RUN_TRAIN: at step applied + 1; else a look at the
// weights as they are.
void bl_driver_step_run(bl_driver_step_t *step, bl_run_kind_t kind);
// BOUNDARY: the same for a training attempt, behind which stages may go on as if it were committed with these numbers. At
// the BOUNDARY after its commit, `offer` says so, and the next thing is a training attempt, or bl_driver_step_abort.
void bl_driver_step_run_on(bl_driver_step_t *step, double scale, double learning_rate);
// DECIDING of a training attempt: applies it. False: stages may have applied it ahead with other numbers, and it is given
// up on all of them.
bool bl_driver_step_commit(bl_driver_step_t *step, double scale, double learning_rate);
// DECIDING of a forward-only attempt: goes to BOUNDARY. Its votes need no undoing.
void bl_driver_step_close(bl_driver_step_t *step);
// RUNNING or DECIDING, or BOUNDARY with an offer: gives the attempt up on all stages, with what is behind it; then
// BOUNDARY.
void bl_driver_step_abort(bl_driver_step_t *step);
// BOUNDARY: all stages have been configured anew for this job: their weights are those after step `applied`, 0 unless
// they come from a checkpoint. No plan is in force. Attempts and plan versions go on counting.
void bl_driver_step_reset(bl_driver_step_t *step, uint64_t applied);

// ENDED: status and text for a person, who calls stage end_stage `name`. Else BL_OK.
bl_status_t bl_driver_step_explain(const bl_driver_step_t *step, const char *name, bl_error_t *err);

#endif
