// SPDX-License-Identifier: Apache-2.0
// Rotary positions (Su et al., arXiv 2104.09864): how fast each pair of dimensions of a head turns, and how models that were
// trained on short sequences slow that down for long ones, as transformers' modeling_rope_utils.py names it.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_ROPE_H
#define BALLAST_MODEL_ROPE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum bl_rope_kind {
  BL_ROPE_DEFAULT, // theta^(-2 i / head_dim)
  BL_ROPE_LINEAR,  // that, divided by `factor`
  BL_ROPE_LLAMA3 // divided where a turn takes longer than the original sequence / low_frequency, as it is where one takes
                 // less than original / high_frequency, between the two in between
} bl_rope_kind_t;

typedef struct bl_rope {
  bl_rope_kind_t kind;
  double theta;                         // the base; 10000 unless a config.json says otherwise
  double factor;                        // of the other two kinds, at least 1
  double low_frequency, high_frequency; // of llama3: low < high
  double original;                      // of llama3: tokens of a sequence that the model was trained on first
} bl_rope_t;

static inline bool bl_rope_equal(const bl_rope_t *a, const bl_rope_t *b) {
  return a->kind == b->kind && a->theta == b->theta && a->factor == b->factor && a->low_frequency == b->low_frequency &&
         a->high_frequency == b->high_frequency && a->original == b->original;
}

// Radians a position of pair `i` of head_dim / 2.
double bl_rope_frequency(const bl_rope_t *rope, uint64_t i, uint64_t head_dim);
// Whether the numbers make sense: what is wrong, NULL: nothing.
const char *bl_rope_fault(const bl_rope_t *rope);

#endif
