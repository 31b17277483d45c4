// SPDX-License-Identifier: Apache-2.0
// Private to lib/rpc: converts messages between protobuf-c's structures and gRPC's byte buffers, with limits both ways.
#ifndef BALLAST_RPC_MESSAGE_H
#define BALLAST_RPC_MESSAGE_H

#include "rpc/arena.h"

#include "base/error.h"

#include <grpc/grpc.h>

// The caller destroys *buffer. BL_EXHAUSTED: larger than `limit_bytes`.
BL_MUST_USE bl_status_t bl__message_pack(const ProtobufCMessage *message, size_t limit_bytes, grpc_byte_buffer **buffer,
                                         bl_error_t *err);
// *message lives in the arena. BL_EXHAUSTED: over the arena's limit. BL_INVALID: not a message of that type.
BL_MUST_USE bl_status_t bl__message_unpack(const ProtobufCMessageDescriptor *descriptor, grpc_byte_buffer *buffer,
                                           bl__arena_t *arena, ProtobufCMessage **message, bl_error_t *err);

#endif
