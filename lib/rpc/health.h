// SPDX-License-Identifier: Apache-2.0
// The standard gRPC health protocol (grpc.health.v1), server and client. Rules common to this library: rpc.h.
//
// A service answers health on a port of its own, because every port of a gRPC server serves every method, and probes
// must work in plaintext and while the control plane is busy.
#ifndef BALLAST_RPC_HEALTH_H
#define BALLAST_RPC_HEALTH_H

#include "rpc/channel.h"
#include "rpc/server.h"

// ---- server --------------------------------------------------------------------------------------------------------

typedef struct bl_rpc_health bl_rpc_health_t;

// Services that one process reports, and watchers of all of them together, at most; a watcher too many is refused with
// RESOURCE_EXHAUSTED. The first bounds programming errors, the second a client that opens watches in a loop.
#define BL_RPC_HEALTH_SERVICES 16
#define BL_RPC_HEALTH_WATCHERS 256

// A server that serves only health. The service named "" (the whole process) exists and is NOT_SERVING.
BL_MUST_USE bl_status_t bl_rpc_health_create(bl_rpc_t *rpc, bl_rpc_health_t **health, bl_error_t *err);
// As bl_rpc_server_listen, then starts to serve. Once.
BL_MUST_USE bl_status_t bl_rpc_health_listen(bl_rpc_health_t *health, const char *address, char *bound,
                                             size_t bound_bytes, bl_error_t *err);
// Sets what is answered for the service `name`, e.g. "" or "ballast.v1.Stage", and tells watchers. A name is known from its
// first mention on. BL_EXHAUSTED: too many names, or too long a name (127 bytes).
bl_status_t bl_rpc_health_set(bl_rpc_health_t *health, const char *name, bool serving);
typedef void (*bl_rpc_health_stopped_fn)(bl_rpc_health_t *health, void *context);
// Everything becomes NOT_SERVING, watches end. `stopped` (may destroy it) fires once.
void bl_rpc_health_shutdown(bl_rpc_health_t *health, bl_rpc_health_stopped_fn stopped, void *context);
// Only before listen, or once stopped. NULL is fine.
void bl_rpc_health_destroy(bl_rpc_health_t *health);

// ---- client --------------------------------------------------------------------------------------------------------

typedef enum bl_rpc_health_state {
  BL_RPC_HEALTH_SERVING,
  BL_RPC_HEALTH_NOT_SERVING,
  BL_RPC_HEALTH_UNKNOWN,     // it is there, but knows no such service
  BL_RPC_HEALTH_UNREACHABLE, // nobody answers: err says why and names the address
} bl_rpc_health_state_t;
const char *bl_rpc_health_state_name(bl_rpc_health_state_t state); // "serving", "not serving", ...

// `err` has a text where state is BL_RPC_HEALTH_UNREACHABLE; status BL_OK otherwise.
typedef void (*bl_rpc_health_checked_fn)(bl_rpc_health_state_t state, const bl_error_t *err, void *context);
// Asks once. Fires exactly once when BL_OK is returned (by bl_rpc_channel_destroy at the latest).
BL_MUST_USE bl_status_t bl_rpc_health_check(bl_rpc_channel_t *channel, const char *service, uint64_t deadline_ms,
                                            bl_rpc_health_checked_fn checked, void *context, bl_error_t *err);

#endif
