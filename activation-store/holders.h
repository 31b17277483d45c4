// SPDX-License-Identifier: Apache-2.0
// Watches the processes of holders whose engines read the store's memory on their own (cuda-ipc). If their session ends
// in any way other than by their close, what they had is free only when the process is gone, which a pidfd reports.
// Thread: the loop's.
#ifndef BALLAST_ACTIVATION_STORE_HOLDERS_H
#define BALLAST_ACTIVATION_STORE_HOLDERS_H

#include "loop/loop.h"

#include <stdint.h>

typedef struct bl_holders bl_holders_t;

// `gone` is called once per session that ended without a close, when its process is gone.
BL_MUST_USE bl_status_t bl_holders_create(bl_loop_t *loop, void (*gone)(void *context, uint64_t session), void *context,
                                          bl_holders_t **holders, bl_error_t *err);
void bl_holders_destroy(bl_holders_t *holders); // NULL is fine
// Records that the process at the other end of a connected unix socket holds the session. BL_UNIMPLEMENTED: it cannot
// be watched. For a session that is known already, the newer process replaces the older one.
BL_MUST_USE bl_status_t bl_holders_add(bl_holders_t *holders, uint64_t session, int fd, bl_error_t *err);
// The session is over. Ignores unknown ones.
void bl_holders_end(bl_holders_t *holders, uint64_t session, bool closed);

#endif
