// SPDX-License-Identifier: Apache-2.0
// Calls that are answered later: those of a session's request, or those that wait for the arena of a job. If a caller
// cancels, its call is removed; the request continues.
// Thread: the loop's.
#ifndef BALLAST_ACTIVATION_STORE_WAITING_H
#define BALLAST_ACTIVATION_STORE_WAITING_H

#include "rpc/server.h"

#define BL_WAITING_CALLS 1024 // as many as the server serves at a time

typedef struct bl_waiting_call {
  bl_rpc_call_t *call;
  uint64_t session, sequence; // sequence 0: waits for the arena of the session's job
  uint32_t job;
  int kind;          // for the code that keeps the call
  uint64_t began_ns; // for the code that keeps the call
} bl_waiting_call_t;

typedef struct bl_waiting {
  bl_waiting_call_t calls[BL_WAITING_CALLS];
  unsigned count;
} bl_waiting_t;

// Keeps the call. If there are too many, finishes it with BL_EXHAUSTED.
void bl_waiting_add(bl_waiting_t *waiting, const bl_waiting_call_t *call);
// Takes out one call that waits for the request. False: there is none (any more).
bool bl_waiting_take(bl_waiting_t *waiting, uint64_t session, uint64_t sequence, bl_waiting_call_t *call);
// Takes out one call that waits for the arena of the job. NULL: there is none (any more).
bl_rpc_call_t *bl_waiting_take_job(bl_waiting_t *waiting, uint32_t job, uint64_t *session);
// Fails all calls of a session; with session 0, all calls.
void bl_waiting_fail(bl_waiting_t *waiting, uint64_t session, const bl_error_t *err);

#endif
