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

bool bl__wait_early(bl_driver_service_t *service, bl_rpc_call_t *call, const ProtobufCMessage *input,
                    bl_rpc_handler_fn handle) {
  if (service->driver != NULL || service->ended || service->wait_count == BL__WAITING_MAX) {
    return bl__refuse_early(service, call);
  }
  service->waits[service->wait_count++] = (bl__waiting_t){call, input, handle};
  return true;
}

void bl__waits_end(bl_driver_service_t *service) {
  const size_t count = service->wait_count;
  service->wait_count = 0;
  for (size_t i = 0; i < count; i++) {
    service->waits[i].handle(service->waits[i].call, service->waits[i].input, service);
  }
}

bl_driver_t *bl_driver_service_enter(bl_driver_service_t *service, bl_rpc_call_t *call) {
  return bl__refuse_early(service, call) ? NULL : service->driver;
}

bl_driver_t *bl_driver_service_wait(bl_driver_service_t *service, bl_rpc_call_t *call, const ProtobufCMessage *input,
                                    bl_rpc_handler_fn handle) {
  return bl__wait_early(service, call, input, handle) ? NULL : service->driver;
}
