// SPDX-License-Identifier: Apache-2.0
// The plans of a run and the changes of its policy. lib/policy/change.h decides; this makes plans, proposes them to the
// stages, and answers callers.
//
// Thread: the driver's loop.
#ifndef BALLAST_DRIVER_PLANS_H
#define BALLAST_DRIVER_PLANS_H

#include "policy/change.h"

#include "driver.h"

typedef struct bl__plans {
  bl_changes_t changes;      // decides which policies are in force and requested; the rest here acts
  char *texts[BL_RUN_KINDS]; // NULL: no run of this kind. BL_RUN_TRAIN: the plan in force
  bl_balance_plan_t balance; // of the policy in force

  // What is proposed to the stages.
  bool open;
  bl_balance_plan_t next_balance;
  char *next_text;
  bl_error_t refusal;

  // Setup.
  uint64_t again_ms;       // when to repeat a plan that was refused for now; 0: none
  bl_run_kind_t next_kind; // to be proposed next
} bl__plans_t;

// Returns the policies in force; before setup those that a predecessor left.
const bl_policy_history_t *bl__plans_history(bl_driver_t *driver);
bool bl__plans_setting_up(const bl_driver_t *driver);
// Setup: proposes the plans that the stages lack. True: a plan is proposed, or the run has failed.
bool bl__plans_begin(bl_driver_t *driver);
// The same, at a boundary after a proposal of setup has ended.
bool bl__plans_go_on(bl_driver_t *driver);
// Between steps: ends a change that was proposed, and begins the next. True: a plan is proposed. `held`: no step runs
// in between.
bool bl__plans_boundary(bl_driver_t *driver, bool held);
void bl__plans_end_waits(bl_driver_t *driver, const bl_error_t *err);
void bl__plans_cleanup(bl_driver_t *driver);
// Requests a change on behalf of the driver, at the boundary where it is called. False: other changes wait; repeat it
// later.
bool bl__plans_wish(bl_driver_t *driver, const bl_policy_t *policy, bl_driver_policy_fn done);
// The call to make for a proposal, and the handling of its refusal.
bl_stage_plan_text_t bl__plan_text(const bl_driver_t *driver, const bl_driver_request_t *request);
void bl__plan_refused(bl_remote_t *stage, const bl_driver_request_t *request, const bl_error_t *err);

#endif
