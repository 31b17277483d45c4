// SPDX-License-Identifier: Apache-2.0
// In which order the parts of a step's gradient are added: one binary tree over all parts, whoever computes them.
//
// Within a rank, whose parts come one after the other, sums are merged as a binary counter counts: when part k (from 0) is
// done, what is there is added to the sums of levels 0, 1, ... as long as k has ones there, and then waits at the level of
// its first zero. So n parts, a power of two, need log2(n) sums beside the one that is being accumulated, and end as
// ((0+1)+(2+3))+((4+5)+(6+7)). The sums of ranks are added in the same manner: neighbours, then neighbours of neighbours.
// For a number of ranks that is no power of two, with a part each: from the left.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_FOLD_H
#define BALLAST_MODEL_FOLD_H

#include <stdbool.h>
#include <stdint.h>

// Sums that `parts` parts of one rank need beside the one that is being accumulated; `parts` is a power of two.
static inline uint32_t bl_fold_levels(uint32_t parts) {
  uint32_t levels = 0;
  while ((UINT32_C(1) << levels) < parts) {
    levels++;
  }
  return levels;
}

// With how many waiting sums part `part` is merged when it is done: those of levels 0 to that, in this order. Unless it is
// the last, the result then waits at that level.
static inline uint32_t bl_fold_merges(uint32_t part) {
  uint32_t merges = 0;
  for (; (part >> merges & 1) != 0; merges++) {
  }
  return merges;
}

// One addition of the sums of ranks: that of `from` is added to that of `to`.
typedef struct bl_fold_pair {
  uint32_t to, from;
} bl_fold_pair_t;

// The additions over `count` ranks in their order, count - 1 of them, by number. `keep` < count: that rank's own sum is where
// the result ends, because a sum of two has the same bits either way round.
static inline bl_fold_pair_t bl_fold_pair(uint32_t count, uint32_t number, uint32_t keep) {
  if ((count & (count - 1)) != 0) { // from the left
    const uint32_t first = keep <= number ? keep : 0, next = number + 1;
    return next == keep ? (bl_fold_pair_t){.to = next, .from = first} : (bl_fold_pair_t){.to = first, .from = next};
  }
  uint32_t stride = 1, pairs = count / 2;
  for (; number >= pairs; number -= pairs, pairs /= 2) {
    stride *= 2;
  }
  // The sum of a group of ranks is where `keep` is, or else at its first rank.
  const uint32_t left = number * 2 * stride, right = left + stride;
  if (keep >= right && keep < right + stride) {
    return (bl_fold_pair_t){.to = keep, .from = left};
  }
  const bool here = keep >= left && keep < right;
  return (bl_fold_pair_t){.to = here ? keep : left, .from = right};
}

#endif
