// SPDX-License-Identifier: Apache-2.0
// The stage's side of the step protocol (PROTOCOL.md section 2): which driver it follows, what may run, what it keeps
// until the commit, what it has applied. This file decides; the service around it ("the shell") acts.
//
//   static void handle_commit(shell_t *self, bl_rpc_call_t *call, bl_driver_id_t driver, bl_commit_t commit) {
//     bl_error_t err;
//     switch (bl_stage_step_commit(&self->step, driver, &commit, &err)) {
//     case BL_STAGE_REFUSE: bl_rpc_call_fail(call, &err); break;
//     case BL_STAGE_ANSWER: reply_applied(call, self->step.applied); break;
//     case BL_STAGE_BEGIN:  start_optimizer(self, commit);          // calls bl_stage_step_commit_ended when done
//                           // fall through
//     case BL_STAGE_WAIT:   keep_until_ended(self, call); break;    // answered from commit_ended on
//     }
//   }
//
// After BL_STAGE_BEGIN the shell starts what takes time, and calls the *_ended function of the same noun when it is
// done. Nothing else may begin in between. Until then a request for exactly what is in progress gets BL_STAGE_WAIT. If
// a call's client is gone, what the call began continues.
//
// Votes are opaque here. The shell keeps the payload of one outcome (`run` below, while phase is BL_STAGE_VOTED) and
// that of the last commit. The functions say when to drop them.
//
// A run may come with an offer (record.h). When it has ended with a vote, the shell calls bl_stage_step_go_on at once.
// If that returns true, the shell applies the update and runs bl_stage_step_ahead before it receives a commit. `run`
// stays the attempt that is to be committed, and `ahead` is the state of the attempt after it:
//   - a commit with the offered numbers confirms it: BL_STAGE_ANSWER, and `applied` has risen. The kept vote is now
//     that of last_commit. The attempt ahead becomes `run`, with its vote if it has one;
//   - an abort undoes the update, with all that was begun on top of it (BL_STAGE_UNDOING);
//   - a commit with other numbers is refused: the driver aborts the attempt instead.
//
// Refusals set err->status:
//   BL_FENCED        the request is from a driver that this stage does not follow (any more)
//   BL_PRECONDITION  not possible in this state: the driver must read the state (Takeover), not retry
//   BL_EXHAUSTED     busy with something that ends by itself: retry
//   BL_INVALID       the request contradicts itself
// A refusal changes nothing.
//
// No I/O, no clock, no allocation. A zeroed bl_stage_step_t is a fresh stage. Fields are for reading.
// Thread: one owner, the stage's loop thread.
#ifndef BALLAST_STEP_STAGE_STEP_H
#define BALLAST_STEP_STAGE_STEP_H

#include "base/error.h"
#include "step/record.h"

typedef enum bl_stage_phase {
  BL_STAGE_IDLE,
  BL_STAGE_CONFIGURING, // from BEGIN of configure to configure_ended
  BL_STAGE_RUNNING,     // `run` is running
  BL_STAGE_STOPPING,    // `run` was aborted and has not ended yet
  BL_STAGE_VOTED,       // `run` has ended with a vote, which is kept (BL_RUN_TRAIN: with the gradients)
  BL_STAGE_APPLYING,    // `last_commit` is being applied; `applied` counts it already
  BL_STAGE_UNDOING,     // `run` was aborted, and its update, applied ahead of the commit, is being undone
} bl_stage_phase_t;

// State of the attempt after `run`, begun before the commit of `run`: at most one.
typedef enum bl_stage_ahead {
  BL_AHEAD_NONE,
  BL_AHEAD_RUNNING,
  BL_AHEAD_VOTED,
  BL_AHEAD_FAILED,
} bl_stage_ahead_t;

typedef struct bl_stage_step {
  bl_stage_phase_t phase;
  bl_driver_id_t driver;    // that this stage follows; epoch 0: none yet
  uint64_t configured;      // digest of the configuration, 0: none
  uint64_t configuring;     // BL_STAGE_CONFIGURING: digest of the next configuration
  uint64_t applied;         // the last committed step, 0 at the start
  uint64_t highest_attempt; // of any run or abort seen; never falls, not even at a new configuration
  bl_run_id_t run;          // RUNNING, STOPPING, VOTED, UNDOING
  bl_offer_t offer;         // RUNNING: what may begin after `run`; with `ahead`: what did
  bl_stage_ahead_t ahead;   // VOTED; STOPPING: set if the attempt that is stopped is this one
  bl_commit_t last_commit;  // step 0: none
  bl_plan_record_t plans[BL_RUN_KINDS][BL_STAGE_PLANS]; // [0] is the older
  uint64_t plan_version;                                // highest ever prepared or refused
} bl_stage_step_t;

typedef enum bl_stage_decision {
  BL_STAGE_REFUSE, // answer with err; nothing changed
  BL_STAGE_ANSWER, // done (perhaps long ago): answer now from the state
  BL_STAGE_WAIT,   // exactly this is in progress: answer when it ends
  BL_STAGE_BEGIN,  // start it now, answer when it ends
} bl_stage_decision_t;

// ---- drivers -------------------------------------------------------------------------------------------------------

// Returns whether this stage now follows `driver`: its epoch is higher than that of the present one, or it is the
// present one. Answer Takeover with this and the state, never with an error. A running attempt continues: the new
// driver decides whether to abort it.
bool bl_stage_step_takeover(bl_stage_step_t *step, bl_driver_id_t driver);

// For requests without rules of their own (Stop): ANSWER, or REFUSE with BL_FENCED.
bl_stage_decision_t bl_stage_step_check(const bl_stage_step_t *step, bl_driver_id_t driver, bl_error_t *err);

// ---- configuration -------------------------------------------------------------------------------------------------

// Configure. ANSWER: the present configuration has this digest (not 0). WAIT: it is being configured. BEGIN: configure.
// From now on the stage has no configuration, plans or history (applied 0): drop what the old one held. REFUSE with
// BL_PRECONDITION while an attempt runs or a training vote is kept (abort it first), with BL_EXHAUSTED while another
// configuration or a commit is in progress.
bl_stage_decision_t bl_stage_step_configure(bl_stage_step_t *step, bl_driver_id_t driver, uint64_t digest,
                                            bl_error_t *err);
// What BEGIN began has ended. `well` false: the stage has no configuration. `applied`: the step after which the weights
// were taken, 0 unless they come from a checkpoint.
void bl_stage_step_configure_ended(bl_stage_step_t *step, bool well, uint64_t applied);

// Connect. ANSWER: the stage is configured and nothing runs. The shell may take its time.
bl_stage_decision_t bl_stage_step_connect(const bl_stage_step_t *step, bl_driver_id_t driver, bl_error_t *err);

// Release, the end of a job. ANSWER: the stage is as after its start, except for the driver that it follows and the
// attempts that it has seen: drop everything else. REFUSE as configure.
bl_stage_decision_t bl_stage_step_release(bl_stage_step_t *step, bl_driver_id_t driver, bl_error_t *err);

// PreparePlan. ANSWER: exactly this plan is prepared. BEGIN: install it, then call plan_installed. If it cannot be
// installed, call plan_refused: the other plans stay. *replaces (0: none) is the version of the plan of this kind that
// is replaced, never the one that plan.follows names. REFUSE with BL_PRECONDITION: not configured, a run or commit in
// progress, a version below the highest, or one that was refused, or prepared with another digest or kind.
bl_stage_decision_t bl_stage_step_plan(const bl_stage_step_t *step, bl_driver_id_t driver, bl_run_kind_t kind,
                                       bl_plan_record_t plan, uint64_t *replaces, bl_error_t *err);
void bl_stage_step_plan_installed(bl_stage_step_t *step, bl_run_kind_t kind, bl_plan_record_t plan);
// The driver will receive the refusal and treat it as final. The version is used up, so that a late repetition of the
// request cannot prepare a plan that the driver no longer expects. Not for temporary refusals (BL_EXHAUSTED).
void bl_stage_step_plan_refused(bl_stage_step_t *step, uint64_t version);

// ---- steps ---------------------------------------------------------------------------------------------------------

// Run. BEGIN: start the attempt, which is now `run`. A kept forward-only vote is dropped, and so are the plans of this
// kind other than run.plan_version: an older one, or one that some stage refused. WAIT: the same attempt runs. ANSWER:
// it has ended: answer with the kept vote. REFUSE with BL_PRECONDITION: not configured; a plan that was not prepared; a
// step that does not fit `applied`; an attempt not above the highest seen; another attempt runs or is voted (abort it
// first).
bl_stage_decision_t bl_stage_step_run(bl_stage_step_t *step, bl_driver_id_t driver, const bl_run_id_t *run,
                                      bl_error_t *err);
// The same for a training attempt with an offer. An attempt that already runs takes the offer too if it has none.
// REFUSE with BL_INVALID: another kind of run, or the offered attempt is not above the run's.
bl_stage_decision_t bl_stage_step_run_on(bl_stage_step_t *step, bl_driver_id_t driver, const bl_run_id_t *run,
                                         const bl_offer_t *offer, bl_error_t *err);

// What the shell must do when a run has ended.
typedef enum bl_stage_outcome {
  BL_STAGE_KEEP,   // keep the vote (and the gradients), answer the waiting Run calls with it
  BL_STAGE_DROP,   // it was aborted: drop vote and gradients, fail the waiting Run calls with BL_CANCELLED, answer the
                   // waiting Abort calls
  BL_STAGE_FAILED, // it failed: drop the gradients, fail the waiting Run calls with the cause
  BL_STAGE_AHEAD,  // it was the attempt ahead: keep its vote or cause until the commit, answer no call
  BL_STAGE_UNDO,   // it was the attempt ahead and is aborted with the one before: undo the update, then call
                   // bl_stage_step_undone and do as for BL_STAGE_DROP
} bl_stage_outcome_t;
// `voted`: the run finished and has a vote (finite or not). Phase is RUNNING or STOPPING.
bl_stage_outcome_t bl_stage_step_run_ended(bl_stage_step_t *step, bool voted);

// Call directly after run_ended returned KEEP for a training attempt that the shell has found fit for its offer. True:
// apply the update of `offer` now, keep what it changes, and run bl_stage_step_ahead next.
bool bl_stage_step_go_on(bl_stage_step_t *step);
// Returns the attempt after `run`; call it only if `ahead` is not BL_AHEAD_NONE.
bl_run_id_t bl_stage_step_ahead(const bl_stage_step_t *step);
// UNDOING: the weights are again those after `applied`.
void bl_stage_step_undone(bl_stage_step_t *step);
// Returns the highest attempt that was seen or may begin here without another request: what a new driver must exceed.
uint64_t bl_stage_step_highest(const bl_stage_step_t *step);

// Commit. BEGIN: apply the kept gradients with commit->scale and ->learning_rate, which cannot fail; the kept vote
// becomes that of last_commit. WAIT: being applied. ANSWER: applied, or applied ahead and confirmed. REFUSE with
// BL_PRECONDITION: this attempt has no vote here, or the step was applied with another attempt or other numbers.
bl_stage_decision_t bl_stage_step_commit(bl_stage_step_t *step, bl_driver_id_t driver, const bl_commit_t *commit,
                                         bl_error_t *err);
void bl_stage_step_commit_ended(bl_stage_step_t *step);

// Abort: aborts all attempts of any kind up to and including `attempt`, whether this stage has seen them or not, so
// that none of them will apply step `next` = applied + 1. ANSWER: none of them runs, and a kept vote of one of them is
// dropped (*dropped, with its gradients). BEGIN: in phase STOPPING interrupt the run and answer from run_ended, in
// phase UNDOING undo the update and answer from bl_stage_step_undone. WAIT: exactly that is in progress. REFUSE with
// BL_PRECONDITION: `next` is applied already, or is not the next step here.
bl_stage_decision_t bl_stage_step_abort(bl_stage_step_t *step, bl_driver_id_t driver, uint64_t next, uint64_t attempt,
                                        bool *dropped, bl_error_t *err);

// Snapshot. ANSWER: the weights are those after `applied` and nothing runs: copy them, or answer that they have been
// copied. REFUSE with BL_PRECONDITION: another step, not configured, an attempt runs or is voted; with BL_EXHAUSTED
// while a commit is being applied.
bl_stage_decision_t bl_stage_step_snapshot(const bl_stage_step_t *step, bl_driver_id_t driver, uint64_t applied,
                                           bl_error_t *err);

// Returns "idle", "configuring", "running", "stopping", "voted", "committing" or "undoing", for Status.
const char *bl_stage_phase_name(bl_stage_phase_t phase);
// Whether an attempt runs, including the one ahead.
static inline bool bl_stage_step_is_running(const bl_stage_step_t *step) {
  return step->phase == BL_STAGE_RUNNING || step->phase == BL_STAGE_STOPPING || step->ahead == BL_AHEAD_RUNNING;
}
// Whether `run` is a training attempt whose vote is kept: `prepared` of StageState.
static inline bool bl_stage_step_is_prepared(const bl_stage_step_t *step) {
  return step->phase == BL_STAGE_VOTED && step->run.kind == BL_RUN_TRAIN;
}

#endif
