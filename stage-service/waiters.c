// SPDX-License-Identifier: Apache-2.0
#include "waiters.h"

static void leave(bl_rpc_call_t *call, void *context) {
  bl_waiters_t *waiters = context;
  for (size_t i = 0; i < waiters->count; i++) {
    if (waiters->calls[i] == call) {
      waiters->calls[i] = waiters->calls[--waiters->count];
      break;
    }
  }
  bl_rpc_call_finish(call, BL_CANCELLED, "the caller gave up");
}

void bl_waiters_add(bl_waiters_t *waiters, bl_rpc_call_t *call) {
  if (waiters->count == BL_WAITERS) {
    bl_rpc_call_finish(call, BL_EXHAUSTED, "too many calls wait for the same work");
    return;
  }
  waiters->calls[waiters->count++] = call;
  bl_rpc_call_on_cancel(call, leave, waiters);
}

void bl_waiters_fail(bl_waiters_t *waiters, const bl_error_t *err) {
  while (waiters->count > 0) {
    bl_rpc_call_fail(waiters->calls[--waiters->count], err);
  }
}

void bl_waiters_reply(bl_waiters_t *waiters, const ProtobufCMessage *output) {
  while (waiters->count > 0) {
    bl_rpc_call_reply(waiters->calls[--waiters->count], output);
  }
}
