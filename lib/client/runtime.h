// SPDX-License-Identifier: Apache-2.0
// What the clients of a process share: one thread with an event loop that does all of their work, and remote calls on it.
// A process with many sessions has as many threads for them as one with a single session.
//
//   bl_client_runtime_create(NULL, &runtime, err);
//   bl_client_open_start(&(bl_client_options_t){.runtime = runtime, ...}, NULL, 0, opened, &client, err);
//   ... bl_client_close_start(client, closed, self) ...
//   bl_client_runtime_wait(runtime);        // nothing of closed clients touches their memory any more
//   bl_client_runtime_destroy(runtime);
//
// Thread: any but the runtime's own.
#ifndef BALLAST_CLIENT_RUNTIME_H
#define BALLAST_CLIENT_RUNTIME_H

#include "base/error.h"

typedef struct bl_client_runtime bl_client_runtime_t;

typedef struct bl_client_runtime_options bl_client_runtime_options_t; // runtime_options.h, of programs of this tree

// `options` is NULL for threads of its own. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_client_runtime_create(const bl_client_runtime_options_t *options,
                                                 bl_client_runtime_t **runtime, bl_error_t *err);
// Until all clients whose close was begun are gone.
void bl_client_runtime_wait(bl_client_runtime_t *runtime);
// Waits as above; all its clients must be closed, or being closed. NULL is fine.
void bl_client_runtime_destroy(bl_client_runtime_t *runtime);

#endif
