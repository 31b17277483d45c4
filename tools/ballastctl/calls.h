// SPDX-License-Identifier: Apache-2.0
// Remote calls that a command makes and waits for: a loop, an rpc on it, and the number of calls in flight.
//
//   status = bl_ctl_calls_init(&calls, err);
//   ... a channel on calls.rpc, a call on it, calls.open++; the call's last callback: bl_ctl_calls_ended(&calls)
//   bl_ctl_calls_wait(&calls);
//   ... the channel is destroyed
//   bl_ctl_calls_cleanup(&calls);
//
// Thread: the command's, which blocks while it waits.
#ifndef BALLAST_BALLASTCTL_CALLS_H
#define BALLAST_BALLASTCTL_CALLS_H

#include "rpc/rpc.h"

typedef struct bl_ctl_calls {
  bl_loop_t *loop;
  bl_rpc_t *rpc;
  size_t open; // calls that have neither succeeded nor finally failed
} bl_ctl_calls_t;

BL_MUST_USE bl_status_t bl_ctl_calls_init(bl_ctl_calls_t *calls, bl_error_t *err);
void bl_ctl_calls_cleanup(bl_ctl_calls_t *calls); // a zeroed one is fine, also after a failed init
void bl_ctl_calls_ended(bl_ctl_calls_t *calls);   // call once for each call that ends
void bl_ctl_calls_wait(bl_ctl_calls_t *calls);    // until none is open

#endif
