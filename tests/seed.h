// SPDX-License-Identifier: Apache-2.0
// The seed of a random test, and whether a test is to be long.
#ifndef BALLAST_TESTS_SEED_H
#define BALLAST_TESTS_SEED_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

// BALLAST_SOAK=1: the test does all that it can, not a short part.
static inline bool test_soak(void) {
  return getenv("BALLAST_SOAK") != NULL;
}

// BALLAST_TEST_SEED where it is set, a new one under BALLAST_SOAK=1, else the fixed one, so that an ordinary run finds
// today what it found yesterday. Printed, so that a failure can be repeated.
static inline uint64_t test_seed(uint64_t fixed) {
  const char *wanted = getenv("BALLAST_TEST_SEED");
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  uint64_t fresh = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
  uint64_t seed = wanted != NULL ? strtoull(wanted, NULL, 0) : test_soak() ? fresh : fixed;
  printf("seed %" PRIu64 " (BALLAST_TEST_SEED repeats it)\n", seed);
  return seed;
}

#endif
