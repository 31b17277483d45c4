// SPDX-License-Identifier: Apache-2.0
// Looking things up in a serialized google.protobuf.FileDescriptorSet, inside lib/rpc, for reflection. PURE: it reads
// the bytes as they are, allocates nothing and keeps nothing; a set that is not well-formed ends where it breaks.
#ifndef BALLAST_RPC_DESCRIPTORS_H
#define BALLAST_RPC_DESCRIPTORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Part of the set's bytes; borrowed.
typedef struct bl__span {
  const uint8_t *bytes;
  size_t size_bytes;
} bl__span_t;

// All of these set *file to a serialized FileDescriptorProto and return whether there is one.
bool bl__descriptors_file(bl__span_t set, const char *name, bl__span_t *file);
// The file that defines `symbol`: a message, field, oneof, enum, enum value, service, method or extension, with its
// package and without a leading dot.
bool bl__descriptors_symbol(bl__span_t set, const char *symbol, bl__span_t *file);
// Whether a message of that name exists.
bool bl__descriptors_message(bl__span_t set, const char *name);

// `file` and all files that it imports, each once, itself first. Returns how many of at most `capacity`.
size_t bl__descriptors_closure(bl__span_t set, bl__span_t file, bl__span_t *files, size_t capacity);

#endif
