// SPDX-License-Identifier: Apache-2.0
#include "current_driver.h"

#include "sys/clock.h"

#include <stdio.h>

void bl_current_driver_take(bl_current_driver_t *current_driver, const char *run, const char *address) {
  snprintf(current_driver->run, sizeof current_driver->run, "%s", run);
  snprintf(current_driver->address, sizeof current_driver->address, "%s", address);
}

void bl_current_driver_seen(bl_current_driver_t *current_driver) {
  current_driver->heard_ns = bl_clock_now_ns();
}

uint64_t bl_current_driver_silent_ms(const bl_current_driver_t *current_driver) {
  return current_driver->heard_ns == 0 ? 0 : (bl_clock_now_ns() - current_driver->heard_ns) / BL_NS_PER_MS + 1;
}
