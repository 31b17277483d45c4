// SPDX-License-Identifier: Apache-2.0
#include "pending_calls.h"

static bl_rpc_call_t *take(bl_pending_calls_t *pending, unsigned index) {
  bl_rpc_call_t *call = pending->calls[index].call;
  pending->calls[index] = pending->calls[--pending->count];
  bl_rpc_call_on_cancel(call, NULL, NULL);
  return call;
}

static void leave(bl_rpc_call_t *call, void *context) {
  bl_pending_calls_t *pending = context;
  for (unsigned i = 0; i < pending->count; i++) {
    if (pending->calls[i].call == call) {
      pending->calls[i] = pending->calls[--pending->count];
      break;
    }
  }
  bl_rpc_call_finish(call, BL_CANCELLED, "the caller gave up");
}

void bl_pending_add(bl_pending_calls_t *pending, const bl_pending_call_t *call) {
  if (pending->count == BL_PENDING_CALLS_MAX) {
    bl_rpc_call_finish(call->call, BL_EXHAUSTED, "too many calls wait for the store");
    return;
  }
  pending->calls[pending->count++] = *call;
  bl_rpc_call_on_cancel(call->call, leave, pending);
}

bool bl_pending_take(bl_pending_calls_t *pending, uint64_t session, uint64_t sequence, bl_pending_call_t *call) {
  for (unsigned i = 0; i < pending->count; i++) {
    if (pending->calls[i].session == session && pending->calls[i].sequence == sequence) {
      *call = pending->calls[i];
      (void)take(pending, i);
      return true;
    }
  }
  return false;
}

bl_rpc_call_t *bl_pending_take_job(bl_pending_calls_t *pending, uint32_t job, uint64_t *session) {
  for (unsigned i = 0; i < pending->count; i++) {
    if (pending->calls[i].sequence == 0 && pending->calls[i].job == job) {
      *session = pending->calls[i].session;
      return take(pending, i);
    }
  }
  return NULL;
}

void bl_pending_fail(bl_pending_calls_t *pending, uint64_t session, const bl_error_t *err) {
  for (unsigned i = 0; i < pending->count;) {
    if (session == 0 || pending->calls[i].session == session) {
      bl_rpc_call_fail(take(pending, i), err);
    } else {
      i++;
    }
  }
}
