// SPDX-License-Identifier: Apache-2.0
#include "service_core_wire.h"

bool bl__refuse_early(bl_driver_service_t *service, bl_rpc_call_t *call) {
  if (bl_rpc_call_is_cancelled(call)) {
    bl_rpc_call_finish(call, BL_CANCELLED, "the caller has gone");
    return true;
  }
  if (service->driver != NULL && !service->ended) {
    return false;
  }
  bl_rpc_call_finish(call, BL_PRECONDITION, service->ended ? "the run has ended" : "the driver is starting");
  return true;
}

bl_driver_t *bl_driver_service_enter(bl_driver_service_t *service, bl_rpc_call_t *call) {
  return bl__refuse_early(service, call) ? NULL : service->driver;
}
