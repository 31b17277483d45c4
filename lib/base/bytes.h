// SPDX-License-Identifier: Apache-2.0
// Byte quantities: overflow-checked arithmetic, alignment, and their text form ("1.5 GiB").
// Thread: pure functions, any thread.
#ifndef BALLAST_BASE_BYTES_H
#define BALLAST_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BL_CACHE_LINE_BYTES 64

// Rounds up to a multiple of `alignment`, a power of two. The caller guarantees that the sum does not overflow.
static inline uint64_t bl_align_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

// Set *result to a * b and a + b. Return false on overflow, with *result untouched.
static inline bool bl_mul_u64(uint64_t a, uint64_t b, uint64_t *result) {
  uint64_t value;
  if (__builtin_mul_overflow(a, b, &value)) {
    return false;
  }
  *result = value;
  return true;
}

static inline bool bl_add_u64(uint64_t a, uint64_t b, uint64_t *result) {
  uint64_t value;
  if (__builtin_add_overflow(a, b, &value)) {
    return false;
  }
  *result = value;
  return true;
}

#define BL_BYTES_TEXT 24
// Writes "123 B", "1.5 KiB", "12.3 GiB" (three significant digits) into `text` and returns it.
const char *bl_bytes_format(uint64_t bytes, char text[BL_BYTES_TEXT]);
// Reads "64", "64 KiB", "1.5GiB", "2 MB" (case-insensitive; KB = 1000, KiB = 1024). Returns false if it is no byte
// size.
bool bl_bytes_parse(const char *text, uint64_t *bytes);

#endif
