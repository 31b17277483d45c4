// SPDX-License-Identifier: Apache-2.0
// The throughput of a socket alone: one connected TCP pair over loopback, one thread that writes and one that reads.
// Data paths over TCP are compared with it.
#ifndef BALLAST_BENCH_BARE_SOCKET_H
#define BALLAST_BENCH_BARE_SOCKET_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct bl_bare_socket {
  int fds[2]; // blocking; -1: closed
} bl_bare_socket_t;

// `large_buffers`: sets the buffer sizes that a data path sets (bl_socket_enlarge_buffers).
BL_MUST_USE bl_status_t bl_bare_socket_open(bl_bare_socket_t *bare, bool large_buffers, bl_error_t *err);
void bl_bare_socket_close(bl_bare_socket_t *bare);

// Moves `count` blocks of `bytes`. Block i is copied from (i % places) * bytes of `from` to the same offset of `to`.
typedef struct bl_bare_run {
  const uint8_t *from;
  uint8_t *to;
  uint64_t bytes;
  uint32_t count, places;
} bl_bare_run_t;
BL_MUST_USE bl_status_t bl_bare_socket_run(bl_bare_socket_t *bare, const bl_bare_run_t *run, double *seconds,
                                           bl_error_t *err);

#endif
