// SPDX-License-Identifier: Apache-2.0
// Hosts of network addresses, "host:port" and "[ipv6]:port".
// Thread: pure functions, any thread.
#ifndef BALLAST_SYS_HOST_H
#define BALLAST_SYS_HOST_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

// The host of "host:port" without brackets. BL_INVALID: no port, or it does not fit.
BL_MUST_USE bl_status_t bl_host_of_address(const char *address, char *host, size_t host_bytes, bl_error_t *err);
// True for "localhost", 127.0.0.0/8 and ::1. Names are not resolved: what is not known to be loopback is not.
bool bl_host_is_loopback(const char *host);

#endif
