// SPDX-License-Identifier: Apache-2.0
// The standard gRPC server reflection protocol (grpc.reflection.v1, and v1alpha for older clients). With it grpcurl and
// similar tools list and call a server's methods without its .proto files. Rules common to this library: rpc.h.
//
//   bl_rpc_server_add_service(server, ...);
//   bl_rpc_reflection_add(server, err);
//   bl_rpc_server_start(server, err);
//
// It lists the services of that server and describes every file under proto/. Their descriptors are compiled in.
#ifndef BALLAST_RPC_REFLECTION_H
#define BALLAST_RPC_REFLECTION_H

#include "rpc/server.h"

// Maximum numbers of services that one server lists, and of files that one answer describes. The files under proto/
// bound both.
#define BL_RPC_REFLECTION_SERVICES 16
#define BL_RPC_REFLECTION_FILES    32

// Before start. Fails as bl_rpc_server_add_service does.
BL_MUST_USE bl_status_t bl_rpc_reflection_add(bl_rpc_server_t *server, bl_error_t *err);

#endif
