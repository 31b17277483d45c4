// SPDX-License-Identifier: Apache-2.0
// Passes what is asked about policies on to the driver, which owns them (PROTOCOL.md section 3). A stage or store serves
// SetPolicy, GetPolicy and PolicyHistory of ballast.v1.Driver with this, for people who know only its address.
//
//   bl_policy_forward_create(rpc, keep_ms, &forward, err);
//   bl_policy_forward_serve(forward, server, err);                        // before the server starts
//   bl_policy_forward_learn(forward, run, address);                       // a driver says where it is
//   bl_policy_forward_destroy(forward);                                   // after the server has stopped
//
// Thread: the loop's.
#ifndef BALLAST_SERVICE_POLICY_FORWARD_WIRE_H
#define BALLAST_SERVICE_POLICY_FORWARD_WIRE_H

#include "rpc/channel.h"
#include "rpc/server.h"

typedef struct bl_policy_forward bl_policy_forward_t;

// Runs known at a time; one more takes the place of the one that was heard of longest ago.
#define BL_POLICY_FORWARD_RUNS 8

// A driver that has not been heard of for `keep_ms` is forgotten; 0: never.
BL_MUST_USE bl_status_t bl_policy_forward_create(bl_rpc_t *rpc, uint64_t keep_ms, bl_policy_forward_t **forward,
                                                 bl_error_t *err);
void bl_policy_forward_destroy(bl_policy_forward_t *forward); // NULL is fine
// Fails the calls that wait for a driver, so that the server can drain.
void bl_policy_forward_end_calls(bl_policy_forward_t *forward);
BL_MUST_USE bl_status_t bl_policy_forward_serve(bl_policy_forward_t *forward, bl_rpc_server_t *server, bl_error_t *err);

// The driver of this run serves at `address`. "" or what is no address is ignored.
void bl_policy_forward_learn(bl_policy_forward_t *forward, const char *run, const char *address);

#endif
