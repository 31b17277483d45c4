// SPDX-License-Identifier: Apache-2.0
// Accepts the connections of a listening socket. While the process or the system has no descriptors or memory left, it
// rests, because the waiting connection would wake it at once: it tries again every BL_ACCEPTOR_REST_MS.
//
// Thread: the loop's.
#ifndef BALLAST_DATAPATH_ACCEPTOR_H
#define BALLAST_DATAPATH_ACCEPTOR_H

#include "loop/loop.h"

#define BL_ACCEPTOR_REST_MS 100

typedef struct bl_acceptor bl_acceptor_t;
typedef void (*bl_acceptor_fn)(void *context, int fd); // owns `fd`; must not destroy the acceptor

// The caller keeps `listener`, which must outlive the acceptor. BL_EXHAUSTED, BL_IO.
BL_MUST_USE bl_status_t bl_acceptor_create(bl_loop_t *loop, int listener, bl_acceptor_fn accepted, void *context,
                                           bl_acceptor_t **acceptor, bl_error_t *err);
void bl_acceptor_destroy(bl_acceptor_t *acceptor); // NULL is fine

#endif
