// SPDX-License-Identifier: Apache-2.0
// Private to the files of the service ballast.v1.Stage: its state, and which file handles which method.
//
//   service_wire.c   creation, methods, destruction
//   setup_wire.c     Takeover, Configure, Connect, PreparePlan, Release
//   attempts_wire.c  Run, Commit, Abort
//   saving_wire.c    Snapshot, WriteSnapshot
//   status_wire.c    Status
//   trace_wire.c     Trace
//
// The functions of the observer answer the waiting calls. Thread: the loop's.
#ifndef BALLAST_STAGE_SERVICE_SERVICE_CORE_WIRE_H
#define BALLAST_STAGE_SERVICE_SERVICE_CORE_WIRE_H

#include "service_wire.h"

#include "current_driver.h"
#include "plan_notes_wire.h"
#include "probe_wire.h"
#include "state_wire.h"
#include "waiters.h"

#include "ballast/v1/stage.pb-c.h"

struct bl_service {
  bl_stage_t *stage;
  bl_service_stop_fn stop;
  void *context;
  bl_registry_t *registry; // NULL: no metrics
  bl_plan_notes_t notes;
  uint64_t preparing_version;
  bl_policy_proxy_t *policy_proxy; // NULL: none
  bl_waiters_t configuring, connecting, preparing, running, committing, aborting, copying, writing;
  bl_current_driver_t current_driver;
  bl_prober_t *prober;
  bl_service_ready_fn ready; // NULL: no callback
  void *ready_context;
  bool waits_for_path;
};

// service_core_wire.c
bl_driver_id_t bl__service_identity(const Ballast__V1__DriverIdentity *driver);
// Notes a call of this driver. It counts only if the stage follows this driver.
void bl__service_driver_seen(bl_service_t *self, const Ballast__V1__DriverIdentity *driver);

// setup_wire.c
void bl__handle_takeover(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);
void bl__handle_configure(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);
void bl__handle_connect(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);
void bl__handle_prepare_plan(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);
void bl__handle_release(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);
void bl__service_configured(void *context, const bl_error_t *err);
void bl__service_connected(void *context, const bl_error_t *err);
void bl__service_prepared(void *context, const bl_error_t *err);

// attempts_wire.c
void bl__handle_run(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);
void bl__handle_commit(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);
void bl__handle_abort(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);
void bl__service_ran(void *context, bl_stage_outcome_t outcome, const bl_error_t *err);
void bl__service_committed(void *context);

// saving_wire.c
void bl__handle_snapshot(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);
void bl__handle_write_snapshot(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);
void bl__service_copied(void *context);
void bl__service_written(void *context, const bl_error_t *err);

// status_wire.c
void bl__handle_status(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);

// trace_wire.c
void bl__handle_trace(bl_rpc_call_t *call, const ProtobufCMessage *input, void *context);

#endif
