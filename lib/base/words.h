// SPDX-License-Identifier: Apache-2.0
// Words of messages that go by a number.
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

// The end of a noun of which there are `count`: "s", or "" for one.
static inline const char *bl_plural(uint64_t count) {
  return bl_one_or_many(count, "", "s");
}

#endif
