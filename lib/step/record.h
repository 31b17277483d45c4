// SPDX-License-Identifier: Apache-2.0
// The records of the step protocol (PROTOCOL.md sections 2 and 3) that both sides use: driver, plan, attempt, commit.
// stage_step.h is the stage's side, driver_step.h the driver's.
//
// Attempts are numbered over the whole run, not per step. An attempt above all that a stage has seen is new, whatever
// its step, and a late message about an older one is recognised by its number alone.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_STEP_RECORD_H
#define BALLAST_STEP_RECORD_H

#include <stdbool.h>
#include <stdint.h>

// Identifies a driver. Stages follow the highest epoch. The same epoch with another id is another driver.
typedef struct bl_driver_id {
  uint64_t epoch; // from 1; 0: none
  uint64_t id;    // random, one per driver process
} bl_driver_id_t;

static inline bool bl_driver_id_equal(bl_driver_id_t a, bl_driver_id_t b) {
  return a.epoch == b.epoch && a.id == b.id;
}

// The numbers are those of RunKind in stage.proto.
typedef enum bl_run_kind {
  BL_RUN_TRAIN = 0,
  BL_RUN_VALIDATE = 1, // forward only on held-out data; nothing to commit
  BL_RUN_GENERATE = 2, // forward only on given tokens; nothing to commit
  BL_RUN_KINDS
} bl_run_kind_t;

// A plan of one kind of run, as both sides name it. Plans and policies have separate versions: one policy may be
// planned more than once (a store is back), and a plan that a stage refuses uses a plan version, but no policy version.
typedef struct bl_plan_record {
  uint64_t version; // from 1, over all kinds; 0: none
  uint64_t digest;
  uint64_t policy;  // version of the policy that it carries out; 0: none, as for the forward-only kinds
  uint64_t follows; // version of the plan of this kind that was in force when this one was proposed; 0: none
} bl_plan_record_t;

// Plans that a stage keeps per kind: the one in force and one prepared to follow it. If any stage refuses the new one,
// the old one stays in force.
#define BL_STAGE_PLANS 2

// One attempt at running a plan once. BL_RUN_TRAIN: if committed, it applies `step` = applied + 1. The forward-only
// kinds use the weights as they are: `step` = applied.
typedef struct bl_run_id {
  bl_run_kind_t kind;
  uint64_t step;
  uint64_t attempt;      // from 1
  uint64_t plan_version; // from 1
} bl_run_id_t;

// One applied step. All stages apply the same record.
typedef struct bl_commit {
  uint64_t step; // 0: none yet
  uint64_t attempt;
  double scale;         // factor on every gradient (clipping)
  double learning_rate; // of this step
  uint64_t recorder; // watcher that writes the run's record and is waited for (driver service); 0: none. Not compared
} bl_commit_t;

// What a stage may do with its own attempt before that is committed: apply it with these numbers, and begin an attempt
// of the next step on top (post-validation, Qi et al., arXiv 2401.10241). The commit then confirms it; anything else
// undoes it.
typedef struct bl_offer {
  uint64_t attempt; // of the next step, above the one that it comes with; 0: nothing may begin
  double scale, learning_rate;
} bl_offer_t;

// Returns whether the commit is bitwise what was applied ahead under this offer.
bool bl_offer_is_met(const bl_offer_t *offer, double scale, double learning_rate);

// Bitwise equality, so that a repeated commit with other numbers is never mistaken for the same one.
bool bl_commit_equal(const bl_commit_t *a, const bl_commit_t *b);

#endif
