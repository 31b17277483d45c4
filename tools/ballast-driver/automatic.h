// SPDX-License-Identifier: Apache-2.0
// The policy auto of a run, around what lib/policy/choice.h decides: records the operations of steps, weighs the
// policies that fit by them (simulate/automatic.h), asks for changes, and says why.
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
  bl_recorder_t *recorder;        // of the samples under way
  bl_measurements_t measurements; // stages 0: none yet
  bl_automatic_t found;           // what the last decision is about
  char decision[1536];
  char start[512]; // why the steps sampled first run as they do
} bl__automatic_t;

// At a boundary: whether the operations of the last step are wanted (bl__traces_ready).
bool bl__automatic_wants(bl_driver_t *driver);
// Whether those of the step that is about to begin will be.
bool bl__automatic_will_look(bl_driver_t *driver);
// Once they are there. May ask for another policy.
void bl__automatic_look(bl_driver_t *driver);
const char *bl__automatic_decision(const bl_driver_t *driver);
const char (*bl__automatic_reasons(const bl_driver_t *driver))[BL_AUTOMATIC_REASON];
void bl__automatic_cleanup(bl_driver_t *driver);

#endif
