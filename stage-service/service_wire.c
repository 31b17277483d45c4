// SPDX-License-Identifier: Apache-2.0
#include "service_core_wire.h"

#include "meter.h"

#include <stdlib.h>

static void handle_probe(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  const bl_service_t *self = context;
  bl_prober_handle(self->prober, call, input);
}

static void handle_stop(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context) {
  bl_service_t *self = context;
  const Ballast__V1__StageStopRequest *request = (const Ballast__V1__StageStopRequest *)input;
  bl_error_t err = {0};
  if (bl_stage_check(self->stage, bl__service_identity(request->driver), &err) == BL_STAGE_REFUSE) {
    bl_rpc_call_fail(call, &err);
    return;
  }
  Ballast__V1__StageStopResponse output = BALLAST__V1__STAGE_STOP_RESPONSE__INIT;
  bl_rpc_call_reply(call, &output.base);
  self->stop(self->context);
}

static const bl_rpc_method_t methods[] = {
    {"Takeover", bl__handle_takeover}, {"Configure", bl__handle_configure},
    {"Connect", bl__handle_connect},   {"PreparePlan", bl__handle_prepare_plan},
    {"Run", bl__handle_run},           {"Commit", bl__handle_commit},
    {"Abort", bl__handle_abort},       {"Status", bl__handle_status},
    {"Trace", bl__handle_trace},       {"Probe", handle_probe},
    {"Release", bl__handle_release},   {"Stop", handle_stop},
    {"Snapshot", bl__handle_snapshot}, {"WriteSnapshot", bl__handle_write_snapshot},
};

bl_status_t bl_service_create(bl_loop_t *loop, const bl_stage_options_t *options, bl_service_stop_fn stop,
                              void *context, bl_service_t **service, bl_error_t *err) {
  bl_service_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the service");
  }
  made->stop = stop;
  made->context = context;
  bl_stage_options_t observed = *options;
  observed.observer = (bl_stage_observer_t){.context = made,
                                            .configured = bl__service_configured,
                                            .connected = bl__service_connected,
                                            .prepared = bl__service_prepared,
                                            .ran = bl__service_ran,
                                            .committed = bl__service_committed,
                                            .copied = bl__service_copied,
                                            .written = bl__service_written};
  bl_status_t status = bl_stage_create(loop, &observed, &made->stage, err);
  if (status == BL_OK) {
    status = bl_prober_create(loop, options, bl_stage_transfer(made->stage), &made->prober, err);
  }
  if (status != BL_OK) {
    bl_stage_destroy(made->stage);
    free(made);
    return status;
  }
  *service = made;
  return BL_OK;
}

bl_status_t bl_service_serve(bl_service_t *service, bl_rpc_server_t *server, bl_error_t *err) {
  return bl_rpc_server_add_service(server, &ballast__v1__stage__descriptor, methods, sizeof methods / sizeof methods[0],
                                   service, err);
}

void bl_service_set_policy_proxy(bl_service_t *service, bl_policy_proxy_t *proxy) {
  service->policy_proxy = proxy;
}

void bl_service_on_ready(bl_service_t *service, bl_service_ready_fn ready, void *context) {
  service->ready = ready;
  service->ready_context = context;
}

void bl_service_set_registry(bl_service_t *service, bl_registry_t *registry) {
  service->registry = registry;
}

void bl_service_collect(const bl_service_t *service) {
  bl_meter_collect(service->registry, service->stage);
}

void bl_service_end_calls(bl_service_t *service) {
  bl_error_t err = {0};
  (void)bl_error_set(&err, BL_UNAVAILABLE, "the stage is ending");
  bl_waiters_t *all[] = {&service->configuring, &service->connecting, &service->preparing, &service->running,
                         &service->committing,  &service->aborting,   &service->copying,   &service->writing};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    bl_waiters_fail(all[i], &err);
  }
}

void bl_service_destroy(bl_service_t *service) {
  if (service == NULL) {
    return;
  }
  bl_prober_destroy(service->prober);
  bl_stage_destroy(service->stage);
  bl_plan_notes_cleanup(&service->notes);
  free(service);
}
