// SPDX-License-Identifier: Apache-2.0
#include "step/record.h"

#include <string.h>

static bool same_bits(double a, double b) {
  uint64_t bits_of_a, bits_of_b;
  memcpy(&bits_of_a, &a, sizeof a);
  memcpy(&bits_of_b, &b, sizeof b);
  return bits_of_a == bits_of_b;
}

bool bl_offer_is_met(const bl_offer_t *offer, double scale, double learning_rate) {
  return same_bits(offer->scale, scale) && same_bits(offer->learning_rate, learning_rate);
}

bool bl_commit_equal(const bl_commit_t *a, const bl_commit_t *b) {
  return a->step == b->step && a->attempt == b->attempt && same_bits(a->scale, b->scale) &&
         same_bits(a->learning_rate, b->learning_rate);
}
