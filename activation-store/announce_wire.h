// SPDX-License-Identifier: Apache-2.0
// Drivers announce their addresses, and the store forwards requests about policies to them. It has no policy of its
// own.
// Thread: the loop's.
#ifndef BALLAST_STORE_ANNOUNCE_WIRE_H
#define BALLAST_STORE_ANNOUNCE_WIRE_H

#include "rpc/server.h"

// ballast.v1.Store.Announce; `forward` is a bl_policy_forward_t.
#define BL_ANNOUNCE_KEEP_MS 30000 // a driver announces itself every few seconds
void bl_announce_handle(bl_rpc_call_t *call, const ProtobufCMessage *input, void *forward);

#endif
