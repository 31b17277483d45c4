// SPDX-License-Identifier: Apache-2.0
// ballast.v1.Driver over a driver: watchers, control, generation, traces.
//
// The service is made before the driver, whose observer it provides, and is given the driver once that exists. Until then
// Status and Watch say that it is starting, Stop ends the process, changes of the policy and pauses wait for the driver,
// and other calls are refused.
// Thread: the loop's.
#ifndef BALLAST_DRIVER_SERVICE_WIRE_H
#define BALLAST_DRIVER_SERVICE_WIRE_H

#include "driver.h"
#include "rpc/server.h"

typedef struct bl_driver_service bl_driver_service_t;

// What is known before there is a driver; texts are borrowed.
typedef struct bl_driver_start {
  const char *run; // its name
  uint64_t steps;  // of the job
  char waiting_for[160];
  void (*stop)(void *context); // somebody told the run to end
  void *context;
} bl_driver_start_t;

// BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_driver_service_create(bl_loop_t *loop, const bl_driver_start_t *start,
                                                 bl_driver_service_t **service, bl_error_t *err);
void bl_driver_service_destroy(bl_driver_service_t *service); // after the server has stopped; NULL is fine
// Adds the service to a server that has not started.
BL_MUST_USE bl_status_t bl_driver_service_serve(bl_driver_service_t *service, bl_rpc_server_t *server, bl_error_t *err);
void bl_driver_service_set_driver(bl_driver_service_t *service, bl_driver_t *driver);
// There will be no driver, and why: watchers are told by bl_driver_service_end.
void bl_driver_service_fail(bl_driver_service_t *service, const bl_error_t *err);

// Where the page of the run is served, "127.0.0.1:41234", for Status; borrowed; "" when it is not.
void bl_driver_service_set_page(bl_driver_service_t *service, const char *address);

// For handlers in other files: the driver, or NULL when the call has been ended (too early, too late, given up).
bl_driver_t *bl_driver_service_enter(bl_driver_service_t *service, bl_rpc_call_t *call);
// The same, but NULL, too, when the call waits for the driver: it is handled anew once there is one.
bl_driver_t *bl_driver_service_wait(bl_driver_service_t *service, bl_rpc_call_t *call, const ProtobufCMessage *input,
                                    bl_rpc_handler_fn handle);

// For bl_driver_options_t.observer.
void bl_driver_service_changed(void *context); // the service
// The recorder is the watcher that acknowledges what it has written. Commits wait for it, also when it has gone, for a
// while: it may be on its way back, perhaps to another driver than the one it knew.
bool bl_driver_service_may_commit(bl_driver_service_t *service, uint64_t *recorder);
// The run is over: `recorded` fires, perhaps from within this call, when the recorder has acknowledged all there is to
// tell, has gone, or has taken too long. Once.
void bl_driver_service_when_recorded(bl_driver_service_t *service, void (*recorded)(void *context), void *context);
// The run is over: watchers get what they have not got yet, then their streams end. Other calls are ended.
void bl_driver_service_end(bl_driver_service_t *service);

#endif
