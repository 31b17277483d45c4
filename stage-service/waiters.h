// SPDX-License-Identifier: Apache-2.0
// Calls that wait for the same piece of work. A caller that cancels leaves the list; the work continues.
//
// Thread: the loop's.
#ifndef BALLAST_STAGE_SERVICE_WAITERS_H
#define BALLAST_STAGE_SERVICE_WAITERS_H

#include "rpc/server.h"

#include <stddef.h>

#define BL_WAITERS 8 // the driver, its successor, and repeated calls of each; bounds a client that calls in a loop

typedef struct bl_waiters {
  bl_rpc_call_t *calls[BL_WAITERS];
  size_t count;
} bl_waiters_t;

// Keeps the call. If there are too many, finishes it with BL_EXHAUSTED.
void bl_waiters_add(bl_waiters_t *waiters, bl_rpc_call_t *call);
// Finishes all with err's status and text.
void bl_waiters_fail(bl_waiters_t *waiters, const bl_error_t *err);
// Replies to all.
void bl_waiters_reply(bl_waiters_t *waiters, const ProtobufCMessage *output);

#endif
