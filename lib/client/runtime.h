// SPDX-License-Identifier: Apache-2.0
// What the clients of a process share: one thread with an event loop that does all of their work, and the remote calls
// on it. A process with many sessions needs as many threads for them as one with a single session.
//
//   bl_client_runtime_create(NULL, &runtime, err);
//   bl_client_open_start(&(bl_client_options_t){.runtime = runtime, ...}, NULL, 0, opened, &client, err);
//   ... bl_client_close_start(client, closed, self) ...
//   bl_client_runtime_wait(runtime);        // closed clients touch no memory any more
//   bl_client_runtime_destroy(runtime);
//
// Thread: any but the runtime's own.
#ifndef BALLAST_CLIENT_RUNTIME_H
#define BALLAST_CLIENT_RUNTIME_H

#include "base/error.h"

typedef struct bl_client_runtime bl_client_runtime_t;

typedef struct bl_client_runtime_options bl_client_runtime_options_t; // runtime_options.h: for programs of this tree

// `options` NULL: with threads of its own. BL_EXHAUSTED. BL_PRECONDITION: in a process forked from one that had a
// client.
BL_MUST_USE bl_status_t bl_client_runtime_create(const bl_client_runtime_options_t *options,
                                                 bl_client_runtime_t **runtime, bl_error_t *err);
// Waits until all clients whose close has begun are freed.
void bl_client_runtime_wait(bl_client_runtime_t *runtime);
// Waits as above. All its clients must be closed or closing. NULL is fine.
void bl_client_runtime_destroy(bl_client_runtime_t *runtime);

#endif
