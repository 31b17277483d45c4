// SPDX-License-Identifier: Apache-2.0
// What gRPC does not do about listening, inside lib/rpc: never take a live server's unix socket, and say why binding
// failed.
#ifndef BALLAST_RPC_LISTENER_H
#define BALLAST_RPC_LISTENER_H

#include "rpc/address.h"

typedef struct bl__listener {
  bl__address_t address;
  int lock_fd; // -1 when none is held
} bl__listener_t;

// Before gRPC binds. For a unix path: locks "PATH.lock" for as long as this process lives, makes sure that nobody
// answers at PATH, and removes a socket left behind there. BL_PRECONDITION: a live server has it, or what is there is not
// a socket. BL_NOT_FOUND, BL_DENIED, ...: the folder. Nothing to do for a TCP address.
BL_MUST_USE bl_status_t bl__listener_claim(bl__listener_t *listener, const bl__address_t *address, bl_error_t *err);
// After gRPC has closed its socket: removes socket and lock.
void bl__listener_release(bl__listener_t *listener);

// After gRPC failed to bind: finds the reason by trying, because gRPC returns none.
BL_MUST_USE bl_status_t bl__listener_explain(const bl__address_t *address, const char *text, bl_error_t *err);

#endif
