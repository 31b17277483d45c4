// SPDX-License-Identifier: Apache-2.0
// Which run's driver the stage follows, where it is, and when it was last heard of. Nothing of the step protocol
// depends on it: it is for people, and for the driver of another job, which does not take over stages from one that is
// alive. Thread: the loop's.
#ifndef BALLAST_STAGE_SERVICE_CURRENT_DRIVER_H
#define BALLAST_STAGE_SERVICE_CURRENT_DRIVER_H

#include <stdint.h>

typedef struct bl_current_driver {
  char run[128], address[256];
  uint64_t heard_ns; // 0: never
} bl_current_driver_t;

// Another driver is followed from now on. What does not fit is cut.
void bl_current_driver_take(bl_current_driver_t *current_driver, const char *run, const char *address);
// It was heard of just now.
void bl_current_driver_seen(bl_current_driver_t *current_driver);
// How long it has been silent, at least 1; 0: none was ever heard of.
uint64_t bl_current_driver_silent_ms(const bl_current_driver_t *current_driver);

#endif
