// SPDX-License-Identifier: Apache-2.0
#include "service_core_wire.h"

#include "sys/log.h"

// A pause stays in force if its client cancels the call. The call waits for the end, and the answer is dropped.
static void paused(uint64_t step, void *context) {
  bl_rpc_call_t *call = context;
  Ballast__V1__PauseResponse output = BALLAST__V1__PAUSE_RESPONSE__INIT;
  output.step = step;
  bl_rpc_call_reply(call, &output.base);
}

void bl__handle_pause(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_driver_service_t *service = context;
  const Ballast__V1__PauseRequest *request = (const Ballast__V1__PauseRequest *)input;
  if (!bl__wait_early(service, call, input, bl__handle_pause)) {
    bl_driver_pause(service->driver, request->paused, paused, call);
  }
}

// As a pause: the checkpoint is taken even if its client cancels the call.
static void saved(uint64_t step, const char *folder, const bl_error_t *err, void *context) {
  bl_rpc_call_t *call = context;
  if (err->status != BL_OK) {
    bl_rpc_call_fail(call, err);
    return;
  }
  Ballast__V1__CheckpointResponse output = BALLAST__V1__CHECKPOINT_RESPONSE__INIT;
  output.step = step;
  output.folder = (char *)folder;
  bl_rpc_call_reply(call, &output.base);
}

void bl__handle_checkpoint(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  (void)input;
  bl_driver_service_t *service = context;
  bl_error_t err;
  if (!bl__refuse_early(service, call) && bl_driver_checkpoint(service->driver, saved, call, &err) != BL_OK) {
    bl_rpc_call_fail(call, &err);
  }
}

void bl__handle_stop(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  (void)input;
  bl_driver_service_t *service = context;
  const bool starting = service->driver == NULL && !service->ended;
  if (!starting && bl__refuse_early(service, call)) {
    return;
  }
  Ballast__V1__DriverStopResponse output = BALLAST__V1__DRIVER_STOP_RESPONSE__INIT;
  bl_rpc_call_reply(call, &output.base);
  if (starting) {
    service->start.stop(service->start.context);
  } else {
    bl_log(BL_LOG_INFO, "ending after this step: stop requested");
    bl_driver_stop(service->driver);
  }
}
