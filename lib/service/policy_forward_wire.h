// SPDX-License-Identifier: Apache-2.0
// Forwards policy calls to the driver, which owns policies (PROTOCOL.md section 3). With it a stage or store serves
// SetPolicy, GetPolicy and PolicyHistory of ballast.v1.Driver, for people who know only its address.
//
//   bl_policy_forward_create(rpc, keep_ms, &forward, err);
//   bl_policy_forward_serve(forward, server, err);                        // before the server starts
//   bl_policy_forward_learn(forward, run, address);                       // when a driver reports its address
//   bl_policy_forward_destroy(forward);                                   // after the server has stopped
//
// Thread: the loop's.
#ifndef BALLAST_SERVICE_POLICY_FORWARD_WIRE_H
#define BALLAST_SERVICE_POLICY_FORWARD_WIRE_H

#include "rpc/channel.h"
#include "rpc/server.h"

typedef struct bl_policy_forward bl_policy_forward_t;

// Maximum number of known runs. A further run replaces the one whose driver has been silent longest.
#define BL_POLICY_FORWARD_RUNS 8

// A driver that has sent nothing for `keep_ms` is forgotten. 0: never.
BL_MUST_USE bl_status_t bl_policy_forward_create(bl_rpc_t *rpc, uint64_t keep_ms, bl_policy_forward_t **forward,
                                                 bl_error_t *err);
void bl_policy_forward_destroy(bl_policy_forward_t *forward); // NULL is fine
// Fails the calls that wait for a driver, so that the server can drain.
void bl_policy_forward_end_calls(bl_policy_forward_t *forward);
BL_MUST_USE bl_status_t bl_policy_forward_serve(bl_policy_forward_t *forward, bl_rpc_server_t *server, bl_error_t *err);

// Records that the driver of `run` serves at `address`. "" or an invalid address is ignored.
void bl_policy_forward_learn(bl_policy_forward_t *forward, const char *run, const char *address);

#endif
