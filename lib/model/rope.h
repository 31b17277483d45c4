// SPDX-License-Identifier: Apache-2.0
// Rotary positions (Su et al., arXiv 2104.09864): the rotation frequency of each pair of dimensions of a head, and how
// models that were trained on short sequences reduce it for long ones. Kinds have the names of transformers'
// modeling_rope_utils.py.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_ROPE_H
#define BALLAST_MODEL_ROPE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum bl_rope_kind {
  BL_ROPE_DEFAULT, // theta^(-2 i / dims)
  BL_ROPE_LINEAR,  // the default, divided by `factor`
  // If a rotation takes longer than original / low_frequency tokens, the default divided by `factor`; if it takes less
  // than original / high_frequency, the default; interpolated in between.
  BL_ROPE_LLAMA3,
  // The default, divided pair by pair by numbers that were found by search; sequences longer than the original one have
  // other divisors. Sines and cosines are also scaled (LongRoPE, Ding et al., arXiv 2402.13753).
  BL_ROPE_LONG
} bl_rope_kind_t;

#define BL_ROPE_DIVISORS 64 // maximum number of pairs of a head

typedef struct bl_rope {
  bl_rope_kind_t kind;
  double theta;  // the base; 10000 unless a config.json says otherwise
  double factor; // of all kinds but the default, at least 1; long: the longest sequence divided by the original one
  double low_frequency, high_frequency; // of llama3: low < high
  double original;                      // of llama3 and long: sequence length of the first training, in tokens
  uint32_t dims;                        // the first `dims` dimensions of a head rotate, the others do not; even. 0: all
  float divisors[2][BL_ROPE_DIVISORS];  // of long, by pair: [0] in sequences up to the original one, [1] in longer ones
} bl_rope_t;

// Returns how many dimensions of a head rotate.
static inline uint64_t bl_rope_dims(const bl_rope_t *rope, uint64_t head_dim) {
  return rope->dims == 0 ? head_dim : rope->dims;
}

bool bl_rope_equal(const bl_rope_t *a, const bl_rope_t *b);

// Returns the radians per position of pair `i` < bl_rope_dims / 2, in sequences of `seq` tokens.
double bl_rope_frequency(const bl_rope_t *rope, uint64_t i, uint64_t head_dim, uint64_t seq);
// Returns the factor of sines and cosines.
double bl_rope_scale(const bl_rope_t *rope);
// Checks the numbers. Returns a description of what is wrong, or NULL. Heads have `head_dim` dimensions.
const char *bl_rope_fault(const bl_rope_t *rope, uint64_t head_dim);

#endif
