// SPDX-License-Identifier: Apache-2.0
// Parses network addresses as people write them: "host:port" and "[ipv6]:port".
// Thread: pure functions, any thread.
#ifndef BALLAST_BASE_HOST_H
#define BALLAST_BASE_HOST_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Sets the host of an address, without brackets, and its port. BL_INVALID: the address has another form, an IPv6 host
// has no brackets, the port is not a number from 0 to 65535, or the host does not fit.
BL_MUST_USE bl_status_t bl_host_split(const char *address, char *host, size_t host_bytes, uint16_t *port,
                                      bl_error_t *err);
// Returns true for "localhost", 127.0.0.0/8 and ::1. Names are not resolved: a host not known to be loopback is not.
bool bl_host_is_loopback(const char *host);

#endif
