// SPDX-License-Identifier: Apache-2.0
// Which of several sources the n-th sequence of a run comes from, and how many came from it before: a pure function of
// n, so that every stage finds its data alone and a resumed run goes on with the same.
//
// Sequence n goes to the source whose interval of [0, 1), as long as its weight, holds the fraction of n g + offset, g
// being the golden ratio: multiples of g are spread evenly over every stretch of n, so a source is never more than a few
// sequences ahead of its share or behind it. In integers modulo 2^32, which makes the count of the sequences before n
// that went to a source a sum of floor((a i + b) / 2^32), found as in Euclid's algorithm in O(log) steps.
//
// PURE. Thread: any; a mixture is immutable.
#ifndef BALLAST_FORMATS_MIXTURE_H
#define BALLAST_FORMATS_MIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bl_mixture {
  const uint64_t *bounds; // [sources + 1], from 0 to 2^32; borrowed
  size_t sources;
  uint32_t offset;
} bl_mixture_t;

typedef struct bl_mixture_pick {
  size_t source;
  uint64_t index; // sequences of that source before this one
} bl_mixture_pick_t;

// Writes sources + 1 bounds for weights, all above 0. False when a weight is so small beside the others that its source
// would never come.
bool bl_mixture_bounds(const double *weights, size_t sources, uint64_t *bounds);
bl_mixture_pick_t bl_mixture_pick(const bl_mixture_t *mixture, uint64_t number);

#endif
