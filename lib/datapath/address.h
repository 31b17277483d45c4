// SPDX-License-Identifier: Apache-2.0
// Socket addresses as text: "unix:/path", "127.0.0.1:4000", "[::1]:4000".
// Thread: any. Only bl_address_resolve may block (name service).
#ifndef BALLAST_DATAPATH_ADDRESS_H
#define BALLAST_DATAPATH_ADDRESS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

typedef struct bl_address {
  struct sockaddr_storage storage;
  socklen_t length;
} bl_address_t;

// BL_INVALID names the text and what is wrong. Hosts must be numeric, and a unix path must fit a socket address.
BL_MUST_USE bl_status_t bl_address_parse(const char *text, bl_address_t *address, bl_error_t *err);
// Returns the first address of a host name or numeric host, with this port. BL_NOT_FOUND.
BL_MUST_USE bl_status_t bl_address_resolve(const char *host, uint16_t port, bl_address_t *address, bl_error_t *err);
void bl_address_format(const bl_address_t *address, char *text, size_t text_bytes);

// Returns whether the address is reachable from this machine only: a unix socket, 127.0.0.0/8, ::1.
bool bl_address_is_local(const bl_address_t *address);
bool bl_address_is_wildcard(const bl_address_t *address); // 0.0.0.0, ::
uint16_t bl_address_port(const bl_address_t *address);    // 0 for a unix socket

#endif
