// SPDX-License-Identifier: Apache-2.0
// An echo service on gRPC C core alone: the baseline with which `ballast-bench rpc` compares lib/rpc. It has no
// protobuf, no loop and no second thread per side.
//
// Thread: start and stop on one thread; the server runs in its own thread; a run belongs to its caller.
#ifndef BALLAST_BENCH_BARE_RPC_ECHO_H
#define BALLAST_BENCH_BARE_RPC_ECHO_H

#include "base/status.h"

#include <stddef.h>

typedef struct bl_bare_server bl_bare_server_t;

// Starts a server for `method` ("/package.Service/Method") on a free port of 127.0.0.1. It returns every message to its
// sender. BL_UNAVAILABLE.
BL_MUST_USE bl_status_t bl_bare_server_start(const char *method, bl_bare_server_t **server);
void bl_bare_server_stop(bl_bare_server_t *server);
int bl_bare_server_port(const bl_bare_server_t *server);

typedef struct bl_bare_client bl_bare_client_t;

BL_MUST_USE bl_status_t bl_bare_client_create(int port, const char *method, bl_bare_client_t **client);
void bl_bare_client_destroy(bl_bare_client_t *client);
// Makes `calls` calls with `bytes` [size_bytes], with `in_flight` (1 to BL_BARE_IN_FLIGHT_MAX) calls at any time.
// BL_UNAVAILABLE if one fails.
#define BL_BARE_IN_FLIGHT_MAX 256
#define BL_BARE_DEADLINE_MS   10000 // of each call, because real calls have a deadline
BL_MUST_USE bl_status_t bl_bare_client_run(bl_bare_client_t *client, const void *bytes, size_t size_bytes,
                                           unsigned in_flight, unsigned calls);

#endif
