// SPDX-License-Identifier: Apache-2.0
// The stage's side of the step protocol (PROTOCOL.md section 2): which driver is followed, what may run, what is kept
// until the commit, what was applied. It decides; the service shell around it does.
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
// A request that takes time is begun by BL_STAGE_BEGIN and ended by the shell's call of the *_ended function of the
// same noun; nothing else may be begun in between. Requests that come meanwhile get BL_STAGE_WAIT when they ask for just
// what is under way. A call whose client has gone ends nothing: what was begun goes on.
//
// Votes are opaque here. The shell keeps the payload of one outcome (`run` below, while phase is BL_STAGE_VOTED) and
// that of the last commit, and the functions say when to drop them.
//
// A run may come with an offer (record.h). When it has ended with a vote, the shell asks bl_stage_step_go_on at once:
// where that says so, it applies the update and runs bl_stage_step_ahead, before it hears of a commit. `run` stays the
// attempt that is to be committed, and `ahead` says what has become of the one behind it:
//   - a commit with the offered numbers confirms it: BL_STAGE_ANSWER, and `applied` has risen. The kept vote is that of
//     last_commit now; the attempt ahead is `run`, with its vote if it has one;
//   - an abort takes the update back, with all that was begun on top of it (BL_STAGE_UNDOING);
//   - a commit with other numbers is refused: the driver gives the attempt up instead.
//
// Refusals set err->status:
//   BL_FENCED        the request is of a driver that this stage does not follow (any more)
//   BL_PRECONDITION  not possible in this state: the driver must look at the state again (Takeover), not retry
//   BL_EXHAUSTED     busy with something that ends by itself: ask again
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
  BL_STAGE_UNDOING,     // `run` was aborted, its update, applied ahead of the commit, is being taken back
} bl_stage_phase_t;

// The attempt behind `run`, begun before the commit of `run`: at most one.
typedef enum bl_stage_ahead {
  BL_AHEAD_NONE,
  BL_AHEAD_RUNNING,
  BL_AHEAD_VOTED,
  BL_AHEAD_FAILED,
} bl_stage_ahead_t;

typedef struct bl_stage_step {
  bl_stage_phase_t phase;
  bl_driver_id_t driver;    // whom this stage follows; epoch 0: nobody yet
  uint64_t configured;      // digest of the configuration, 0 when none
  uint64_t configuring;     // BL_STAGE_CONFIGURING: digest of the one to come
  uint64_t applied;         // the last committed step, 0 at the start
  uint64_t highest_attempt; // of any run or abort seen; never falls, also not when configured anew
  bl_run_id_t run;          // RUNNING, STOPPING, VOTED, UNDOING
  bl_offer_t offer;         // RUNNING: what may begin behind `run`; with `ahead`: what did
  bl_stage_ahead_t ahead;   // VOTED; STOPPING: the one that is stopped is that one
  bl_commit_t last_commit;  // step 0: none
  bl_plan_record_t plans[BL_RUN_KINDS][BL_STAGE_PLANS]; // [0] is the older
  uint64_t plan_version;                                // highest ever prepared or refused
} bl_stage_step_t;

typedef enum bl_stage_decision {
  BL_STAGE_REFUSE, // answer with err; nothing changed
  BL_STAGE_ANSWER, // it is done (perhaps long ago): answer now from the state
  BL_STAGE_WAIT,   // just this is under way: answer when it ends
  BL_STAGE_BEGIN,  // begin it now, answer when it ends
} bl_stage_decision_t;

// ---- drivers -------------------------------------------------------------------------------------------------------

// Whether `driver` is now followed: its epoch is higher than the present one's, or it is the present one. The answer to
// Takeover is this and the state, never an error. What runs goes on: the new driver will abort it or not.
bool bl_stage_step_takeover(bl_stage_step_t *step, bl_driver_id_t driver);

// For requests without rules of their own (Stop): ANSWER, or REFUSE with BL_FENCED.
bl_stage_decision_t bl_stage_step_check(const bl_stage_step_t *step, bl_driver_id_t driver, bl_error_t *err);

// ---- configuration -------------------------------------------------------------------------------------------------

// Configure. ANSWER: this digest (not 0) is the present one. WAIT: it is being configured. BEGIN: configure; from now on
// the stage has no configuration, plans or history (applied 0): drop what the old one held. REFUSE with BL_PRECONDITION
// while an attempt runs or a training vote is kept (abort it first), with BL_EXHAUSTED while another configuration or a
// commit is under way.
bl_stage_decision_t bl_stage_step_configure(bl_stage_step_t *step, bl_driver_id_t driver, uint64_t digest,
                                            bl_error_t *err);
// What BEGIN began has ended. Not well: the stage has no configuration. `applied`: the step that its weights are of, 0
// unless they come from a checkpoint.
void bl_stage_step_configure_ended(bl_stage_step_t *step, bool well, uint64_t applied);

// Connect: ANSWER when the stage is configured and nothing runs. The shell may take its time.
bl_stage_decision_t bl_stage_step_connect(const bl_stage_step_t *step, bl_driver_id_t driver, bl_error_t *err);

// Release, the end of a job: ANSWER: the stage is as after its start, except for the driver it follows and the attempts
// it has seen: drop everything else. REFUSE as configure.
bl_stage_decision_t bl_stage_step_release(bl_stage_step_t *step, bl_driver_id_t driver, bl_error_t *err);

// PreparePlan. ANSWER: exactly this plan is prepared. BEGIN: install it, then call plan_installed; when it cannot be
// installed, call plan_refused: the other plans stay. *replaces (0: none) is the version of the plan of this kind that
// gives way, never the one that plan.follows names. REFUSE with BL_PRECONDITION: not configured, a run or commit under
// way, a version below the highest, or one that was refused, or prepared with another digest or kind.
bl_stage_decision_t bl_stage_step_plan(const bl_stage_step_t *step, bl_driver_id_t driver, bl_run_kind_t kind,
                                       bl_plan_record_t plan, uint64_t *replaces, bl_error_t *err);
void bl_stage_step_plan_installed(bl_stage_step_t *step, bl_run_kind_t kind, bl_plan_record_t plan);
// The refusal will be told, and the driver takes it for final: the version is spent, so that a late repetition of the
// request cannot prepare what nobody expects to be prepared any more. Not for what passes by itself (BL_EXHAUSTED).
void bl_stage_step_plan_refused(bl_stage_step_t *step, uint64_t version);

// ---- steps ---------------------------------------------------------------------------------------------------------

// Run. BEGIN: `run` is the attempt, start it; a kept forward-only vote is dropped, and so are the plans of this kind
// other than run.plan_version: an older one, or one that some stage refused. WAIT: the same attempt runs. ANSWER: it has
// ended: the kept vote. REFUSE with BL_PRECONDITION: not configured; a plan that was not prepared; a step that does not
// fit `applied`; an attempt not above the highest seen; another attempt runs or is voted (abort it first).
bl_stage_decision_t bl_stage_step_run(bl_stage_step_t *step, bl_driver_id_t driver, const bl_run_id_t *run,
                                      bl_error_t *err);
// The same for a training attempt with an offer, which also an attempt that runs already takes if it has none. BL_INVALID:
// of another kind, or an attempt that is not above the run's.
bl_stage_decision_t bl_stage_step_run_on(bl_stage_step_t *step, bl_driver_id_t driver, const bl_run_id_t *run,
                                         const bl_offer_t *offer, bl_error_t *err);

// What the shell does when a run has ended.
typedef enum bl_stage_outcome {
  BL_STAGE_KEEP,   // keep the vote (and the gradients), answer the waiting Run calls with it
  BL_STAGE_DROP,   // it was aborted: drop vote and gradients, fail the waiting Run calls with BL_CANCELLED, answer the
                   // waiting Abort calls
  BL_STAGE_FAILED, // it failed: drop the gradients, fail the waiting Run calls with the cause
  BL_STAGE_AHEAD,  // it was the attempt ahead: keep what came of it (vote or cause) until the commit, tell nobody
  BL_STAGE_UNDO,   // it was the attempt ahead, and is given up with the one before: take the update back, then call
                   // bl_stage_step_undone and do as for BL_STAGE_DROP
} bl_stage_outcome_t;
// `voted`: the run came to its end and has a vote (finite or not). Phase is RUNNING or STOPPING.
bl_stage_outcome_t bl_stage_step_run_ended(bl_stage_step_t *step, bool voted);

// Directly after run_ended gave KEEP for a training attempt that the shell has found fit for its offer: whether to apply
// the update of `offer` now, keeping what it changes, and to run bl_stage_step_ahead behind it.
bool bl_stage_step_go_on(bl_stage_step_t *step);
// The attempt behind `run`, where `ahead` says that there is one.
bl_run_id_t bl_stage_step_ahead(const bl_stage_step_t *step);
// UNDOING: the weights are those after `applied` again.
void bl_stage_step_undone(bl_stage_step_t *step);
// The highest attempt that was seen or may begin here without another word: what a new driver must exceed.
uint64_t bl_stage_step_highest(const bl_stage_step_t *step);

// Commit. BEGIN: apply the kept gradients with commit->scale and ->learning_rate, which cannot fail; the kept vote
// becomes that of last_commit. WAIT: being applied. ANSWER: applied, or applied ahead and confirmed. REFUSE with
// BL_PRECONDITION: this attempt has no vote here, or the step was applied with another attempt or other numbers.
bl_stage_decision_t bl_stage_step_commit(bl_stage_step_t *step, bl_driver_id_t driver, const bl_commit_t *commit,
                                         bl_error_t *err);
void bl_stage_step_commit_ended(bl_stage_step_t *step);

// Abort: gives up all attempts of any kind up to and including `attempt`, whether this stage has seen them or not, so
// that none of them will apply step `next` = applied + 1. ANSWER: none of them runs; a kept vote of one of them is
// dropped (*dropped, with its gradients). BEGIN: in phase STOPPING interrupt the run and answer from run_ended on, in
// phase UNDOING take the update back and answer from bl_stage_step_undone on. WAIT: just that is under way.
// REFUSE with BL_PRECONDITION: `next` is applied already, or is not the next one here.
bl_stage_decision_t bl_stage_step_abort(bl_stage_step_t *step, bl_driver_id_t driver, uint64_t next, uint64_t attempt,
                                        bool *dropped, bl_error_t *err);

// Snapshot: ANSWER when the weights are those after `applied` and nothing runs: copy them, or know that they have been
// copied. REFUSE with BL_PRECONDITION: another step, not configured, an attempt runs or is voted; with BL_EXHAUSTED while
// a commit is being applied.
bl_stage_decision_t bl_stage_step_snapshot(const bl_stage_step_t *step, bl_driver_id_t driver, uint64_t applied,
                                           bl_error_t *err);

// "idle", "configuring", "running", "stopping", "voted", "committing", "undoing": for Status.
const char *bl_stage_phase_name(bl_stage_phase_t phase);
// Whether an attempt runs, be it the one ahead.
static inline bool bl_stage_step_is_running(const bl_stage_step_t *step) {
  return step->phase == BL_STAGE_RUNNING || step->phase == BL_STAGE_STOPPING || step->ahead == BL_AHEAD_RUNNING;
}
// Whether `run` is a training attempt whose vote is kept: `prepared` of StageState.
static inline bool bl_stage_step_is_prepared(const bl_stage_step_t *step) {
  return step->phase == BL_STAGE_VOTED && step->run.kind == BL_RUN_TRAIN;
}

#endif
