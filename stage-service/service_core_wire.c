// SPDX-License-Identifier: Apache-2.0
#include "service_core_wire.h"

bl_driver_id_t bl__service_identity(const Ballast__V1__DriverIdentity *driver) {
  return driver == NULL ? (bl_driver_id_t){0} : (bl_driver_id_t){.epoch = driver->epoch, .id = driver->id};
}

void bl__service_driver_seen(bl_service_t *self, const Ballast__V1__DriverIdentity *driver) {
  if (driver != NULL && bl_driver_id_equal(bl__service_identity(driver), bl_stage_step(self->stage)->driver)) {
    bl_current_driver_seen(&self->current_driver);
    bl_stage_driven(self->stage);
  }
}
