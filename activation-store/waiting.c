// SPDX-License-Identifier: Apache-2.0
#include "waiting.h"

static bl_rpc_call_t *take(bl_waiting_t *waiting, unsigned index) {
  bl_rpc_call_t *call = waiting->calls[index].call;
  waiting->calls[index] = waiting->calls[--waiting->count];
  bl_rpc_call_on_cancel(call, NULL, NULL);
  return call;
}

static void leave(bl_rpc_call_t *call, void *context) {
  bl_waiting_t *waiting = context;
  for (unsigned i = 0; i < waiting->count; i++) {
    if (waiting->calls[i].call == call) {
      waiting->calls[i] = waiting->calls[--waiting->count];
      break;
    }
  }
  bl_rpc_call_finish(call, BL_CANCELLED, "the caller gave up");
}

void bl_waiting_add(bl_waiting_t *waiting, const bl_waiting_call_t *call) {
  if (waiting->count == BL_WAITING_CALLS) {
    bl_rpc_call_finish(call->call, BL_EXHAUSTED, "too many calls wait for the store");
    return;
  }
  waiting->calls[waiting->count++] = *call;
  bl_rpc_call_on_cancel(call->call, leave, waiting);
}

bool bl_waiting_take(bl_waiting_t *waiting, uint64_t session, uint64_t sequence, bl_waiting_call_t *call) {
  for (unsigned i = 0; i < waiting->count; i++) {
    if (waiting->calls[i].session == session && waiting->calls[i].sequence == sequence) {
      *call = waiting->calls[i];
      (void)take(waiting, i);
      return true;
    }
  }
  return false;
}

bl_rpc_call_t *bl_waiting_take_job(bl_waiting_t *waiting, uint32_t job, uint64_t *session) {
  for (unsigned i = 0; i < waiting->count; i++) {
    if (waiting->calls[i].sequence == 0 && waiting->calls[i].job == job) {
      *session = waiting->calls[i].session;
      return take(waiting, i);
    }
  }
  return NULL;
}

void bl_waiting_fail(bl_waiting_t *waiting, uint64_t session, const bl_error_t *err) {
  for (unsigned i = 0; i < waiting->count;) {
    if (session == 0 || waiting->calls[i].session == session) {
      bl_rpc_call_fail(take(waiting, i), err);
    } else {
      i++;
    }
  }
}
