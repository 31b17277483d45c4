// SPDX-License-Identifier: Apache-2.0
// Index files of Megatron-LM for tests: a right one, to be spoilt.
#ifndef BALLAST_TESTS_FORMATS_MEGATRON_FILE_H
#define BALLAST_TESTS_FORMATS_MEGATRON_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MEGATRON_HEADER 34 // bytes before the lengths

static inline size_t megatron_put(uint8_t *bytes, size_t at, uint64_t value, size_t size) {
  for (size_t i = 0; i < size; i++) {
    bytes[at + i] = (uint8_t)(value >> 8 * i);
  }
  return at + size;
}

// `bounds` first sequences of documents, the last being `count`. Returns the bytes of the index.
static inline size_t megatron_write(uint8_t *bytes, unsigned type, size_t width, const uint32_t *lengths, size_t count,
                                    const uint64_t *firsts, size_t bounds) {
  memcpy(bytes, "MMIDIDX\0\0", 9);
  size_t at = megatron_put(bytes, 9, 1, 8);
  at = megatron_put(bytes, at, type, 1);
  at = megatron_put(bytes, at, count, 8);
  at = megatron_put(bytes, at, bounds, 8);
  for (size_t i = 0; i < count; i++) {
    at = megatron_put(bytes, at, lengths[i], 4);
  }
  uint64_t offset = 0;
  for (size_t i = 0; i < count; i++) {
    at = megatron_put(bytes, at, offset, 8);
    offset += (uint64_t)lengths[i] * width;
  }
  for (size_t i = 0; i < bounds; i++) {
    at = megatron_put(bytes, at, firsts[i], 8);
  }
  return at;
}

#endif
