// SPDX-License-Identifier: Apache-2.0
// Private to lib/rpc: supplements gRPC's listening. It never takes the unix socket of a live server, and it reports why
// binding failed.
#ifndef BALLAST_RPC_LISTENER_H
#define BALLAST_RPC_LISTENER_H

#include "rpc/address.h"

typedef struct bl__listener {
  bl__address_t address;
  int lock_fd; // -1: no lock is held
} bl__listener_t;

// Call before gRPC binds. For a unix path it locks "PATH.lock" for the life of this process, checks that no server
// answers at PATH, and removes a stale socket there. BL_PRECONDITION: a live server uses the path, or the file is not a
// socket. BL_NOT_FOUND, BL_DENIED, ...: of the folder. For a TCP address it does nothing.
BL_MUST_USE bl_status_t bl__listener_claim(bl__listener_t *listener, const bl__address_t *address, bl_error_t *err);
// Removes socket and lock. Call after gRPC has closed its socket.
void bl__listener_release(bl__listener_t *listener);

// Finds the cause after gRPC failed to bind. It binds by itself, because gRPC returns no cause.
BL_MUST_USE bl_status_t bl__listener_explain(const bl__address_t *address, const char *text, bl_error_t *err);

#endif
