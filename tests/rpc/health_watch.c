// SPDX-License-Identifier: Apache-2.0
#include "health_watch.h"

#include "rpc/health_wire.h"

#include "grpc/health/v1/health.pb-c.h"

static void on_message(const ProtobufCMessage *output, void *context) {
  const health_watch_t *watch = context;
  bl_error_t fine = {.status = BL_OK};
  if (watch->changed != NULL) {
    watch->changed(bl__health_read_response(output), &fine, watch->context);
  }
}

static void on_done(const ProtobufCMessage *output, const bl_error_t *err, void *context) {
  (void)output;
  health_watch_t *watch = context;
  watch->request = NULL;
  if (watch->changed != NULL) {
    watch->changed(BL_RPC_HEALTH_UNREACHABLE, err, watch->context);
  }
}

bl_status_t health_watch_start(health_watch_t *watch, bl_rpc_channel_t *channel, const char *service,
                               bl_rpc_health_checked_fn changed, void *context) {
  Grpc__Health__V1__HealthCheckRequest input = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
  input.service = (char *)service;
  *watch = (health_watch_t){.changed = changed, .context = context};
  return bl__rpc_request_start(channel, bl__health_service(), "Watch", &input.base, BL_RPC_NO_DEADLINE, on_message,
                               on_done, watch, &watch->request, NULL);
}

void health_watch_stop(health_watch_t *watch) {
  watch->changed = NULL;
  if (watch->request != NULL) {
    bl__rpc_request_cancel(watch->request);
  }
}
