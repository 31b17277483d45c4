// SPDX-License-Identifier: Apache-2.0
// Calls that are answered later: those of a session's request, or those that wait for the arena of a job. If a caller
// cancels, its call is removed; the request continues.
// Thread: the loop's.
#ifndef BALLAST_ACTIVATION_STORE_PENDING_CALLS_H
#define BALLAST_ACTIVATION_STORE_PENDING_CALLS_H

#include "rpc/server.h"

#define BL_PENDING_CALLS_MAX 1024 // as many as the server serves at a time

typedef struct bl_pending_call {
  bl_rpc_call_t *call;
  uint64_t session, sequence; // sequence 0: waits for the arena of the session's job
  uint32_t job;
  int kind;          // for the code that keeps the call
  uint64_t began_ns; // for the code that keeps the call
} bl_pending_call_t;

typedef struct bl_pending_calls {
  bl_pending_call_t calls[BL_PENDING_CALLS_MAX];
  unsigned count;
} bl_pending_calls_t;

// Keeps the call. If there are too many, finishes it with BL_EXHAUSTED.
void bl_pending_add(bl_pending_calls_t *pending, const bl_pending_call_t *call);
// Takes out one call that waits for the request. False: there is none (any more).
bool bl_pending_take(bl_pending_calls_t *pending, uint64_t session, uint64_t sequence, bl_pending_call_t *call);
// Takes out one call that waits for the arena of the job. NULL: there is none (any more).
bl_rpc_call_t *bl_pending_take_job(bl_pending_calls_t *pending, uint32_t job, uint64_t *session);
// Fails all calls of a session; with session 0, all calls.
void bl_pending_fail(bl_pending_calls_t *pending, uint64_t session, const bl_error_t *err);

#endif
