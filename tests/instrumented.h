// SPDX-License-Identifier: Apache-2.0
// How much of a sweep a test makes under the address sanitizer, which sees what code does with memory and not what comes of
// it: of cases that run the same code a few are enough there, at many times the cost. Results are the release's matter, which
// makes the whole sweep. Every reduction for it is one of these two names.
#ifndef TESTS_INSTRUMENTED_H
#define TESTS_INSTRUMENTED_H

#include <stdbool.h>

#if defined(__SANITIZE_ADDRESS__)
#define INSTRUMENTED true
#else
#define INSTRUMENTED false
#endif
#define FEW_OR_ALL(few, all) (INSTRUMENTED ? (few) : (all))

#endif
