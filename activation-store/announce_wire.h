// SPDX-License-Identifier: Apache-2.0
// Drivers say where they are, and the store passes on to them what it is asked about policies: it owns none.
// Thread: the loop's.
#ifndef BALLAST_STORE_ANNOUNCE_WIRE_H
#define BALLAST_STORE_ANNOUNCE_WIRE_H

#include "rpc/server.h"

// ballast.v1.Store.Announce; `forward` is a bl_policy_forward_t.
#define BL_ANNOUNCE_KEEP_MS 30000 // a driver announces itself every few seconds
void bl_announce_handle(bl_rpc_call_t *call, const ProtobufCMessage *input, void *forward);

#endif
