// SPDX-License-Identifier: Apache-2.0
// The canonical list of a model's parameters: one entry per tensor, in an order that does not depend on the partition.
//
// The order is: embedding, layers ascending, final norm, head (absent if tied). Names, shapes and orientation are those
// of Hugging Face transformers, so checkpoints can be exchanged without a map. GPT-2's four layer matrices are Conv1D
// weights: [in, out]. Every other matrix is [out, in].
//
//   for (uint32_t i = 0; i < bl_parameter_count(model); i++) {
//     bl_parameter_t parameter = bl_parameter_get(model, i);
//     ...
//   }
//
// Pure. Thread: values, any thread.
#ifndef BALLAST_MODEL_PARAMETERS_H
#define BALLAST_MODEL_PARAMETERS_H

#include "model/model.h"

#define BL_PARAMETER_NAME_BYTES 96

// In the order of the tensors inside their layer.
typedef enum bl_parameter_role {
  BL_PARAMETER_TOKEN_EMBEDDING,      // [vocab, hidden]
  BL_PARAMETER_POSITION_EMBEDDING,   // [positions, hidden], gpt2
  BL_PARAMETER_NORM1_WEIGHT,         // [hidden]
  BL_PARAMETER_NORM1_BIAS,           // [hidden], gpt2
  BL_PARAMETER_QKV_WEIGHT,           // gpt2 [hidden, 3 hidden]; fused [qkv_width, hidden]
  BL_PARAMETER_QKV_BIAS,             // [3 hidden], gpt2
  BL_PARAMETER_Q_WEIGHT,             // [heads head_dim, hidden], llama; k and v follow it without a gap
  BL_PARAMETER_K_WEIGHT,             // [kv_heads head_dim, hidden], llama
  BL_PARAMETER_V_WEIGHT,             // [kv_heads head_dim, hidden], llama
  BL_PARAMETER_ATTENTION_OUT_WEIGHT, // gpt2 [hidden, hidden] in, out; llama [hidden, heads head_dim]
  BL_PARAMETER_ATTENTION_OUT_BIAS,   // [hidden], gpt2
  BL_PARAMETER_NORM2_WEIGHT,         // [hidden]
  BL_PARAMETER_NORM2_BIAS,           // [hidden], gpt2
  BL_PARAMETER_FFN_IN_WEIGHT,        // [hidden, ffn], gpt2
  BL_PARAMETER_FFN_IN_BIAS,          // [ffn], gpt2
  BL_PARAMETER_GATE_UP_WEIGHT,       // [2 ffn, hidden], fused
  BL_PARAMETER_GATE_WEIGHT,          // [ffn, hidden], llama; up follows it without a gap
  BL_PARAMETER_UP_WEIGHT,            // [ffn, hidden], llama
  BL_PARAMETER_FFN_OUT_WEIGHT,       // gpt2 [ffn, hidden] in, out; llama [hidden, ffn]
  BL_PARAMETER_FFN_OUT_BIAS,         // [hidden], gpt2
  BL_PARAMETER_Q_BIAS,               // [heads head_dim], llama with biases; k and v follow it without a gap
  BL_PARAMETER_K_BIAS,               // [kv_heads head_dim]
  BL_PARAMETER_V_BIAS,               // [kv_heads head_dim]
  BL_PARAMETER_Q_NORM_WEIGHT,        // [head_dim], with norms of heads
  BL_PARAMETER_K_NORM_WEIGHT,        // [head_dim]
  BL_PARAMETER_POST_NORM1_WEIGHT,    // [hidden], with norms of the output of attention
  BL_PARAMETER_POST_NORM2_WEIGHT,    // [hidden], with norms of the output of the feed-forward layer
  BL_PARAMETER_FINAL_NORM_WEIGHT,    // [hidden]
  BL_PARAMETER_FINAL_NORM_BIAS,      // [hidden], gpt2
  BL_PARAMETER_HEAD_WEIGHT,          // [vocab, hidden], absent when tied
  BL_PARAMETER_ROLES
} bl_parameter_role_t;

#define BL_PARAMETER_LAYER_EMBEDDING (-1) // layer of the embedding; the final norm and the head have layer = layers

typedef struct bl_parameter {
  uint32_t index; // canonical
  bl_parameter_role_t role;
  int32_t layer;
  char name[BL_PARAMETER_NAME_BYTES]; // "transformer.h.0.attn.c_attn.weight",
                                      // "model.layers.0.mlp.up_proj.weight"
  uint32_t rank;                      // 1 or 2
  uint64_t shape[2];                  // shape[1] = 1 if rank is 1
  uint64_t elements;
  bool input_major; // a matrix stored [in, out] (GPT-2's Conv1D) instead of [out, in]
  bool decays;      // weight decay applies: to matrices only, unless train.decay says all
} bl_parameter_t;

uint32_t bl_parameter_count(const bl_model_t *model);
// Returns a parameter; `index` < bl_parameter_count(model).
bl_parameter_t bl_parameter_get(const bl_model_t *model, uint32_t index);
// Finds a parameter by its full name, also without the leading "transformer." or "model.", as checkpoints of the base
// classes spell it. Returns false if there is none.
bool bl_parameter_find(const bl_model_t *model, const char *name, bl_parameter_t *parameter);
// Returns the canonical index of a role in a layer (`layer` is ignored outside of layers). The model's family must have
// the role. The head of a tied model is the token embedding.
uint32_t bl_parameter_index(const bl_model_t *model, bl_parameter_role_t role, uint32_t layer);

// Computes initial values, EXECUTION.md item 18: a pure function of (seed, name, element index), whichever rank holds
// the tensor. Matrices are N(0, 0.02); the two projections into the residual stream are divided by sqrt(2 layers).
// Biases are 0, norm gains 1 (stored as 0 if gains are stored as gain - 1). Writes elements [first, first + count) to
// `values`.
void bl_parameter_initial(const bl_model_t *model, const bl_parameter_t *parameter, uint64_t seed, uint64_t first,
                          uint64_t count, float *values);

#endif
