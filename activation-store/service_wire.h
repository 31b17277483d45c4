// SPDX-License-Identifier: Apache-2.0
// The gRPC service ballast.v1.Store over a bl_store_t: turns calls into requests and answers into replies.
// Thread: the loop's.
#ifndef BALLAST_ACTIVATION_STORE_SERVICE_WIRE_H
#define BALLAST_ACTIVATION_STORE_SERVICE_WIRE_H

#include "admin_wire.h"
#include "observe/registry.h"
#include "rpc/server.h"
#include "service/policy_proxy_wire.h"
#include "store.h"

typedef struct bl_service bl_service_t;

// The service ignores `options.observer` and installs its own.
BL_MUST_USE bl_status_t bl_service_create(bl_loop_t *loop, const bl_store_options_t *options, bl_service_t **out,
                                          bl_error_t *err);
// Sets what relays policy calls to drivers that call Announce; borrowed. Call it before serve.
void bl_service_set_policy_proxy(bl_service_t *self, bl_policy_proxy_t *proxy);
// Adds the service to a server that has not started.
BL_MUST_USE bl_status_t bl_service_serve(bl_service_t *self, bl_rpc_server_t *server, bl_error_t *err);
bl_store_t *bl_service_store(bl_service_t *self);
// Sets the callback that reports to probes that the store drains. Call it before serve.
void bl_service_set_on_drain(bl_service_t *self, bl_admin_on_drain_t *on_drain, void *context);
// Sends metrics to `registry` (meter.h) from now on; borrowed.
void bl_service_set_registry(bl_service_t *self, bl_registry_t *registry);
// Fails every waiting call and ends every watch, so that the server can drain.
void bl_service_end_calls(bl_service_t *self);
// Call it after the server has stopped. NULL is fine.
void bl_service_destroy(bl_service_t *self);

#endif
