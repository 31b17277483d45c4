// SPDX-License-Identifier: Apache-2.0
// Chooses which of several data sources the n-th sequence of a run comes from, and counts how many came from it before.
// This is a pure function of n, so that every stage finds its data alone and a resumed run continues with the same
// data.
//
// Every source has an interval of [0, 1) that is as long as its weight. Sequence n comes from the source whose interval
// holds the fraction of n g + offset, where g is the golden ratio. Multiples of g are spread evenly over every range of
// n, so a source is never more than a few sequences ahead of or behind its share. The computation uses integers modulo
// 2^32. The number of sequences before n that came from a source is then a sum of floor((a i + b) / 2^32), which an
// algorithm like Euclid's computes in O(log) steps.
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
  uint64_t index; // number of sequences of that source before this one
} bl_mixture_pick_t;

// Writes sources + 1 bounds for weights, which are all above 0. Returns false if a weight is so small compared with the
// others that its source would never be chosen.
bool bl_mixture_bounds(const double *weights, size_t sources, uint64_t *bounds);
bl_mixture_pick_t bl_mixture_pick(const bl_mixture_t *mixture, uint64_t number);

#endif
