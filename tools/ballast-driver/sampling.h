// SPDX-License-Identifier: Apache-2.0
// Generates text from the model while the run is held or finished.
//
// Thread: the driver's loop.
#ifndef BALLAST_DRIVER_SAMPLING_H
#define BALLAST_DRIVER_SAMPLING_H

#include "driver.h"

typedef struct bl__generation {
  bl_sampling_t request;
  uint32_t *tokens;   // [seq] the context
  uint32_t count;     // tokens in it
  uint32_t generated; // tokens of the answer so far
  bool has_caller;    // who waits for the text
} bl__generation_t;

// An attempt of BL_RUN_GENERATE has ended: passes its token on, and closes the attempt.
void bl__sampling_take(bl_driver_t *driver);
void bl__sampling_end(bl_driver_t *driver, const bl_error_t *err);

#endif
