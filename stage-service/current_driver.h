// SPDX-License-Identifier: Apache-2.0
// The driver that the stage follows: its run, its address, and when it last called. The step protocol does not depend
// on it. It is for status reports, and for the driver of another job, which does not take over stages whose driver is
// alive. Thread: the loop's.
#ifndef BALLAST_STAGE_SERVICE_CURRENT_DRIVER_H
#define BALLAST_STAGE_SERVICE_CURRENT_DRIVER_H

#include <stdint.h>

typedef struct bl_current_driver {
  char run[128], address[256];
  uint64_t heard_ns; // 0: never
} bl_current_driver_t;

// Sets another driver to follow. Texts that are too long are truncated.
void bl_current_driver_take(bl_current_driver_t *current_driver, const char *run, const char *address);
// Notes a call of the driver.
void bl_current_driver_seen(bl_current_driver_t *current_driver);
// Returns how long the driver has been silent, at least 1. 0: there was never a call.
uint64_t bl_current_driver_silent_ms(const bl_current_driver_t *current_driver);

#endif
