// SPDX-License-Identifier: Apache-2.0
// Singular and plural in messages.
//
//   bl_error_set(err, BL_INVALID, "has %u layer%s, not %u", layers, bl_plural(layers), wanted);
//   bl_error_set(err, BL_INVALID, "has %zu %s", count, bl_one_or_many(count, "entry", "entries"));
//
// Thread: pure functions, any thread.
#ifndef BALLAST_BASE_WORDS_H
#define BALLAST_BASE_WORDS_H

#include <stdint.h>

static inline const char *bl_one_or_many(uint64_t count, const char *one, const char *many) {
  return count == 1 ? one : many;
}

// Returns the plural ending of a noun: "" if `count` is 1, else "s".
static inline const char *bl_plural(uint64_t count) {
  return bl_one_or_many(count, "", "s");
}

#endif
