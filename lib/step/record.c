// SPDX-License-Identifier: Apache-2.0
#include "step/record.h"

#include <string.h>

static bool same_bits(double a, double b) {
  return memcmp(&a, &b, sizeof a) == 0;
}

bool bl_commit_equal(const bl_commit_t *a, const bl_commit_t *b) {
  return a->step == b->step && a->attempt == b->attempt && same_bits(a->scale, b->scale) &&
         same_bits(a->learning_rate, b->learning_rate);
}
