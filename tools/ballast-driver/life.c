// SPDX-License-Identifier: Apache-2.0
#include "driver_core.h"

#include "sys/clock.h"
#include "sys/log.h"

#include <stdio.h>
#include <string.h>

uint64_t bl__driver_now_ms(const bl_driver_t *driver) {
  (void)driver;
  return bl_clock_now_ns() / BL_NS_PER_MS;
}

bl_coords_t bl__driver_coords(const bl_driver_t *driver, size_t rank) {
  return bl_grid_coords(&driver->options.training->grid, (uint32_t)rank);
}

const char *bl__stage_name(const bl_remote_t *stage, char text[BL__STAGE_NAME_BYTES]) {
  char rank_name[BL_GRID_NAME_BYTES];
  (void)bl_grid_name(&stage->driver->options.training->grid, (uint32_t)stage->index, rank_name);
  snprintf(text, BL__STAGE_NAME_BYTES, "%s (%s)", rank_name, bl_stage_client_address(stage->client));
  return text;
}

void bl__driver_set_phase(bl_driver_t *driver, const char *phase, const char *error, int exit_code) {
  if (strcmp(driver->phase, phase) == 0) {
    return;
  }
  driver->phase = phase;
  bl_run_journal_add_phase(&driver->journal, phase, error, exit_code);
  bl_log(BL_LOG_INFO, "%s%s%s", phase, error[0] != '\0' ? ": " : "", error);
  driver->options.observer.changed(driver->options.observer.context);
}
