// SPDX-License-Identifier: Apache-2.0
// Why a connection could not be made where gRPC does not say it: tried out once more, on a thread of its own
// (tls/probe.h), before the request is told its end.
// Thread: the loop's.
#ifndef BALLAST_RPC_EXPLANATION_H
#define BALLAST_RPC_EXPLANATION_H

#include "rpc/channel_core.h"

// Requests that wait for an explanation at a time; more are told what gRPC says.
#define BL__EXPLANATIONS_MAX 16
// How long one may take.
#define BL__EXPLANATION_MS 2000

typedef void (*bl__explained_fn)(bl_rpc_request_t *request, const bl_error_t *err);

// Begins to find out why `request` could not connect, which ended with `err`. `explained` is called later with the cause,
// or with `err` as it is; the request stays until then. False: nothing can be found out, and it will not be called.
bool bl__explanation_begin(bl_rpc_request_t *request, const bl_error_t *err, bl__explained_fn explained);
// Ends those under way without telling anybody: `dropped` is called for each, to free the request.
void bl__explanations_end(bl_rpc_t *rpc, void (*dropped)(bl_rpc_request_t *request));

#endif
