// SPDX-License-Identifier: Apache-2.0
// Stream sockets of the data path, unix and TCP. All are non-blocking and close-on-exec.
// Thread: any; a descriptor belongs to its caller.
#ifndef BALLAST_DATAPATH_SOCKET_H
#define BALLAST_DATAPATH_SOCKET_H

#include "base/error.h"
#include "datapath/address.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

// How long a TCP peer may stay silent while data waits for it, before the link counts as lost. It bounds how long a
// machine that vanished without a reset goes unnoticed.
#define BL_SOCKET_SILENCE_MS 10000

// Listens at `address`; for TCP port 0 picks one. *bound is the address. A stale unix socket file is replaced; if a
// process serves it, BL_PRECONDITION. The file is accessible to its owner only.
BL_MUST_USE bl_status_t bl_socket_listen(const bl_address_t *address, int *fd, bl_address_t *bound, bl_error_t *err);
// Accepts a waiting connection. -1 with errno if it fails (EAGAIN: none).
int bl_socket_accept(int listener);
// Starts to connect. The socket becomes writable when the attempt has ended, and bl_socket_error returns the outcome.
// BL_UNAVAILABLE, BL_EXHAUSTED, ...
BL_MUST_USE bl_status_t bl_socket_connect(const bl_address_t *address, int *fd, bl_error_t *err);
// Discards the bytes that have arrived. Closing a connection with unread bytes resets it, and the last bytes sent may
// then be lost.
void bl_socket_discard(int fd);
int bl_socket_error(int fd); // 0 or the errno value of the connection

// Enlarges the kernel's buffers to several chunks, so that both ends of a TCP connection work at the same time. Does
// nothing if the system's limit (net.core.wmem_max, rmem_max) is below what the kernel's own tuning reaches.
void bl_socket_enlarge_buffers(int fd);

// Makes a descriptor blocking.
void bl_socket_set_blocking(int fd);

// Returns whether the process at the other end of a unix socket runs as our user or as root.
bool bl_socket_peer_is_us(int fd);

#define BL_SOCKET_MAX_DESCRIPTORS 240
// Calls sendmsg without SIGPIPE, with `fd_count` descriptors attached to the first byte (unix sockets). Returns as
// sendmsg.
ssize_t bl_socket_send(int fd, const struct iovec *parts, size_t part_count, const int *fds, size_t fd_count);
// Receives bytes, and appends descriptors (close-on-exec) to fds[0 .. *fd_count), which has capacity for
// BL_SOCKET_MAX_DESCRIPTORS. Descriptors beyond that are closed. Returns as recv; EMSGSIZE if some were beyond.
ssize_t bl_socket_receive(int fd, void *bytes, size_t size_bytes, int *fds, size_t *fd_count);

#endif
