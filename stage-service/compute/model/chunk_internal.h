// SPDX-License-Identifier: Apache-2.0
// What the files of a chunk share: planned operations, where weights lie, where the tensors of a layer lie.
#ifndef BALLAST_COMPUTE_MODEL_CHUNK_INTERNAL_H
#define BALLAST_COMPUTE_MODEL_CHUNK_INTERNAL_H

#include "compute/model/chunk.h"
#include "model/workspace.h"

// One weight matrix (or several that one product reads together), its bias and their gradients.
typedef struct bl__linear {
  const float *weight; // master
  void *packed;        // NULL where the plan reads the master
  void *plain;         // of the head in bf16: the copy that pieces of other row counts read; NULL elsewhere
  const float *bias;   // [out], NULL in llama
  float *weight_gradient;
  float *bias_gradient;
} bl__linear_t;

typedef struct bl__norm {
  const float *gain; // [hidden]
  const float *bias; // [hidden], NULL in llama
  float *gain_gradient;
  float *bias_gradient;
} bl__norm_t;

// The products of a layer, in the order of the forward.
typedef enum bl__product { BL__QKV, BL__ATTENTION_OUT, BL__FFN_IN, BL__FFN_OUT, BL__PRODUCTS } bl__product_t;

typedef struct bl__layer {
  bl__norm_t norm1, norm2;
  bl__linear_t linear[BL__PRODUCTS];
} bl__layer_t;

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
  uint64_t rows; // T
  bl_compute_dtype_t dtype;
  float loss_scale; // 1 / (micro_batches T)

  // Planned operations; all layers share them.
  bl_norm_shape_t norm;
  bl_linear_op_t *linear[BL__PRODUCTS];
  bl_attention_op_t *attention;
  bl_rope_op_t *rope;        // NULL in gpt2
  bl_linear_op_t *head;      // of workspace.head_rows rows
  bl_linear_op_t *head_rest; // of the rows that remain; NULL when none do
  bl_linear_op_t *head_row;  // of one row, for sampling
  bool prepack;
  uint64_t packed_layer_bytes;                // per layer
  uint64_t packed_head_bytes;                 // after the layers; the plain copy of the head follows
  uint64_t packed_offset_bytes[BL__PRODUCTS]; // inside a layer

  // Parameters.
  uint32_t parameter_count;
  bl_parameter_place_t *places; // [parameter_count]
  uint32_t *owners;             // [parameter_count]; NULL: it updates all
  uint32_t replica, fold_levels;
  uint64_t *moments;   // [parameter_count] element offsets; of no meaning for others' tensors
  void **copies;       // [parameter_count]: where the update leaves it rounded (adamw_packed), or NULL
  bl__layer_t *layers; // [span.layer_count], pointers valid after use_arenas
  const float *token_embedding, *position_embedding;
  float *token_gradient, *position_gradient;
  bl__norm_t final_norm;
  bl__linear_t head_linear;
};

// The tensors of one layer for one micro-batch. x1 and y are edges at the ends of the chunk.
typedef struct bl__tensors {
  void *x1, *norm1, *qkv, *scores, *attention, *x2, *norm2, *pre, *act;
  float *stats1, *stats2, *norm1_gradient, *norm2_gradient;
  void *y; // output, then its gradient; NULL where nobody wants it (recomputation)
} bl__tensors_t;

// chunk_plan.c: plans operations and computes sizes.
bl_status_t bl__chunk_plan(bl_chunk_t *chunk, bl_error_t *err) BL_MUST_USE;

// chunk_parameters.c: sets the pointers of layers and head into the arenas.
void bl__chunk_bind(bl_chunk_t *chunk);

// layer.c: `in`, `slot`, `out` are those of the chunk.
bl__tensors_t bl__layer_tensors(const bl_chunk_t *chunk, uint32_t layer, void *in, void *slot, void *out);
void bl__layer_forward(bl_chunk_t *chunk, uint32_t index, const bl__tensors_t *t);
void bl__layer_backward_input(bl_chunk_t *chunk, uint32_t index, const bl__tensors_t *t);
void bl__layer_backward_weight(bl_chunk_t *chunk, uint32_t index, const bl__tensors_t *t);
void bl__norm_add_gradient(bl_chunk_t *chunk, const bl__norm_t *norm, const float *partials);

// head.c
void bl__head_backward(bl_chunk_t *chunk, const int32_t *labels, void *slot, void *out, bool accumulate,
                       bl_chunk_loss_t *loss);
float *bl__final_norm_gradient(const bl_chunk_t *chunk, void *slot);

#endif
