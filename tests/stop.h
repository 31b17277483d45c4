// SPDX-License-Identifier: Apache-2.0
// Checks of what test programs share, also those that are built without a test library: a failure is printed with its
// place and ends the program.
#ifndef BALLAST_TESTS_STOP_H
#define BALLAST_TESTS_STOP_H

#include <stdio.h>
#include <stdlib.h>

#define STOP(...)                                                                                                      \
  do {                                                                                                                 \
    fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                                    \
    fprintf(stderr, __VA_ARGS__);                                                                                      \
    fputc('\n', stderr);                                                                                               \
    exit(1);                                                                                                           \
  } while (0)
#define MUST(condition)                                                                                                \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      STOP("%s does not hold", #condition);                                                                            \
    }                                                                                                                  \
  } while (0)

#endif
