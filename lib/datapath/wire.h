// SPDX-License-Identifier: Apache-2.0
// Little-endian integers in headers. Inside of lib/datapath.
#ifndef BALLAST_DATAPATH_WIRE_H
#define BALLAST_DATAPATH_WIRE_H

#include <stdint.h>

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

#endif
