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
  BL_ROPE_DEFAULT, // theta^(-2 i / dims)
  BL_ROPE_LINEAR,  // that, divided by `factor`
  BL_ROPE_LLAMA3, // divided where a turn takes longer than the original sequence / low_frequency, as it is where one takes
                  // less than original / high_frequency, between the two in between
  BL_ROPE_LONG // divided pair by pair by numbers that were searched, others in longer sequences than the original ones; what
               // turns is also made larger (LongRoPE, Ding et al., arXiv 2402.13753)
} bl_rope_kind_t;

#define BL_ROPE_DIVISORS 64 // pairs of a head, at most

typedef struct bl_rope {
  bl_rope_kind_t kind;
  double theta;  // the base; 10000 unless a config.json says otherwise
  double factor; // of the other kinds, at least 1; long: the longest sequence over the original one
  double low_frequency, high_frequency; // of llama3: low < high
  double original;                      // of llama3 and long: tokens of a sequence that the model was trained on first
  uint32_t dims;                        // the first of a head, even: these turn, the others stay. 0: all
  float divisors[2][BL_ROPE_DIVISORS];  // of long, by pair: in sequences up to the original one, and in longer ones
} bl_rope_t;

// Dimensions of a head that turn.
static inline uint64_t bl_rope_dims(const bl_rope_t *rope, uint64_t head_dim) {
  return rope->dims == 0 ? head_dim : rope->dims;
}

bool bl_rope_equal(const bl_rope_t *a, const bl_rope_t *b);

// Radians a position of pair `i` of bl_rope_dims / 2, in sequences of `seq` tokens.
double bl_rope_frequency(const bl_rope_t *rope, uint64_t i, uint64_t head_dim, uint64_t seq);
// What sines and cosines are multiplied by.
double bl_rope_scale(const bl_rope_t *rope);
// Whether the numbers make sense: what is wrong, NULL: nothing. Of long for heads of head_dim.
const char *bl_rope_fault(const bl_rope_t *rope, uint64_t head_dim);

#endif
