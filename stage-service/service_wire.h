// SPDX-License-Identifier: Apache-2.0
// The gRPC service ballast.v1.Stage over a bl_stage_t: it converts calls to requests and outcomes to replies.
//
//   bl_service_create(loop, &options, stop, self, &service, err);
//   bl_rpc_server_add_service(server, &ballast__v1__stage__descriptor, ...) happens inside bl_service_serve:
//   bl_service_serve(service, server, err);
//
// Thread: the loop's.
#ifndef BALLAST_STAGE_SERVICE_SERVICE_WIRE_H
#define BALLAST_STAGE_SERVICE_SERVICE_WIRE_H

#include "observe/registry.h"
#include "rpc/server.h"
#include "service/policy_proxy_wire.h"
#include "stage.h"

typedef struct bl_service bl_service_t;
typedef void (*bl_service_stop_fn)(void *context);

// The service sets `options.observer` itself. `stop` is called when a driver asks the process to end.
BL_MUST_USE bl_status_t bl_service_create(bl_loop_t *loop, const bl_stage_options_t *options, bl_service_stop_fn stop,
                                          void *context, bl_service_t **service, bl_error_t *err);
// Relays requests about policies to the driver that the stage follows. `proxy` is borrowed.
void bl_service_set_policy_proxy(bl_service_t *service, bl_policy_proxy_t *proxy);
// Adds the service to a server that has not started.
BL_MUST_USE bl_status_t bl_service_serve(bl_service_t *service, bl_rpc_server_t *server, bl_error_t *err);
// `ready` is called with false when the stage starts to wait for a data path that its job requires, and with true when
// it has that path.
typedef void (*bl_service_ready_fn)(void *context, bool ready);
void bl_service_on_ready(bl_service_t *service, bl_service_ready_fn ready, void *context);
// Counts events in `registry` (meter.h) from now on; borrowed.
void bl_service_set_registry(bl_service_t *service, bl_registry_t *registry);
void bl_service_collect(const bl_service_t *service); // brings the registry up to date
// Fails every waiting call, so that the server can drain.
void bl_service_end_calls(bl_service_t *service);
// Call it after the server has stopped. NULL is fine.
void bl_service_destroy(bl_service_t *service);

#endif
