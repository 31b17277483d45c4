// SPDX-License-Identifier: Apache-2.0
// The policy auto of a run: begins with a step in which a stage parks no more than one block, so that paths that are far
// too slow cost little; then looks at some steps, weighs the policies that fit (simulate/automatic.h) with the times that
// operations and copies took in them, and asks for another one where that gains enough. What it changed to it looks at at
// once, and goes back where that turns out slower. Then it rests and looks again, sooner when steps become much slower.
// Where it gave blocks up it parks some again at times: what paths are worth shows only where something goes over them.
//
// Thread: the driver's loop.
#ifndef BALLAST_DRIVER_AUTOMATIC_H
#define BALLAST_DRIVER_AUTOMATIC_H

#include "plan/profile/recorder.h"
#include "simulate/automatic.h"

#include "driver.h"

typedef struct bl__automatic {
  bl_recorder_t *recorder; // of the looks under way; NULL: none
  bl_evidence_t evidence;  // stages 0: none yet
  uint32_t looks;
  uint64_t seen, next; // the step looked at last; none before this one
  uint64_t watched;    // the step that `evidence` was told of last
  bool checking;       // the looks to come are at what was chosen just now
  uint64_t trial;      // the step after which `tried` is asked for; 0: never
  bl_policy_t tried;
  uint64_t measured; // the step at which paths were last measured
  uint32_t refused;  // trials in a row
  bool trying;       // it was asked for, and is not in force yet
  uint64_t version;  // of the policy that is looked at
  bool decided;      // `found` and `decision` are there
  bool asked;        // for what they say; it is not in force yet
  bool starting;     // what was asked for follows on the step with one block of a stage parked
  bl_automatic_t found;
  char decision[1024];
  char start[512]; // why the steps looked at first run as they do; "": nothing is said
} bl__automatic_t;

// At a boundary: whether the operations of the last step are wanted (bl__traces_ready).
bool bl__automatic_wants(bl_driver_t *driver);
// Whether those of the step that is about to begin will be.
bool bl__automatic_will_look(const bl_driver_t *driver);
// Once they are there. May ask for another policy.
void bl__automatic_look(bl_driver_t *driver);
const char *bl__automatic_decision(const bl_driver_t *driver);
const char (*bl__automatic_reasons(const bl_driver_t *driver))[BL_AUTOMATIC_REASON];
void bl__automatic_cleanup(bl_driver_t *driver);

#endif
