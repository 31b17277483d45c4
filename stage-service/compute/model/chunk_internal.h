// SPDX-License-Identifier: Apache-2.0
// Private to the chunk's files: planned operations, pointers to weights, and the tensors of a layer.
#ifndef BALLAST_COMPUTE_MODEL_CHUNK_INTERNAL_H
#define BALLAST_COMPUTE_MODEL_CHUNK_INTERNAL_H

#include "compute/model/chunk.h"
#include "model/workspace.h"

// One weight matrix (or several that one product reads together), its bias and their gradients.
typedef struct bl__linear {
  const float *weight; // master
  void *packed;        // NULL if the plan reads the master
  void *plain;         // the head in bf16: the copy that pieces with other row counts read; NULL elsewhere
  const float *bias;   // [out], NULL in llama
  float *weight_gradient;
  float *bias_gradient;
  uint64_t elements, outputs; // elements of the weight and of the bias
} bl__linear_t;

typedef struct bl__norm {
  const float *gain; // [hidden]; of heads [head_dim]
  const float *bias; // [hidden], NULL in llama
  float *gain_gradient;
  float *bias_gradient;
} bl__norm_t;

// The products of a layer, in the order of the forward.
typedef enum bl__product { BL__QKV, BL__ATTENTION_OUT, BL__FFN_IN, BL__FFN_OUT, BL__PRODUCTS } bl__product_t;

typedef struct bl__layer {
  bl__norm_t norm1, norm2;
  bl__norm_t post1, post2;         // of the outputs of attention and feed-forward layer, if the model normalises those
  bl__norm_t query_norm, key_norm; // of heads, if the model normalises them
  bool window;
  bl__linear_t *linear[BL__PRODUCTS]; // [parts of this chunk] each
  uint32_t first_place, end_place;    // of its parameters, among the chunk's
} bl__layer_t;

// The head's columns of one part of the vocabulary.
typedef struct bl__head {
  bl_layer_part_rows_t tokens;
  bl_linear_op_t *whole;                            // of workspace.head_rows rows
  bl_linear_op_t *rest;                             // of the remaining rows; NULL if none remain
  bl_linear_op_t *row;                              // of one row, for sampling
  uint64_t packed_offset_bytes, plain_offset_bytes; // offsets in the packed copies
  bl__linear_t linear;
} bl__head_t;

// The embedding's rows of one part.
typedef struct bl__embedding {
  bl_embedding_part_t part;
  const float *tokens, *positions; // positions NULL in llama
  float *token_gradient, *position_gradient;
} bl__embedding_t;

// Operations that depend on the positions of the rows in their sequence.
typedef struct bl__positions {
  // [0]: of layers that see all keys, [1]: of layers with a window; NULL if there are none.
  bl_attention_op_t *attention[2];
  bl_rope_op_t *rope[2]; // likewise; NULL in gpt2
} bl__positions_t;

#define BL__SUMS 16 // maximum of requested column sums

struct bl_chunk {
  const bl_ops_t *ops;
  bl_compute_t *compute;
  bl_device_t *device; // never NULL
  bl_model_t model;
  bl_chunk_span_t span;
  bl_layout_t layout;
  bl_workspace_t workspace;
  bl_chunk_sizes_t sizes;
  bl_chunk_arenas_t arenas;
  uint32_t parts, here; // parts of a layer, and how many of them this chunk has
  uint32_t ranks, rank; // ranks that share the chunk's layers
  uint32_t slices;      // slices of a sequence
  uint64_t rows;        // T
  uint64_t own_rows;    // T / ranks
  bl_group_t *group;    // of the ranks; `alone` if there is one rank
  bl_group_t alone;
  bl_compute_dtype_t dtype;
  double loss_rows; // labels of a micro-batch that count, on average over those of a step
  float loss_scale; // 1 / (micro_batches loss_rows)
  // [T] labels of the rows that the head computes, if rows without a loss are left out; NULL: none are, because ranks
  // share the rows, or the CPU cannot move them.
  int32_t *moved_labels;

  // Planned operations; all layers share them.
  bl_norm_shape_t norm;                 // of the rows of one part
  bl_head_norm_shape_t head_norm;       // of all rows of one part's heads
  bl_linear_op_t *linear[BL__PRODUCTS]; // of one part; all layers and parts share it
  uint64_t in[BL__PRODUCTS], out[BL__PRODUCTS];
  bl__positions_t *positions; // [slices]
  bl_chunk_slice_t slice;     // the slice that operations compute
  bool prepack;
  uint64_t packed_layer_bytes;                // per layer
  uint64_t packed_offset_bytes[BL__PRODUCTS]; // in a layer, of the first part

  // Parameters.
  uint32_t parameter_count;
  bl_parameter_place_t *places; // [parameter_count]
  bl_ownership_t ownership;
  uint32_t copy, fold_levels;
  bool sharded;               // copies share out the masters (bl_resident_shares_masters)
  uint64_t *moments;          // [parameter_count] element offsets; undefined where other copies update all
  uint64_t *masters;          // likewise, if sharded, and undefined where the weight is resident
  uint64_t *resident;         // [parameter_count] element offsets (model/resident.h)
  void **copies;              // [parameter_count]: where the update writes the weight rounded (adamw_packs), or NULL
  bl__layer_t *layers;        // [span.layer_count], pointers valid after use_arenas
  bl__linear_t *linears;      // [span.layer_count][BL__PRODUCTS][here], of the layers
  bl__embedding_t *embedding; // [here] in a chunk with the embedding
  bl__norm_t final_norm;
  bl__head_t *head; // [here] in a chunk with the head

  // Requested one by one and executed together (operations that take many tensors).
  bl_column_sum_t sums[BL__SUMS];
  uint32_t sum_count;
  bl_squares_t *squares; // [bl_shard_squares]
  uint32_t squares_count;
  bl_adamw_tensor_t *updates; // [parameter_count]

  // chunk_host.c
  const bl_host_optimizer_t *host;
  bl_device_event_t *complete, *landed, *returned;
  bool last; // the next W is the step's last

  bl_error_t failure; // of a copy (bl__chunk_keep)
};

static inline bool bl__chunk_is_alone(const bl_chunk_t *chunk) {
  return bl_copies_count(chunk->ownership.copies) == 1;
}
static inline bool bl__chunk_is_in_parts(const bl_chunk_t *chunk) {
  return chunk->parts > 1;
}
static inline bl_device_stream_t *bl__chunk_stream(const bl_chunk_t *chunk) {
  return chunk->ops->stream == NULL ? NULL : chunk->ops->stream(chunk->compute);
}
static inline const bl__positions_t *bl__chunk_positions(const bl_chunk_t *chunk) {
  return &chunk->positions[chunk->slice.index];
}
static inline uint64_t bl__chunk_row_bytes(const bl_chunk_t *chunk) {
  return chunk->model.hidden * bl_dtype_bytes(chunk->layout.options.dtype);
}

// The tensors of one layer for one micro-batch. At the ends of the chunk, x1 and y are edges. A pointer to a tensor in
// parts is that of the first part of this chunk.
typedef struct bl__tensors {
  void *x1, *norm1, *qkv, *scores, *attention, *x2, *norm2, *pre, *act;
  float *stats1, *stats2, *norm1_gradient, *norm2_gradient;
  void *heads, *post1, *post2; // NULL if the model has no such norms
  float *post1_stats, *post2_stats, *heads_gradient, *post1_gradient, *post2_gradient;
  void *y; // output, then its gradient; NULL if no caller needs it (recomputation)
} bl__tensors_t;

// chunk_plan.c: plans operations and computes sizes.
bl_status_t bl__chunk_plan(bl_chunk_t *chunk, bl_error_t *err) BL_MUST_USE;

// chunk_parameters.c: sets the pointers of layers and head into the arenas.
void bl__chunk_bind(bl_chunk_t *chunk);

// rows.c: norms and residuals on own rows, all rows from own rows, and own rows from the sum over parts.
void bl__norm_forward_rows(bl_chunk_t *chunk, const bl__norm_t *norm, const void *x, void *y, float *stats);
// dx = d norm(dy) + residual_gradient. partials: one set per part, from the rows of that part.
void bl__norm_backward_rows(bl_chunk_t *chunk, const bl__norm_t *norm, const void *dy, const void *x,
                            const float *stats, const void *residual_gradient, void *dx, float *partials);
// Requests sums [columns] += the sums over rows of x. x must not change until the sums are computed: by bl__make_sums,
// or, if several ranks share the layers, by the next bl__all_rows.
void bl__ask_sum(bl_chunk_t *chunk, uint64_t rows, uint64_t columns, bl_compute_dtype_t dtype, const void *x,
                 float *sums);
void bl__make_sums(bl_chunk_t *chunk);
// Requests that the gradients from norm_backward_rows be added, those of each part's rows to a sum of their own.
void bl__norm_add_gradient(bl_chunk_t *chunk, const bl__norm_t *norm, const float *partials);
// Likewise for the gradients from head_norm_backward of the chunk's part number `part`.
void bl__head_norm_add_gradient(bl_chunk_t *chunk, const bl__layer_t *layer, uint32_t part, const float *partials);
// Returns all rows of a tensor [own rows, hidden]: itself, or a copy that is valid until the next call.
const void *bl__all_rows(bl_chunk_t *chunk, const void *own);
// bl__sum_of returns where the chunk's part number `index` writes its addend [T, hidden] for all rows, in the memory
// that bl__sum_begin returned.
void *bl__sum_begin(bl_chunk_t *chunk, uint32_t window);
void *bl__sum_of(const bl_chunk_t *chunk, void *sums, uint32_t index);
// y [own rows] = the sum of all parts + bias + residual (NULL: none).
void bl__sum_end(bl_chunk_t *chunk, uint32_t window, const float *bias, const void *residual, void *y);

// Returns the device memory of a place's weight, or the buffer from which that weight is packed (chunk_host.c,
// chunk_masters.c).
float *bl__chunk_weight(const bl_chunk_t *chunk, uint32_t place);
float *bl__chunk_gradient(const bl_chunk_t *chunk, uint32_t place);
// Returns the range of a place that the chunk updates, and the first of the weights that are updated.
bl_shard_range_t bl__chunk_range(const bl_chunk_t *chunk, uint32_t place);
float *bl__chunk_updated(const bl_chunk_t *chunk, uint32_t place);
// Refreshes the packed copies.
void bl__chunk_pack(bl_chunk_t *chunk);

// chunk_masters.c: copies all weights from the place of their gradients. Does nothing unless the chunk is sharded.
void bl__chunk_take_weights(bl_chunk_t *chunk);

// chunk_host.c: keeps the first failure, which bl_chunk_status returns. Returns whether `status` is none.
bool bl__chunk_keep(bl_chunk_t *chunk, bl_status_t status, const bl_error_t *err);
// The others do nothing without options.host.
bl_status_t bl__chunk_host_create(bl_chunk_t *chunk, bl_error_t *err) BL_MUST_USE;
void bl__chunk_host_destroy(bl_chunk_t *chunk); // waits for copies in flight
void bl__chunk_land_layer(bl_chunk_t *chunk, uint32_t layer);
void bl__chunk_land_ends(bl_chunk_t *chunk);    // except those to which a tied gradient is still to be added
void bl__chunk_wait_copies(bl_chunk_t *chunk);  // call it before an operation writes gradients
void bl__chunk_send_weights(bl_chunk_t *chunk); // all, in the order of the operations
void bl__chunk_update_on_host(bl_chunk_t *chunk, const bl_adamw_settings_t *settings, const bl_adamw_step_t *step);

// layer.c: `in`, `slot`, `out` are those of the chunk.
bl__tensors_t bl__layer_tensors(const bl_chunk_t *chunk, uint32_t layer, void *in, void *slot, void *out);
void bl__layer_forward(bl_chunk_t *chunk, uint32_t index, const bl__tensors_t *t);
void bl__layer_backward_input(bl_chunk_t *chunk, uint32_t index, const bl__tensors_t *t);
void bl__layer_backward_weight(bl_chunk_t *chunk, uint32_t index, const bl__tensors_t *t);

// head.c
void bl__head_backward(bl_chunk_t *chunk, const int32_t *labels, void *slot, void *out, bool accumulate,
                       bl_chunk_loss_t *loss);
float *bl__final_norm_gradient(const bl_chunk_t *chunk, void *slot);

#endif
