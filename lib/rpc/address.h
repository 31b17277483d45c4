// SPDX-License-Identifier: Apache-2.0
// Private to lib/rpc: parses addresses in our notation ("unix:/path", "host:port", "[ipv6]:port").
#ifndef BALLAST_RPC_ADDRESS_H
#define BALLAST_RPC_ADDRESS_H

#include "rpc/rpc.h"

typedef struct bl__address {
  bool is_unix;
  char path[BL_RPC_ADDRESS_BYTES];       // unix
  char host[BL_RPC_ADDRESS_BYTES];       // other addresses; without brackets
  char port[6];                          // digits, 0 to 65535
  char target[BL_RPC_ADDRESS_BYTES + 8]; // target for gRPC to connect to; numeric hosts need no resolver
} bl__address_t;

// BL_INVALID: `err` names the valid forms and the fault of this address.
BL_MUST_USE bl_status_t bl__address_parse(const char *text, bl__address_t *address, bl_error_t *err);

#endif
