// SPDX-License-Identifier: Apache-2.0
#include "model/parameters.h"

#include "base/random.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define INITIAL_DEVIATION 0.02

// The widths a shape is made of.
typedef enum width {
  ONE,
  HIDDEN,
  QUERY,
  KEY_VALUE,
  QKV,
  HEAD,
  FFN,
  TWO_FFN,
  VOCAB,
  POSITIONS,
} width_t;

typedef enum initial {
  ZEROS,
  ONES,
  NORMAL,
  NORMAL_RESIDUAL, // a projection into the residual stream
} initial_t;

// Which models have a tensor.
typedef enum owner {
  EVERY,
  SPLIT, // projections as tensors of their own
  FUSED,
  QKV_BIAS,
  HEAD_NORM,
  POST_NORM,
  NO_POST_NORM,
} owner_t;

typedef struct {
  const char *name; // "%" PRIu32 is the layer
  bl_parameter_role_t role;
  width_t shape[2];
  initial_t initial;
  owner_t owner;
} row_t;

// Names, shapes and orientation of transformers' GPT2LMHeadModel.
static const row_t gpt2_embedding[] = {
    {"transformer.wte.weight", BL_PARAMETER_TOKEN_EMBEDDING, {VOCAB, HIDDEN}, NORMAL, EVERY},
    {"transformer.wpe.weight", BL_PARAMETER_POSITION_EMBEDDING, {POSITIONS, HIDDEN}, NORMAL, EVERY},
};
static const row_t gpt2_layer[] = {
    {"transformer.h.%" PRIu32 ".ln_1.weight", BL_PARAMETER_NORM1_WEIGHT, {HIDDEN, ONE}, ONES, EVERY},
    {"transformer.h.%" PRIu32 ".ln_1.bias", BL_PARAMETER_NORM1_BIAS, {HIDDEN, ONE}, ZEROS, EVERY},
    {"transformer.h.%" PRIu32 ".attn.c_attn.weight", BL_PARAMETER_QKV_WEIGHT, {HIDDEN, QKV}, NORMAL, EVERY},
    {"transformer.h.%" PRIu32 ".attn.c_attn.bias", BL_PARAMETER_QKV_BIAS, {QKV, ONE}, ZEROS, EVERY},
    {"transformer.h.%" PRIu32 ".attn.c_proj.weight",
     BL_PARAMETER_ATTENTION_OUT_WEIGHT,
     {QUERY, HIDDEN},
     NORMAL_RESIDUAL,
     EVERY},
    {"transformer.h.%" PRIu32 ".attn.c_proj.bias", BL_PARAMETER_ATTENTION_OUT_BIAS, {HIDDEN, ONE}, ZEROS, EVERY},
    {"transformer.h.%" PRIu32 ".ln_2.weight", BL_PARAMETER_NORM2_WEIGHT, {HIDDEN, ONE}, ONES, EVERY},
    {"transformer.h.%" PRIu32 ".ln_2.bias", BL_PARAMETER_NORM2_BIAS, {HIDDEN, ONE}, ZEROS, EVERY},
    {"transformer.h.%" PRIu32 ".mlp.c_fc.weight", BL_PARAMETER_FFN_IN_WEIGHT, {HIDDEN, FFN}, NORMAL, EVERY},
    {"transformer.h.%" PRIu32 ".mlp.c_fc.bias", BL_PARAMETER_FFN_IN_BIAS, {FFN, ONE}, ZEROS, EVERY},
    {"transformer.h.%" PRIu32 ".mlp.c_proj.weight", BL_PARAMETER_FFN_OUT_WEIGHT, {FFN, HIDDEN}, NORMAL_RESIDUAL, EVERY},
    {"transformer.h.%" PRIu32 ".mlp.c_proj.bias", BL_PARAMETER_FFN_OUT_BIAS, {HIDDEN, ONE}, ZEROS, EVERY},
};
static const row_t gpt2_final[] = {
    {"transformer.ln_f.weight", BL_PARAMETER_FINAL_NORM_WEIGHT, {HIDDEN, ONE}, ONES, EVERY},
    {"transformer.ln_f.bias", BL_PARAMETER_FINAL_NORM_BIAS, {HIDDEN, ONE}, ZEROS, EVERY},
    {"lm_head.weight", BL_PARAMETER_HEAD_WEIGHT, {VOCAB, HIDDEN}, NORMAL, EVERY},
};

// Names and shapes of transformers' LlamaForCausalLM and of what has its layers with some tensors more or others fused.
static const row_t llama_embedding[] = {
    {"model.embed_tokens.weight", BL_PARAMETER_TOKEN_EMBEDDING, {VOCAB, HIDDEN}, NORMAL, EVERY},
};
#define LAYER "model.layers.%" PRIu32 "."
static const row_t llama_layer[] = {
    {LAYER "input_layernorm.weight", BL_PARAMETER_NORM1_WEIGHT, {HIDDEN, ONE}, ONES, EVERY},
    {LAYER "self_attn.q_proj.weight", BL_PARAMETER_Q_WEIGHT, {QUERY, HIDDEN}, NORMAL, SPLIT},
    {LAYER "self_attn.k_proj.weight", BL_PARAMETER_K_WEIGHT, {KEY_VALUE, HIDDEN}, NORMAL, SPLIT},
    {LAYER "self_attn.v_proj.weight", BL_PARAMETER_V_WEIGHT, {KEY_VALUE, HIDDEN}, NORMAL, SPLIT},
    {LAYER "self_attn.qkv_proj.weight", BL_PARAMETER_QKV_WEIGHT, {QKV, HIDDEN}, NORMAL, FUSED},
    {LAYER "self_attn.o_proj.weight", BL_PARAMETER_ATTENTION_OUT_WEIGHT, {HIDDEN, QUERY}, NORMAL_RESIDUAL, EVERY},
    {LAYER "post_attention_layernorm.weight", BL_PARAMETER_NORM2_WEIGHT, {HIDDEN, ONE}, ONES, NO_POST_NORM},
    {LAYER "pre_feedforward_layernorm.weight", BL_PARAMETER_NORM2_WEIGHT, {HIDDEN, ONE}, ONES, POST_NORM},
    {LAYER "mlp.gate_proj.weight", BL_PARAMETER_GATE_WEIGHT, {FFN, HIDDEN}, NORMAL, SPLIT},
    {LAYER "mlp.up_proj.weight", BL_PARAMETER_UP_WEIGHT, {FFN, HIDDEN}, NORMAL, SPLIT},
    {LAYER "mlp.gate_up_proj.weight", BL_PARAMETER_GATE_UP_WEIGHT, {TWO_FFN, HIDDEN}, NORMAL, FUSED},
    {LAYER "mlp.down_proj.weight", BL_PARAMETER_FFN_OUT_WEIGHT, {HIDDEN, FFN}, NORMAL_RESIDUAL, EVERY},
    {LAYER "self_attn.q_proj.bias", BL_PARAMETER_Q_BIAS, {QUERY, ONE}, ZEROS, QKV_BIAS},
    {LAYER "self_attn.k_proj.bias", BL_PARAMETER_K_BIAS, {KEY_VALUE, ONE}, ZEROS, QKV_BIAS},
    {LAYER "self_attn.v_proj.bias", BL_PARAMETER_V_BIAS, {KEY_VALUE, ONE}, ZEROS, QKV_BIAS},
    {LAYER "self_attn.q_norm.weight", BL_PARAMETER_Q_NORM_WEIGHT, {HEAD, ONE}, ONES, HEAD_NORM},
    {LAYER "self_attn.k_norm.weight", BL_PARAMETER_K_NORM_WEIGHT, {HEAD, ONE}, ONES, HEAD_NORM},
    {LAYER "post_attention_layernorm.weight", BL_PARAMETER_POST_NORM1_WEIGHT, {HIDDEN, ONE}, ONES, POST_NORM},
    {LAYER "post_feedforward_layernorm.weight", BL_PARAMETER_POST_NORM2_WEIGHT, {HIDDEN, ONE}, ONES, POST_NORM},
};
static const row_t llama_final[] = {
    {"model.norm.weight", BL_PARAMETER_FINAL_NORM_WEIGHT, {HIDDEN, ONE}, ONES, EVERY},
    {"lm_head.weight", BL_PARAMETER_HEAD_WEIGHT, {VOCAB, HIDDEN}, NORMAL, EVERY},
};

typedef struct {
  const row_t *rows;
  uint32_t count;
} rows_t;
#define ROWS(array)                                                                                                    \
  { array, sizeof array / sizeof array[0] }

static const struct {
  const char *prefix; // what checkpoints of the base class leave out
  rows_t embedding, layer, final;
} tables[] = {
    [BL_FAMILY_GPT2] = {"transformer.", ROWS(gpt2_embedding), ROWS(gpt2_layer), ROWS(gpt2_final)},
    [BL_FAMILY_LLAMA] = {"model.", ROWS(llama_embedding), ROWS(llama_layer), ROWS(llama_final)},
};

static bool has(const bl_model_t *model, owner_t owner) {
  switch (owner) {
  case EVERY:
    return true;
  case SPLIT:
    return !model->fused;
  case FUSED:
    return model->fused;
  case QKV_BIAS:
    return model->qkv_bias;
  case HEAD_NORM:
    return model->head_norm;
  case POST_NORM:
    return model->post_norm;
  case NO_POST_NORM:
    return !model->post_norm;
  }
  return false;
}

#define MOST_OF_A_LAYER (sizeof llama_layer / sizeof llama_layer[0])
_Static_assert(sizeof gpt2_layer / sizeof gpt2_layer[0] <= MOST_OF_A_LAYER, "a table of gpt2 is larger");

// The tensors that this model has, in canonical order.
typedef struct {
  rows_t embedding, final;
  const row_t *layer[MOST_OF_A_LAYER];
  uint32_t layer_count;
} table_t;

static table_t table_of(const bl_model_t *model) {
  const rows_t layer = tables[model->family].layer;
  table_t table = {.embedding = tables[model->family].embedding, .final = tables[model->family].final};
  for (uint32_t i = 0; i < layer.count; i++) {
    if (has(model, layer.rows[i].owner)) {
      table.layer[table.layer_count++] = &layer.rows[i];
    }
  }
  return table;
}

static uint64_t width(const bl_model_t *model, width_t name) {
  switch (name) {
  case ONE:
    return 1;
  case HIDDEN:
    return model->hidden;
  case QUERY:
    return bl_model_query_width(model);
  case KEY_VALUE:
    return (uint64_t)model->kv_heads * model->head_dim;
  case QKV:
    return bl_model_qkv_width(model);
  case HEAD:
    return model->head_dim;
  case FFN:
    return model->ffn;
  case TWO_FFN:
    return 2 * (uint64_t)model->ffn;
  case VOCAB:
    return model->vocab;
  case POSITIONS:
    return bl_model_positions(model);
  }
  return 0;
}

// The table row of a canonical index, and its layer as bl_parameter_t counts it.
static const row_t *row_of(const bl_model_t *model, uint32_t index, int32_t *layer) {
  const table_t table = table_of(model);
  if (index < table.embedding.count) {
    *layer = BL_PARAMETER_LAYER_EMBEDDING;
    return &table.embedding.rows[index];
  }
  index -= table.embedding.count;
  if (index / table.layer_count < model->layers) {
    *layer = (int32_t)(index / table.layer_count);
    return table.layer[index % table.layer_count];
  }
  *layer = (int32_t)model->layers;
  return &table.final.rows[index - model->layers * table.layer_count];
}

uint32_t bl_parameter_count(const bl_model_t *model) {
  const table_t table = table_of(model);
  return table.embedding.count + model->layers * table.layer_count + table.final.count - model->tied;
}

bl_parameter_t bl_parameter_get(const bl_model_t *model, uint32_t index) {
  bl_parameter_t parameter = {.index = index};
  const row_t *row = row_of(model, index, &parameter.layer);
  parameter.role = row->role;
  parameter.shape[0] = width(model, row->shape[0]);
  parameter.shape[1] = width(model, row->shape[1]);
  parameter.elements = parameter.shape[0] * parameter.shape[1];
  parameter.rank = row->shape[1] == ONE ? 1 : 2;
  parameter.decays = parameter.rank == 2;
  parameter.input_major = model->family == BL_FAMILY_GPT2 && parameter.rank == 2 && parameter.layer >= 0 &&
                          parameter.layer < (int32_t)model->layers;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
  snprintf(parameter.name, sizeof parameter.name, row->name,
           (uint32_t)parameter.layer); // formats of the tables above
#pragma GCC diagnostic pop
  return parameter;
}

bool bl_parameter_find(const bl_model_t *model, const char *name, bl_parameter_t *parameter) {
  const char *prefix = tables[model->family].prefix;
  size_t prefix_length = strlen(prefix);
  for (uint32_t i = 0; i < bl_parameter_count(model); i++) {
    bl_parameter_t candidate = bl_parameter_get(model, i);
    bool has_prefix = strncmp(candidate.name, prefix, prefix_length) == 0;
    if (strcmp(candidate.name, name) == 0 || (has_prefix && strcmp(candidate.name + prefix_length, name) == 0)) {
      *parameter = candidate;
      return true;
    }
  }
  return false;
}

static uint32_t position_in(rows_t rows, bl_parameter_role_t role) {
  uint32_t i = 0;
  while (i < rows.count && rows.rows[i].role != role) {
    i++;
  }
  return i;
}

uint32_t bl_parameter_index(const bl_model_t *model, bl_parameter_role_t role, uint32_t layer) {
  const table_t table = table_of(model);
  if (role == BL_PARAMETER_HEAD_WEIGHT && model->tied) {
    role = BL_PARAMETER_TOKEN_EMBEDDING;
  }
  uint32_t position = position_in(table.embedding, role);
  if (position < table.embedding.count) {
    return position;
  }
  for (position = 0; position < table.layer_count; position++) {
    if (table.layer[position]->role == role) {
      return table.embedding.count + layer * table.layer_count + position;
    }
  }
  return table.embedding.count + model->layers * table.layer_count + position_in(table.final, role);
}

void bl_parameter_initial(const bl_model_t *model, const bl_parameter_t *parameter, uint64_t seed, uint64_t first,
                          uint64_t count, float *values) {
  int32_t layer;
  const row_t *row = row_of(model, parameter->index, &layer);
  if (row->initial == ZEROS || row->initial == ONES) {
    for (uint64_t i = 0; i < count; i++) {
      values[i] = row->initial == ONES && !model->gains_from_one ? 1.0f : 0.0f;
    }
    return;
  }
  double deviation = INITIAL_DEVIATION;
  if (row->initial == NORMAL_RESIDUAL) {
    deviation /= sqrt(2.0 * model->layers);
  }
  uint64_t key = bl_random_key(seed, parameter->name);
  for (uint64_t i = 0; i < count; i++) {
    values[i] = (float)(deviation * bl_random_normal(key, first + i));
  }
}
