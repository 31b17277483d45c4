// SPDX-License-Identifier: Apache-2.0
// Drivers announce their addresses, and the store relays requests about policies to them. It has no policy of its own.
// Thread: the loop's.
#ifndef BALLAST_ACTIVATION_STORE_ANNOUNCE_WIRE_H
#define BALLAST_ACTIVATION_STORE_ANNOUNCE_WIRE_H

#include "rpc/server.h"
#include "service/policy_proxy_wire.h"

#define BL_ANNOUNCE_KEEP_MS 30000 // a driver is forgotten after that time; it announces itself every few seconds

// Handles ballast.v1.Store.Announce.
void bl_announce_handle(bl_rpc_call_t *call, const ProtobufCMessage *input, bl_policy_proxy_t *proxy);

#endif
