// SPDX-License-Identifier: Apache-2.0
// A random walk of the lease table beside its model (model.h): calls of every kind, good and bad, first and repeated,
// in any order, with time moving on; everything is compared after every call. The same seed gives the same walk.
#ifndef TESTS_LEASE_WALK_H
#define TESTS_LEASE_WALK_H

#include <stdbool.h>
#include <stdint.h>

typedef struct walk_result {
  uint64_t calls, granted, sealed, loaded, repeated, ended, suspects_preempted;
  uint64_t refused_reasons; // how many different ones were seen
} walk_result_t;

// Returns whether table and model agreed throughout; prints seed, call and the calls before it when not.
bool walk_run(uint64_t seed, uint64_t calls, walk_result_t *result);

#endif
