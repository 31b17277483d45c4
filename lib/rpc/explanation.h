// SPDX-License-Identifier: Apache-2.0
// Determines why a connection failed if gRPC does not report it. The connection is tried once more on a separate thread
// (tls/probe.h) before the request reports its end.
// Thread: the loop's.
#ifndef BALLAST_RPC_EXPLANATION_H
#define BALLAST_RPC_EXPLANATION_H

#include "rpc/channel_core.h"

// Maximum number of requests that wait for an explanation. Further requests report gRPC's error.
#define BL__EXPLANATIONS_MAX 16
// Time limit of one explanation.
#define BL__EXPLANATION_MS 2000

typedef void (*bl__explained_fn)(bl__rpc_request_t *request, const bl_error_t *err);

// Starts to determine why `request` could not connect. It ended with `err`. `explained` is called later with the cause,
// or with `err` unchanged. The request must live until then. Returns false if nothing can be determined: `explained` is
// then not called.
bool bl__explanation_begin(bl__rpc_request_t *request, const bl_error_t *err, bl__explained_fn explained);
// Ends explanations in progress without calling `explained`. Calls `dropped` for each, to free its request.
void bl__explanations_end(bl_rpc_t *rpc, void (*dropped)(bl__rpc_request_t *request));

#endif
