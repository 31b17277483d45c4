// SPDX-License-Identifier: Apache-2.0
// The processes of holders whose engines read the store's memory by themselves (cuda-ipc): once their session is over but
// for their own close, what they had is free only when they are gone, which a descriptor of the process tells.
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
// The process at the other end of a unix socket, which is connected now, holds the session. BL_UNIMPLEMENTED: it cannot be
// watched. Of a session that is known already, the newer process counts.
BL_MUST_USE bl_status_t bl_holders_add(bl_holders_t *holders, uint64_t session, int fd, bl_error_t *err);
// The session is over. Unknown ones are ignored.
void bl_holders_end(bl_holders_t *holders, uint64_t session, bool closed);

#endif
