// SPDX-License-Identifier: Apache-2.0
// A layer as parts (tensor parallelism, Shoeybi et al., arXiv 1909.08053; rows of norms and residuals are shared out too,
// Korthikanti et al., arXiv 2205.05198).
//
// A layer is *defined* as so many parts: heads, the feed-forward width and the vocabulary are cut into them, and what the
// two projections into the residual stream make of each is added in one binary tree. A rank holds some of the parts, one
// after the other, and computes them by the same operations at the same shapes however many ranks share the layer. So bits
// depend on the number of parts alone.
//
// Which of a tensor's elements a part has is a slice: equal runs in equal rows. Norms and the biases that are added once
// after the sum are not cut: every rank has them whole.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_SPLIT_H
#define BALLAST_MODEL_SPLIT_H

#include "base/error.h"
#include "model/model.h"
#include "model/parameters.h"

#define BL_SPLIT_MOST_PARTS 64 // of a layer

// Zeroed: a layer is one part, which one rank has.
typedef struct bl_split {
  uint32_t parts; // of a layer; a power of two. 0: 1
  uint32_t ranks; // that share them; divides `parts`. 0: 1
  uint32_t rank;  // this one
} bl_split_t;

static inline uint32_t bl_split_parts(bl_split_t split) {
  return split.parts == 0 ? 1 : split.parts;
}
static inline uint32_t bl_split_ranks(bl_split_t split) {
  return split.ranks == 0 ? 1 : split.ranks;
}
// Parts that one rank has, and the first of this one's.
static inline uint32_t bl_split_here(bl_split_t split) {
  return bl_split_parts(split) / bl_split_ranks(split);
}
static inline uint32_t bl_split_first(bl_split_t split) {
  return split.rank * bl_split_here(split);
}

// Rows of a table that is cut by rows (vocabulary, positions) in every part but the last ones, which have what is left.
uint64_t bl_split_table_rows(uint64_t rows, uint32_t parts);
// The rows that one part has.
typedef struct bl_split_range {
  uint64_t first, count;
} bl_split_range_t;
bl_split_range_t bl_split_range(uint64_t rows, uint32_t parts, uint32_t part);

// Whether layers of the model can be so many parts, micro-batches of `rows` tokens too: BL_INVALID says which number the
// parts cannot share, and the most that can.
bl_status_t bl_split_check(const bl_model_t *model, uint32_t parts, uint64_t rows, bl_error_t *err) BL_MUST_USE;

// One part of a model's layers: fewer heads and less feed-forward width, the same hidden size and vocabulary.
bl_model_t bl_split_model(const bl_model_t *model, uint32_t parts);

// Elements of a tensor: `rows` rows, `row_stride` apart, each with `groups` runs of `run` elements, `group_stride` apart.
// Where queries have more heads than keys, of a fused tensor of both, the first `lead` runs of a row lie one after the other
// and the others, `group_stride` apart, begin `after` elements behind the first. In a part they lie one after the other in
// this order.
typedef struct bl_slice {
  uint64_t first;
  uint64_t rows, row_stride;
  uint64_t groups, group_stride;
  uint64_t run;
  uint64_t lead, after;
} bl_slice_t;

static inline uint64_t bl_slice_elements(const bl_slice_t *slice) {
  return slice->rows * slice->groups * slice->run;
}
// Where run `i` of rows * groups begins in the whole tensor; in the part it begins at i * run.
static inline uint64_t bl_slice_run(const bl_slice_t *slice, uint64_t i) {
  const uint64_t row = slice->first + i / slice->groups * slice->row_stride, group = i % slice->groups;
  if (group < slice->lead) {
    return row + group * slice->run;
  }
  return row + slice->after + (group - slice->lead) * slice->group_stride;
}
// Whether it is one run: the whole tensor, or neighbours.
static inline bool bl_slice_is_dense(const bl_slice_t *slice) {
  return slice->rows * slice->groups == 1;
}

bool bl_split_cuts(bl_parameter_role_t role); // false: every rank has the tensor whole
// What part `part` of `parts` has of the parameter; all of it where it is not cut.
bl_slice_t bl_split_slice(const bl_model_t *model, const bl_parameter_t *parameter, uint32_t parts, uint32_t part);
// Initial values (bl_parameter_initial) of the elements [first, first + count) of a slice, as they lie in a part.
void bl_slice_initial(const bl_model_t *model, const bl_parameter_t *parameter, const bl_slice_t *slice, uint64_t seed,
                      uint64_t first, uint64_t count, float *values);

#endif
