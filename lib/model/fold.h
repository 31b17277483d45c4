// SPDX-License-Identifier: Apache-2.0
// The order in which the parts of a step's gradient are added: one binary tree over all parts, whichever rank computes
// them.
//
// A rank computes its parts one after the other and merges sums as a binary counter counts. When part k (from 0) is
// done, the current sum is added to the waiting sums of levels 0, 1, ... as long as bits 0, 1, ... of k are ones. It
// then waits at the level of the first zero bit. So n parts, a power of two, need log2(n) sums in addition to the one
// that is being accumulated, and end as ((0+1)+(2+3))+((4+5)+(6+7)). The sums of ranks are added in the same manner:
// neighbours, then neighbours of neighbours. If the number of ranks is not a power of two, each rank has one part, and
// their sums are added from the left.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_FOLD_H
#define BALLAST_MODEL_FOLD_H

#include <stdbool.h>
#include <stdint.h>

// Returns how many sums `parts` parts of one rank need in addition to the one that is being accumulated. `parts` is a
// power of two.
static inline uint32_t bl_fold_levels(uint32_t parts) {
  uint32_t levels = 0;
  while ((UINT32_C(1) << levels) < parts) {
    levels++;
  }
  return levels;
}

// Returns the number of waiting sums with which part `part` is merged when it is done: the sums of levels 0, 1, ... in
// this order. Unless the part is the last, the result then waits at the level that is returned.
static inline uint32_t bl_fold_merges(uint32_t part) {
  uint32_t merges = 0;
  for (; (part >> merges & 1) != 0; merges++) {
  }
  return merges;
}

// One addition of the sums of two ranks: the sum of `from` is added to the sum of `to`.
typedef struct bl_fold_pair {
  uint32_t to, from;
} bl_fold_pair_t;

// Returns addition `number` of the count - 1 additions over `count` ranks, in their order. If `keep` < count, the
// result ends in the own sum of rank `keep`. This is possible because a sum of two numbers has the same bits in either
// order.
static inline bl_fold_pair_t bl_fold_pair(uint32_t count, uint32_t number, uint32_t keep) {
  if ((count & (count - 1)) != 0) { // from the left
    const uint32_t first = keep <= number ? keep : 0, next = number + 1;
    return next == keep ? (bl_fold_pair_t){.to = next, .from = first} : (bl_fold_pair_t){.to = first, .from = next};
  }
  uint32_t stride = 1, pairs = count / 2;
  for (; number >= pairs; number -= pairs, pairs /= 2) {
    stride *= 2;
  }
  // The sum of a group of ranks is held by `keep` if it is in the group, otherwise by the first rank of the group.
  const uint32_t left = number * 2 * stride, right = left + stride;
  if (keep >= right && keep < right + stride) {
    return (bl_fold_pair_t){.to = keep, .from = left};
  }
  const bool here = keep >= left && keep < right;
  return (bl_fold_pair_t){.to = here ? keep : left, .from = right};
}

#endif
