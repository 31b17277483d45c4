// SPDX-License-Identifier: Apache-2.0
// The policy auto of a run. lib/policy/choice.h decides; this records the operations of steps, compares the policies
// that fit by them (simulate/automatic.h), requests changes, and explains them.
//
// Thread: the driver's loop.
#ifndef BALLAST_DRIVER_AUTOMATIC_H
#define BALLAST_DRIVER_AUTOMATIC_H

#include "plan/profile/recorder.h"
#include "policy/choice.h"
#include "simulate/automatic.h"

#include "driver.h"

typedef struct bl__automatic {
  bl_choice_t choice;
  bl_recorder_t *recorder;        // of the current samples
  bl_measurements_t measurements; // stages 0: none yet
  bl_automatic_t found;           // the last decision
  char decision[1536];
  char start[512]; // explains the policy under which the first steps are sampled
} bl__automatic_t;

// At a boundary: returns whether the operations of the last step are needed (bl__traces_ready).
bool bl__automatic_wants(bl_driver_t *driver);
// Returns whether the operations of the step that is about to begin will be needed.
bool bl__automatic_will_look(bl_driver_t *driver);
// Call it when they have arrived. May request another policy.
void bl__automatic_look(bl_driver_t *driver);
const char *bl__automatic_decision(const bl_driver_t *driver);
const char (*bl__automatic_reasons(const bl_driver_t *driver))[BL_AUTOMATIC_REASON];
void bl__automatic_cleanup(bl_driver_t *driver);

#endif
