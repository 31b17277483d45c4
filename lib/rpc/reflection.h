// SPDX-License-Identifier: Apache-2.0
// The standard gRPC server reflection protocol (grpc.reflection.v1, and v1alpha for older clients), so that grpcurl and
// the like can list and call what a server has without its .proto files. Rules common to this library: rpc.h.
//
//   bl_rpc_server_add_service(server, ...);
//   bl_rpc_reflection_add(server, err);
//   bl_rpc_server_start(server, err);
//
// It lists the services of that server and describes every file under proto/, which are compiled in.
#ifndef BALLAST_RPC_REFLECTION_H
#define BALLAST_RPC_REFLECTION_H

#include "rpc/server.h"

// Services that one server lists, and files that one answer describes, at most; both are bounded by what is under
// proto/.
#define BL_RPC_REFLECTION_SERVICES 16
#define BL_RPC_REFLECTION_FILES    32

// Before start. Failures as bl_rpc_server_add_service.
BL_MUST_USE bl_status_t bl_rpc_reflection_add(bl_rpc_server_t *server, bl_error_t *err);

#endif
