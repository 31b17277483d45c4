// SPDX-License-Identifier: Apache-2.0
// Addresses in our spelling ("unix:/path", "host:port", "[ipv6]:port") taken apart, inside lib/rpc.
#ifndef BALLAST_RPC_ADDRESS_H
#define BALLAST_RPC_ADDRESS_H

#include "rpc/rpc.h"

typedef struct bl__address {
  bool is_unix;
  char path[BL_RPC_ADDRESS_BYTES];       // unix
  char host[BL_RPC_ADDRESS_BYTES];       // else; without brackets
  char port[6];                          // digits, 0 to 65535
  char target[BL_RPC_ADDRESS_BYTES + 8]; // what gRPC is given to connect; numeric hosts need no resolver
} bl__address_t;

// BL_INVALID: `err` says what an address looks like and what is wrong with this one.
BL_MUST_USE bl_status_t bl__address_parse(const char *text, bl__address_t *address, bl_error_t *err);

#endif
