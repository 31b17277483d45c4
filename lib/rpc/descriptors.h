// SPDX-License-Identifier: Apache-2.0
// Private to lib/rpc, for reflection: look-ups in a serialized google.protobuf.FileDescriptorSet. PURE: reads the bytes
// as they are, allocates nothing and keeps nothing. A set that is not well-formed ends at the first malformed field.
#ifndef BALLAST_RPC_DESCRIPTORS_H
#define BALLAST_RPC_DESCRIPTORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A part of the set's bytes; borrowed.
typedef struct bl__span {
  const uint8_t *bytes;
  size_t size_bytes;
} bl__span_t;

// These functions set *file to a serialized FileDescriptorProto and return whether it exists.
bool bl__descriptors_file(bl__span_t set, const char *name, bl__span_t *file);
// Finds the file that defines `symbol`: a message, field, oneof, enum, enum value, service, method or extension, with
// its package and without a leading dot.
bool bl__descriptors_symbol(bl__span_t set, const char *symbol, bl__span_t *file);
// Returns whether a message of that name exists.
bool bl__descriptors_message(bl__span_t set, const char *name);

// Collects `file` and all files that it imports, each once, itself first. Returns their number, at most `capacity`.
size_t bl__descriptors_closure(bl__span_t set, bl__span_t file, bl__span_t *files, size_t capacity);

#endif
