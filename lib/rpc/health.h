// SPDX-License-Identifier: Apache-2.0
// The standard gRPC health protocol (grpc.health.v1), server and client. Rules common to this library: rpc.h.
//
// A service answers health on a port of its own, because every port of a gRPC server serves every method, and probes
// must work in plaintext and while the control plane is busy.
#ifndef BALLAST_RPC_HEALTH_H
#define BALLAST_RPC_HEALTH_H

#include "rpc/channel.h"
#include "rpc/server.h"

// ---- server ---------------------------------------------------------------------------------------------------------

typedef struct bl_rpc_health bl_rpc_health_t;

// Maximum numbers of services that one process reports, and of watchers of all of them together. A further watcher is
// refused with RESOURCE_EXHAUSTED. The first bounds programming errors, the second a client that opens watches in a
// loop.
#define BL_RPC_HEALTH_SERVICES 16
#define BL_RPC_HEALTH_WATCHERS 256

// Creates a server that serves only health. The service named "" (the whole process) exists and is NOT_SERVING.
BL_MUST_USE bl_status_t bl_rpc_health_create(bl_rpc_t *rpc, bl_rpc_health_t **health, bl_error_t *err);
// Listens as bl_rpc_server_listen does, then serves. Once.
BL_MUST_USE bl_status_t bl_rpc_health_listen(bl_rpc_health_t *health, const char *address, char *bound,
                                             size_t bound_bytes, bl_error_t *err);
// Sets the state of the service `name`, e.g. "" or "ballast.v1.Stage", and notifies watchers. The first call with a
// name adds it. BL_EXHAUSTED: too many names, or a name that is too long (the limit is 127 bytes).
bl_status_t bl_rpc_health_set(bl_rpc_health_t *health, const char *name, bool serving);
typedef void (*bl_rpc_health_stopped_fn)(bl_rpc_health_t *health, void *context);
// Sets all services to NOT_SERVING and ends watches. `stopped` (which may destroy the object) fires once.
void bl_rpc_health_shutdown(bl_rpc_health_t *health, bl_rpc_health_stopped_fn stopped, void *context);
// Only before listen, or after `stopped` fired. NULL is fine.
void bl_rpc_health_destroy(bl_rpc_health_t *health);

// ---- client ---------------------------------------------------------------------------------------------------------

typedef enum bl_rpc_health_state {
  BL_RPC_HEALTH_SERVING,
  BL_RPC_HEALTH_NOT_SERVING,
  BL_RPC_HEALTH_UNKNOWN,     // the server answers, but has no such service
  BL_RPC_HEALTH_UNREACHABLE, // no answer: err names the cause and the address
} bl_rpc_health_state_t;
const char *bl_rpc_health_state_name(bl_rpc_health_state_t state); // "serving", "not serving", ...

// `err` has a text if state is BL_RPC_HEALTH_UNREACHABLE. Otherwise its status is BL_OK.
typedef void (*bl_rpc_health_checked_fn)(bl_rpc_health_state_t state, const bl_error_t *err, void *context);
// Checks once. `checked` fires exactly once if this returns BL_OK (at the latest in bl_rpc_channel_destroy).
BL_MUST_USE bl_status_t bl_rpc_health_check(bl_rpc_channel_t *channel, const char *service, uint64_t deadline_ms,
                                            bl_rpc_health_checked_fn checked, void *context, bl_error_t *err);

#endif
