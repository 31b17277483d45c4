// SPDX-License-Identifier: Apache-2.0
// What every fuzz target is: one function, called with one input at a time, by libFuzzer or by replay.c.
#ifndef BALLAST_TESTS_FUZZ_TARGET_H
#define BALLAST_TESTS_FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

// What must hold whatever the input; stays in release builds, unlike assert.
#define FUZZ_CHECK(condition)                                                                                          \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);                                   \
      abort();                                                                                                         \
    }                                                                                                                  \
  } while (0)

#endif
