// SPDX-License-Identifier: Apache-2.0
// Private to lib/datapath: little-endian integers and texts in headers and bodies.
#ifndef BALLAST_DATAPATH_WIRE_H
#define BALLAST_DATAPATH_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline void bl_wire_put32(uint8_t *to, uint32_t value) {
  for (int i = 0; i < 4; i++) {
    to[i] = (uint8_t)(value >> (8 * i));
  }
}

static inline void bl_wire_put64(uint8_t *to, uint64_t value) {
  bl_wire_put32(to, (uint32_t)value);
  bl_wire_put32(to + 4, (uint32_t)(value >> 32));
}

static inline uint32_t bl_wire_get32(const uint8_t *from) {
  return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

static inline uint64_t bl_wire_get64(const uint8_t *from) {
  return (uint64_t)bl_wire_get32(from) | (uint64_t)bl_wire_get32(from + 4) << 32;
}

// Text from a peer is written to log lines, so only printable bytes are allowed.
static inline char bl_wire_printable(char byte) {
  return (unsigned char)byte < 0x20 || (unsigned char)byte >= 0x7f ? '?' : byte;
}

// Zero-fills after the terminator, so that no stack bytes leave the process. Unprintable bytes become '?'.
static inline void bl_wire_put_text(uint8_t *to, size_t bytes, const char *text) {
  memset(to, 0, bytes);
  for (size_t i = 0; i + 1 < bytes && text[i] != '\0'; i++) {
    to[i] = (uint8_t)bl_wire_printable(text[i]);
  }
}

// Returns whether the text is terminated and printable.
static inline bool bl_wire_text_is_clean(const char *text, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) {
    if (text[i] == '\0' || bl_wire_printable(text[i]) != text[i]) {
      return text[i] == '\0';
    }
  }
  return false;
}

#endif
