// SPDX-License-Identifier: Apache-2.0
// The service ballast.v1.Driver of a driver: watchers, control, generation, traces.
//
// The service is created before the driver, whose observer it provides, and gets the driver when that exists. Until
// then Status and Watch report that it is starting, Stop ends the process, policy changes and pauses wait for the
// driver, and other calls are refused.
// Thread: the loop's.
#ifndef BALLAST_DRIVER_SERVICE_WIRE_H
#define BALLAST_DRIVER_SERVICE_WIRE_H

#include "driver.h"
#include "rpc/server.h"

typedef struct bl_driver_service bl_driver_service_t;

// What is known before the driver exists; texts are borrowed.
typedef struct bl_driver_start {
  const char *run; // its name
  uint64_t steps;  // of the job
  char waiting_for[160];
  void (*stop)(void *context); // a caller requested the end of the run
  void *context;
} bl_driver_start_t;

// BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_driver_service_create(bl_loop_t *loop, const bl_driver_start_t *start,
                                                 bl_driver_service_t **service, bl_error_t *err);
void bl_driver_service_destroy(bl_driver_service_t *service); // after the server has stopped; NULL is fine
// Adds the service to a server that has not started.
BL_MUST_USE bl_status_t bl_driver_service_serve(bl_driver_service_t *service, bl_rpc_server_t *server, bl_error_t *err);
void bl_driver_service_set_driver(bl_driver_service_t *service, bl_driver_t *driver);
// Reports that there will be no driver, and why. bl_driver_service_end notifies the watchers.
void bl_driver_service_fail(bl_driver_service_t *service, const bl_error_t *err);

// Sets the address of the run's page, "127.0.0.1:41234", for Status; borrowed; "": it is not served.
void bl_driver_service_set_page(bl_driver_service_t *service, const char *address);

// For handlers in other files: returns the driver, or NULL if the call has been ended (too early, too late, cancelled).
bl_driver_t *bl_driver_service_enter(bl_driver_service_t *service, bl_rpc_call_t *call);
// The same, but also returns NULL if the call waits for the driver. It is handled when the driver exists.
bl_driver_t *bl_driver_service_wait(bl_driver_service_t *service, bl_rpc_call_t *call, const ProtobufCMessage *input,
                                    bl_rpc_handler_fn handle);

// For bl_driver_options_t.observer.
void bl_driver_service_changed(void *context); // the service
// The recorder is the watcher that acknowledges what it has written. Commits wait for it. If it has disconnected, they
// wait for a while: it may be reconnecting, perhaps after it knew another driver.
bool bl_driver_service_may_commit(bl_driver_service_t *service, uint64_t *recorder);
// The run is over: `recorded` fires once, perhaps within this call, when the recorder has acknowledged all events, has
// disconnected, or has taken too long.
void bl_driver_service_when_recorded(bl_driver_service_t *service, void (*recorded)(void *context), void *context);
// The run is over, or the process does not wait for that: the driver begins nothing any more. Watchers receive the events
// that they lack, then their streams end. Other calls are ended.
void bl_driver_service_end(bl_driver_service_t *service);

#endif
