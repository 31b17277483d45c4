// SPDX-License-Identifier: Apache-2.0
// Layers as parts (tensor parallelism, Shoeybi et al., arXiv 1909.08053). The rows of norms and residuals are divided
// among ranks as well (Korthikanti et al., arXiv 2205.05198).
//
// A layer is *defined* as a number of parts: heads, the feed-forward width and the vocabulary are cut into parts, and
// the contributions of the parts to the two projections into the residual stream are added in one binary tree. A rank
// has consecutive parts. It computes each with the same operations at the same shapes however many ranks share the
// layer. So bits depend on the number of parts alone.
//
// A slice describes which elements of a tensor a part has: equal runs in equal rows. Norms, and the biases that are
// added once after the sum, are not cut: every rank has them whole.
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_LAYER_PARTS_H
#define BALLAST_MODEL_LAYER_PARTS_H

#include "base/error.h"
#include "model/model.h"
#include "model/parameters.h"

#define BL_LAYER_PARTS_MAX 64 // of a layer

// Zeroed: a layer is one part, held by one rank.
typedef struct bl_layer_parts {
  uint32_t count; // of a layer; a power of two. 0: 1
  uint32_t ranks; // that share the parts; divides `count`. 0: 1
  uint32_t rank;  // number of this rank
} bl_layer_parts_t;

static inline uint32_t bl_layer_parts_count(bl_layer_parts_t layer_parts) {
  return layer_parts.count == 0 ? 1 : layer_parts.count;
}
static inline uint32_t bl_layer_parts_ranks(bl_layer_parts_t layer_parts) {
  return layer_parts.ranks == 0 ? 1 : layer_parts.ranks;
}
// Number of parts that one rank has, and the first part of this rank.
static inline uint32_t bl_layer_parts_here(bl_layer_parts_t layer_parts) {
  return bl_layer_parts_count(layer_parts) / bl_layer_parts_ranks(layer_parts);
}
static inline uint32_t bl_layer_parts_first(bl_layer_parts_t layer_parts) {
  return layer_parts.rank * bl_layer_parts_here(layer_parts);
}

// Returns the rows per part of a table that is cut by rows (vocabulary, positions). The last parts have fewer, or none.
uint64_t bl_layer_parts_table_rows(uint64_t rows, uint32_t parts);
// The rows of one part.
typedef struct bl_layer_part_rows {
  uint64_t first, count;
} bl_layer_part_rows_t;
bl_layer_part_rows_t bl_layer_part_rows(uint64_t rows, uint32_t parts, uint32_t part);

// Checks that the model's layers, and micro-batches of `rows` tokens, can be cut into `parts` parts. BL_INVALID names
// the number that cannot be divided and the largest power of two that is possible.
bl_status_t bl_layer_parts_check(const bl_model_t *model, uint32_t parts, uint64_t rows, bl_error_t *err) BL_MUST_USE;

// Returns one part of a model's layers: fewer heads and less feed-forward width, the same hidden size and vocabulary.
bl_model_t bl_layer_part_model(const bl_model_t *model, uint32_t parts);

// Elements of a tensor: `rows` rows, `row_stride` apart, each with `groups` runs of `run` elements, `group_stride`
// apart. In a fused tensor whose queries have more heads than its keys, the first `lead` runs of a row are contiguous.
// The other runs of the row, `group_stride` apart, begin `after` elements after the start of the first. A part holds
// the runs one after the other in this order.
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
// Returns where run `i` < rows * groups begins in the whole tensor; in the part it begins at i * run.
static inline uint64_t bl_slice_run(const bl_slice_t *slice, uint64_t i) {
  const uint64_t row = slice->first + i / slice->groups * slice->row_stride, group = i % slice->groups;
  if (group < slice->lead) {
    return row + group * slice->run;
  }
  return row + slice->after + (group - slice->lead) * slice->group_stride;
}
// Returns the elements of a row of a slice: one contiguous row of the whole tensor, or the runs of one row of it.
static inline uint64_t bl_slice_row(const bl_parameter_t *parameter, const bl_slice_t *slice) {
  return slice->rows > 1 ? slice->groups * slice->run : parameter->rank > 1 ? parameter->shape[1] : slice->run;
}
// Returns the slice of the first elements of [first, first + count) of a part that one slice can describe: all of them,
// or up to the end of a run. *taken: how many. `first` and `count` are multiples of bl_slice_row.
bl_slice_t bl_slice_range(const bl_slice_t *slice, uint64_t first, uint64_t count, uint64_t *taken);
// True if the slice is one contiguous run.
static inline bool bl_slice_is_dense(const bl_slice_t *slice) {
  return slice->rows * slice->groups == 1;
}

bool bl_layer_parts_cut(bl_parameter_role_t role); // false: every rank has the tensor whole
// Returns the slice of the parameter that part `part` of `parts` has; the whole parameter if it is not cut.
bl_slice_t bl_layer_part_slice(const bl_model_t *model, const bl_parameter_t *parameter, uint32_t parts, uint32_t part);
// Computes initial values (bl_parameter_initial) of the elements [first, first + count) of a slice, in the order of the
// part.
void bl_slice_initial(const bl_model_t *model, const bl_parameter_t *parameter, const bl_slice_t *slice, uint64_t seed,
                      uint64_t first, uint64_t count, float *values);

#endif
