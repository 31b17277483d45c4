// SPDX-License-Identifier: Apache-2.0
// All .proto files of this folder as one serialized google.protobuf.FileDescriptorSet, made by protoc at build time.
#ifndef BALLAST_PROTO_DESCRIPTOR_SET_H
#define BALLAST_PROTO_DESCRIPTOR_SET_H

#include <stddef.h>
#include <stdint.h>

extern const uint8_t bl_proto_descriptor_set[];
extern const size_t bl_proto_descriptor_set_bytes;

#endif
