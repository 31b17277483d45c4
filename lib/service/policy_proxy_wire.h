// SPDX-License-Identifier: Apache-2.0
// Relays policy calls to the driver, which owns policies (PROTOCOL.md section 3). With it a stage or store serves
// SetPolicy, GetPolicy and PolicyHistory of ballast.v1.Driver, for people who know only its address.
//
//   bl_policy_proxy_create(rpc, keep_ms, &proxy, err);
//   bl_policy_proxy_serve(proxy, server, err);                        // before the server starts
//   bl_policy_proxy_learn(proxy, run, address);                       // when a driver reports its address
//   bl_policy_proxy_destroy(proxy);                                   // after the server has stopped
//
// Thread: the loop's.
#ifndef BALLAST_SERVICE_POLICY_PROXY_WIRE_H
#define BALLAST_SERVICE_POLICY_PROXY_WIRE_H

#include "rpc/channel.h"
#include "rpc/server.h"

typedef struct bl_policy_proxy bl_policy_proxy_t;

// Maximum number of known runs. A further run replaces the one whose driver has been silent longest.
#define BL_POLICY_PROXY_RUNS 8

// A driver that has sent nothing for `keep_ms` is forgotten. 0: never.
BL_MUST_USE bl_status_t bl_policy_proxy_create(bl_rpc_t *rpc, uint64_t keep_ms, bl_policy_proxy_t **proxy,
                                               bl_error_t *err);
void bl_policy_proxy_destroy(bl_policy_proxy_t *proxy); // NULL is fine
// Fails the calls that wait for a driver, so that the server can drain.
void bl_policy_proxy_end_calls(bl_policy_proxy_t *proxy);
BL_MUST_USE bl_status_t bl_policy_proxy_serve(bl_policy_proxy_t *proxy, bl_rpc_server_t *server, bl_error_t *err);

// Records that the driver of `run` serves at `address`. "" or an invalid address is ignored.
void bl_policy_proxy_learn(bl_policy_proxy_t *proxy, const char *run, const char *address);

#endif
