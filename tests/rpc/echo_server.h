// SPDX-License-Identifier: Apache-2.0
// A server of echo.proto that counts what happens to it.
#ifndef BALLAST_TESTS_RPC_ECHO_SERVER_H
#define BALLAST_TESTS_RPC_ECHO_SERVER_H

#include "rpc/server.h"

typedef struct echo_server {
  bl_rpc_server_t *server;
  bl_rpc_t *rpc;
  unsigned arrived;   // calls that reached a handler
  unsigned cancelled; // calls that were told so
  unsigned sent;      // messages of streams that the connection took
  unsigned hanging;   // calls of Hang not yet finished
  char address[BL_RPC_ADDRESS_BYTES];
  char peer[BL_RPC_ADDRESS_BYTES]; // of the last Say
} echo_server_t;

// Creates, listens and starts.
BL_MUST_USE bl_status_t echo_server_start(echo_server_t *echo, bl_rpc_t *rpc, const char *address,
                                          const bl_rpc_server_options_t *options, bl_error_t *err);

#endif
