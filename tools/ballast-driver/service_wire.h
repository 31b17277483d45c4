// SPDX-License-Identifier: Apache-2.0
// ballast.v1.Driver over a driver: watchers, control, generation, traces.
//
// The service is made before the driver, whose observer it provides, and is given the driver once that exists.
// Thread: the loop's.
#ifndef BALLAST_DRIVER_SERVICE_WIRE_H
#define BALLAST_DRIVER_SERVICE_WIRE_H

#include "driver.h"
#include "rpc/server.h"

typedef struct bl_driver_service bl_driver_service_t;

// `run` names the run in Status; borrowed. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_driver_service_create(bl_loop_t *loop, const char *run, bl_driver_service_t **service,
                                                 bl_error_t *err);
void bl_driver_service_destroy(bl_driver_service_t *service); // after the server has stopped; NULL is fine
// Adds the service to a server that has not started.
BL_MUST_USE bl_status_t bl_driver_service_serve(bl_driver_service_t *service, bl_rpc_server_t *server, bl_error_t *err);
void bl_driver_service_set_driver(bl_driver_service_t *service, bl_driver_t *driver);

// Where the page of the run is served, "127.0.0.1:41234", for Status; borrowed; "" when it is not.
void bl_driver_service_set_page(bl_driver_service_t *service, const char *address);

// For handlers in other files: the driver, or NULL when the call has been ended (too early, too late, given up).
bl_driver_t *bl_driver_service_enter(bl_driver_service_t *service, bl_rpc_call_t *call);

// For bl_driver_options_t.observer.
void bl_driver_service_changed(void *context); // the service
// The recorder is the watcher that acknowledges what it has written. Commits wait for it, also when it has gone, for a
// while: it may be on its way back, perhaps to another driver than the one it knew.
bool bl_driver_service_may_commit(bl_driver_service_t *service, uint64_t *recorder);
// The run is over: watchers get what they have not got yet, then their streams end. Other calls are ended.
void bl_driver_service_end(bl_driver_service_t *service);

#endif
