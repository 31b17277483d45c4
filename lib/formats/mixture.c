// SPDX-License-Identifier: Apache-2.0
#include "formats/mixture.h"

#include <math.h>

#define WHOLE  (UINT64_C(1) << 32)
#define GOLDEN UINT64_C(2654435769) // 2^32 / golden ratio; odd, so its multiples visit every number once

bool bl_mixture_bounds(const double *weights, size_t sources, uint64_t *bounds) {
  double total = 0, sum = 0;
  for (size_t i = 0; i < sources; i++) {
    total += weights[i];
  }
  bounds[0] = 0;
  for (size_t i = 0; i < sources; i++) {
    sum += weights[i];
    bounds[i + 1] = i + 1 == sources ? WHOLE : (uint64_t)floor(sum / total * (double)WHOLE + 0.5);
    if (bounds[i + 1] <= bounds[i]) {
      return false;
    }
  }
  return true;
}

// Returns the sum of floor((a i + b) / m) for i in [0, n), modulo 2^64. Differences of such sums are exact.
static uint64_t floor_sum(uint64_t n, uint64_t m, uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  for (;;) {
    if (a >= m) {
      // n (n - 1) / 2, halving the even factor first
      sum += (n % 2 == 0 ? n / 2 * (n - 1) : (n - 1) / 2 * n) * (a / m);
      a %= m;
    }
    sum += n * (b / m);
    b %= m;
    const uint64_t last = a * n + b;
    if (last < m) {
      return sum;
    }
    n = last / m;
    b = last % m;
    const uint64_t step = a;
    a = m;
    m = step;
  }
}

// Returns how many i < `number` have (GOLDEN i + offset) mod 2^32 < bound.
static uint64_t count_below(uint64_t number, uint64_t offset, uint64_t bound) {
  const uint64_t rounds = number / WHOLE, rest = number % WHOLE; // each round visits every value once
  // floor(v / M) - floor((v - bound) / M) is 1 if v mod M < bound, otherwise 0
  const uint64_t before =
      floor_sum(rest, WHOLE, GOLDEN, offset) - floor_sum(rest, WHOLE, GOLDEN, offset + WHOLE - bound) + rest;
  return rounds * bound + before;
}

bl_mixture_pick_t bl_mixture_pick(const bl_mixture_t *mixture, uint64_t number) {
  const uint64_t value = (number % WHOLE * GOLDEN + mixture->offset) % WHOLE;
  size_t low = 0, high = mixture->sources - 1;
  while (low < high) {
    const size_t middle = low + (high - low + 1) / 2;
    if (mixture->bounds[middle] <= value) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return (bl_mixture_pick_t){.source = low,
                             .index = count_below(number, mixture->offset, mixture->bounds[low + 1]) -
                                      count_below(number, mixture->offset, mixture->bounds[low])};
}
