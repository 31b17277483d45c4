// SPDX-License-Identifier: Apache-2.0
// A watcher of grpc.health.v1 as a balancer or an orchestrator is one, for tests of the server.
#ifndef BALLAST_TESTS_RPC_HEALTH_WATCH_H
#define BALLAST_TESTS_RPC_HEALTH_WATCH_H

#include "rpc/health.h"
#include "rpc/request.h"

typedef struct health_watch {
  bl__rpc_request_t *request; // NULL: over
  bl_rpc_health_checked_fn changed;
  void *context;
} health_watch_t;

// `changed` fires for every message, and with BL_RPC_HEALTH_UNREACHABLE and the cause at the end.
bl_status_t health_watch_start(health_watch_t *watch, bl_rpc_channel_t *channel, const char *service,
                               bl_rpc_health_checked_fn changed, void *context);
// Nothing fires afterwards. The watch must stay until its request has ended: turn the loop.
void health_watch_stop(health_watch_t *watch);

#endif
