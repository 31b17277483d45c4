// SPDX-License-Identifier: Apache-2.0
// Stream sockets of the data path, unix and TCP: all non-blocking and closed on exec.
// Thread: any; a descriptor belongs to its caller.
#ifndef BALLAST_DATAPATH_SOCKET_H
#define BALLAST_DATAPATH_SOCKET_H

#include "base/error.h"
#include "datapath/address.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

// How long a TCP peer may stay silent while data waits for it before the link counts as lost: bounds the time in
// which a machine that vanished without a reset goes unnoticed.
#define BL_SOCKET_SILENCE_MS 10000

// Listens at `address`; for TCP port 0 picks one. *bound is where. A unix socket file that nobody serves any more is
// replaced, a live one is BL_PRECONDITION; the file is readable by its owner only.
BL_MUST_USE bl_status_t bl_socket_listen(const bl_address_t *address, int *fd, bl_address_t *bound, bl_error_t *err);
// A waiting connection, or -1 with errno (EAGAIN: none).
int bl_socket_accept(int listener);
// Starts to connect; writability then tells the end, bl_socket_error the outcome. BL_UNAVAILABLE, BL_EXHAUSTED, ...
BL_MUST_USE bl_status_t bl_socket_connect(const bl_address_t *address, int *fd, bl_error_t *err);
// Reads away what has come: a connection that is closed with bytes unread is reset, and what was sent last may be lost.
void bl_socket_discard(int fd);
int bl_socket_error(int fd); // 0 or the errno value of the connection

// Room for several chunks in the kernel, so that both ends of a TCP connection work at a time. Does nothing where the
// system's limit (net.core.wmem_max, rmem_max) is below what the kernel's own tuning reaches.
void bl_socket_enlarge_buffers(int fd);

// Gives a descriptor back to blocking calls.
void bl_socket_set_blocking(int fd);

// Whether the process at the other end of a unix socket runs as our user or as root.
bool bl_socket_peer_is_us(int fd);

#define BL_SOCKET_MAX_DESCRIPTORS 240
// sendmsg without SIGPIPE, with `fd_count` descriptors attached to the first byte (unix sockets). As sendmsg returns.
ssize_t bl_socket_send(int fd, const struct iovec *parts, size_t part_count, const int *fds, size_t fd_count);
// recv that also collects descriptors (close-on-exec) behind fds[0 .. *fd_count), which has room for
// BL_SOCKET_MAX_DESCRIPTORS; those beyond are closed. As recv returns, EMSGSIZE when some were beyond.
ssize_t bl_socket_receive(int fd, void *bytes, size_t size_bytes, int *fds, size_t *fd_count);

#endif
