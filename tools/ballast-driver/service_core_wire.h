// SPDX-License-Identifier: Apache-2.0
// Private to the service ballast.v1.Driver: the state that its files share, and what each file does.
//
//   service_wire.c       creation, methods, the end
//   service_gate_wire.c  which calls are served
//   watching_wire.c      Watch, Acknowledge; whether a commit waits for the recorder
//   status_wire.c        Status
//   control_wire.c       Pause, Checkpoint, Stop
//   generating_wire.c    Generate
//   tracing_wire.c       Trace
//   policy_wire.c        SetPolicy, GetPolicy, PolicyHistory
//
// Thread: the loop's.
#ifndef BALLAST_DRIVER_SERVICE_CORE_WIRE_H
#define BALLAST_DRIVER_SERVICE_CORE_WIRE_H

#include "service_wire.h"

#include "loop/timer.h"

#include "ballast/v1/driver.pb-c.h"

#include <sys/queue.h>

// A call that waits for the driver.
typedef struct bl__waiting {
  bl_rpc_call_t *call;
  const ProtobufCMessage *input; // valid until the call ends
  bl_rpc_handler_fn handle;
} bl__waiting_t;
#define BL__WAITING_MAX 64 // bounds what callers can queue during a search

struct bl_driver_service {
  bl_driver_start_t start;
  uint64_t began_ns;
  bl_error_t failure; // why there will be no driver
  bl__waiting_t waits[BL__WAITING_MAX];
  size_t wait_count;
  const char *page; // address; NULL or "": none
  bl_driver_t *driver;
  LIST_HEAD(, bl__watcher) watchers;
  struct bl__text_stream *text; // at most one is generated at a time
  uint64_t seen, last_step;     // revisions
  uint64_t recorder;            // whose acknowledgement commits wait for; 0: none
  bl_timer_t *recorder_timer;   // runs while the recorder is away and a commit or the end waits for it
  bool recorder_known;          // false: read it from the last commit
  bool waiting, ended;
  void (*recorded)(void *context); // for an end that waits for the recorder; NULL: none waits
  void *recorded_context;
};

// service_gate_wire.c
// Ends calls that cannot be served: too early, too late, or cancelled before they were read. Returns true if it ended
// one.
bool bl__refuse_early(bl_driver_service_t *service, bl_rpc_call_t *call);
// The same for calls that a driver answers at its first boundary: before there is a driver they wait, and are handled
// when it exists.
bool bl__wait_early(bl_driver_service_t *service, bl_rpc_call_t *call, const ProtobufCMessage *input,
                    bl_rpc_handler_fn handle);
// Handles the calls that waited. Without a driver their handlers refuse them.
void bl__waits_end(bl_driver_service_t *service);

// watching_wire.c
void bl__handle_watch(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);
void bl__handle_acknowledge(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);
void bl__recorder_took_too_long(bl_timer_t *timer, void *context); // of service->recorder_timer

// status_wire.c
void bl__handle_status(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);

// control_wire.c
void bl__handle_pause(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);
void bl__handle_checkpoint(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);
void bl__handle_stop(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);

// generating_wire.c
void bl__handle_generate(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);

// policy_wire.c
void bl__handle_set_policy(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);
void bl__handle_get_policy(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);
void bl__handle_policy_history(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);

// tracing_wire.c
void bl__handle_trace(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);

#endif
