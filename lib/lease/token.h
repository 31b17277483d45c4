// SPDX-License-Identifier: Apache-2.0
// What a holder presents for a lease, and what the store compares (fencing tokens, after Gray and Cheriton, SOSP 1989).
//
// A token is never used twice: every start of a store draws a new incarnation, and within one the generation of a lease
// id only grows, by one whenever a use of its slot ends. So a holder that was paused past the end of its lease, for
// however long, can only present a token that no longer matches.
//
// Thread: plain values.
#ifndef BALLAST_LEASE_TOKEN_H
#define BALLAST_LEASE_TOKEN_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define BL_ID128_BYTES 16

// 128 random bits: the incarnation of a store or of a holder, that is one run of it, or the key of a session. Compared
// for equality only.
typedef struct bl_id128 {
  uint8_t bytes[BL_ID128_BYTES];
} bl_id128_t;

typedef struct bl_lease_token {
  bl_id128_t incarnation; // of the store
  uint64_t id;            // of the lease, from 1
  uint64_t generation;    // from 1
} bl_lease_token_t;

static inline bool bl_id128_equal(const bl_id128_t *a, const bl_id128_t *b) {
  return memcmp(a->bytes, b->bytes, BL_ID128_BYTES) == 0;
}

// The same in a time that does not depend on where they differ, for secrets.
static inline bool bl_id128_matches(const bl_id128_t *a, const bl_id128_t *b) {
  unsigned difference = 0;
  for (unsigned i = 0; i < BL_ID128_BYTES; i++) {
    difference |= (unsigned)(a->bytes[i] ^ b->bytes[i]);
  }
  return difference == 0;
}

#endif
