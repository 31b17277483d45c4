// SPDX-License-Identifier: Apache-2.0
#include "model/parameters.h"

#include "base/random.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define INITIAL_DEVIATION 0.02

// The widths of which shapes consist.
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

typedef struct {
  const char *name; // "%" PRIu32 is the layer
  bl_parameter_role_t role;
  width_t shape[2];
  initial_t initial;
  const char *post_norm_name; // in models with norms after projections; NULL: the usual name
} row_t;

// Names, shapes and orientation of transformers' GPT2LMHeadModel.
static const row_t gpt2_embedding[] = {
    {"transformer.wte.weight", BL_PARAMETER_TOKEN_EMBEDDING, {VOCAB, HIDDEN}, NORMAL, NULL},
    {"transformer.wpe.weight", BL_PARAMETER_POSITION_EMBEDDING, {POSITIONS, HIDDEN}, NORMAL, NULL},
};
static const row_t gpt2_layer[] = {
    {"transformer.h.%" PRIu32 ".ln_1.weight", BL_PARAMETER_NORM1_WEIGHT, {HIDDEN, ONE}, ONES, NULL},
    {"transformer.h.%" PRIu32 ".ln_1.bias", BL_PARAMETER_NORM1_BIAS, {HIDDEN, ONE}, ZEROS, NULL},
    {"transformer.h.%" PRIu32 ".attn.c_attn.weight", BL_PARAMETER_QKV_WEIGHT, {HIDDEN, QKV}, NORMAL, NULL},
    {"transformer.h.%" PRIu32 ".attn.c_attn.bias", BL_PARAMETER_QKV_BIAS, {QKV, ONE}, ZEROS, NULL},
    {"transformer.h.%" PRIu32 ".attn.c_proj.weight",
     BL_PARAMETER_ATTENTION_OUT_WEIGHT,
     {QUERY, HIDDEN},
     NORMAL_RESIDUAL,
     NULL},
    {"transformer.h.%" PRIu32 ".attn.c_proj.bias", BL_PARAMETER_ATTENTION_OUT_BIAS, {HIDDEN, ONE}, ZEROS, NULL},
    {"transformer.h.%" PRIu32 ".ln_2.weight", BL_PARAMETER_NORM2_WEIGHT, {HIDDEN, ONE}, ONES, NULL},
    {"transformer.h.%" PRIu32 ".ln_2.bias", BL_PARAMETER_NORM2_BIAS, {HIDDEN, ONE}, ZEROS, NULL},
    {"transformer.h.%" PRIu32 ".mlp.c_fc.weight", BL_PARAMETER_FFN_IN_WEIGHT, {HIDDEN, FFN}, NORMAL, NULL},
    {"transformer.h.%" PRIu32 ".mlp.c_fc.bias", BL_PARAMETER_FFN_IN_BIAS, {FFN, ONE}, ZEROS, NULL},
    {"transformer.h.%" PRIu32 ".mlp.c_proj.weight", BL_PARAMETER_FFN_OUT_WEIGHT, {FFN, HIDDEN}, NORMAL_RESIDUAL, NULL},
    {"transformer.h.%" PRIu32 ".mlp.c_proj.bias", BL_PARAMETER_FFN_OUT_BIAS, {HIDDEN, ONE}, ZEROS, NULL},
};
static const row_t gpt2_final[] = {
    {"transformer.ln_f.weight", BL_PARAMETER_FINAL_NORM_WEIGHT, {HIDDEN, ONE}, ONES, NULL},
    {"transformer.ln_f.bias", BL_PARAMETER_FINAL_NORM_BIAS, {HIDDEN, ONE}, ZEROS, NULL},
    {"lm_head.weight", BL_PARAMETER_HEAD_WEIGHT, {VOCAB, HIDDEN}, NORMAL, NULL},
};

// Names and shapes of transformers' LlamaForCausalLM, and of models that have its layers with additional or fused
// tensors.
static const row_t llama_embedding[] = {
    {"model.embed_tokens.weight", BL_PARAMETER_TOKEN_EMBEDDING, {VOCAB, HIDDEN}, NORMAL, NULL},
};
#define LAYER "model.layers.%" PRIu32 "."
#define NORM1                                                                                                          \
  { LAYER "input_layernorm.weight", BL_PARAMETER_NORM1_WEIGHT, {HIDDEN, ONE}, ONES, NULL }
#define OUT                                                                                                            \
  { LAYER "self_attn.o_proj.weight", BL_PARAMETER_ATTENTION_OUT_WEIGHT, {HIDDEN, QUERY}, NORMAL_RESIDUAL, NULL }
#define NORM2                                                                                                          \
  {                                                                                                                    \
    LAYER "post_attention_layernorm.weight", BL_PARAMETER_NORM2_WEIGHT, {HIDDEN, ONE}, ONES,                           \
        LAYER "pre_feedforward_layernorm.weight"                                                                       \
  }
#define DOWN                                                                                                           \
  { LAYER "mlp.down_proj.weight", BL_PARAMETER_FFN_OUT_WEIGHT, {HIDDEN, FFN}, NORMAL_RESIDUAL, NULL }
static const row_t llama_layer[] = {
    NORM1,
    {LAYER "self_attn.q_proj.weight", BL_PARAMETER_Q_WEIGHT, {QUERY, HIDDEN}, NORMAL, NULL},
    {LAYER "self_attn.k_proj.weight", BL_PARAMETER_K_WEIGHT, {KEY_VALUE, HIDDEN}, NORMAL, NULL},
    {LAYER "self_attn.v_proj.weight", BL_PARAMETER_V_WEIGHT, {KEY_VALUE, HIDDEN}, NORMAL, NULL},
    OUT,
    NORM2,
    {LAYER "mlp.gate_proj.weight", BL_PARAMETER_GATE_WEIGHT, {FFN, HIDDEN}, NORMAL, NULL},
    {LAYER "mlp.up_proj.weight", BL_PARAMETER_UP_WEIGHT, {FFN, HIDDEN}, NORMAL, NULL},
    DOWN,
};
static const row_t llama_fused_layer[] = {
    NORM1, {LAYER "self_attn.qkv_proj.weight", BL_PARAMETER_QKV_WEIGHT, {QKV, HIDDEN}, NORMAL, NULL},       OUT,
    NORM2, {LAYER "mlp.gate_up_proj.weight", BL_PARAMETER_GATE_UP_WEIGHT, {TWO_FFN, HIDDEN}, NORMAL, NULL}, DOWN,
};
// Tensors that only some models have.
static const row_t llama_biases[] = {
    {LAYER "self_attn.q_proj.bias", BL_PARAMETER_Q_BIAS, {QUERY, ONE}, ZEROS, NULL},
    {LAYER "self_attn.k_proj.bias", BL_PARAMETER_K_BIAS, {KEY_VALUE, ONE}, ZEROS, NULL},
    {LAYER "self_attn.v_proj.bias", BL_PARAMETER_V_BIAS, {KEY_VALUE, ONE}, ZEROS, NULL},
};
static const row_t llama_head_norms[] = {
    {LAYER "self_attn.q_norm.weight", BL_PARAMETER_Q_NORM_WEIGHT, {HEAD, ONE}, ONES, NULL},
    {LAYER "self_attn.k_norm.weight", BL_PARAMETER_K_NORM_WEIGHT, {HEAD, ONE}, ONES, NULL},
};
static const row_t llama_post_norms[] = {
    {LAYER "post_attention_layernorm.weight", BL_PARAMETER_POST_NORM1_WEIGHT, {HIDDEN, ONE}, ONES, NULL},
    {LAYER "post_feedforward_layernorm.weight", BL_PARAMETER_POST_NORM2_WEIGHT, {HIDDEN, ONE}, ONES, NULL},
};
static const row_t llama_final[] = {
    {"model.norm.weight", BL_PARAMETER_FINAL_NORM_WEIGHT, {HIDDEN, ONE}, ONES, NULL},
    {"lm_head.weight", BL_PARAMETER_HEAD_WEIGHT, {VOCAB, HIDDEN}, NORMAL, NULL},
};

typedef struct {
  const row_t *rows;
  uint32_t count;
} rows_t;
#define LAYER_GROUPS 4

// The tensors of a model in canonical order; those of a layer are in groups. A lookup happens for every tensor,
// thousands of times in a plan, so all tables are constants.
typedef struct {
  const char *prefix; // omitted in checkpoints of the base class
  rows_t embedding, layer[LAYER_GROUPS], final;
  uint32_t layer_count; // tensors of all groups
} table_t;

#define COUNT(array) (sizeof array / sizeof array[0])
#define ROWS(array)                                                                                                    \
  { array, COUNT(array) }
#define IF(has, array)                                                                                                 \
  { array, (has) ? COUNT(array) : 0 }

static const table_t gpt2_table = {.prefix = "transformer.",
                                   .embedding = ROWS(gpt2_embedding),
                                   .layer = {ROWS(gpt2_layer)},
                                   .final = ROWS(gpt2_final),
                                   .layer_count = COUNT(gpt2_layer)};

#define LLAMA(layer_rows, biases, head_norms, post_norms)                                                              \
  {                                                                                                                    \
    .prefix = "model.", .embedding = ROWS(llama_embedding),                                                            \
    .layer = {ROWS(layer_rows), IF(biases, llama_biases), IF(head_norms, llama_head_norms),                            \
              IF(post_norms, llama_post_norms)},                                                                       \
    .final = ROWS(llama_final),                                                                                        \
    .layer_count = COUNT(layer_rows) + ((biases) ? COUNT(llama_biases) : 0) +                                          \
                   ((head_norms) ? COUNT(llama_head_norms) : 0) + ((post_norms) ? COUNT(llama_post_norms) : 0)         \
  }
#define BY_POST_NORM(rows, biases, head_norms)                                                                         \
  { LLAMA(rows, biases, head_norms, 0), LLAMA(rows, biases, head_norms, 1) }
#define BY_HEAD_NORM(rows, biases)                                                                                     \
  { BY_POST_NORM(rows, biases, 0), BY_POST_NORM(rows, biases, 1) }
#define BY_BIASES(rows)                                                                                                \
  { BY_HEAD_NORM(rows, 0), BY_HEAD_NORM(rows, 1) }

static const table_t llama_tables[2][2][2][2] = {BY_BIASES(llama_layer), BY_BIASES(llama_fused_layer)};

static const table_t *table_of(const bl_model_t *model) {
  return model->family == BL_FAMILY_GPT2
             ? &gpt2_table
             : &llama_tables[model->fused][model->qkv_bias][model->head_norm][model->post_norm];
}

static const row_t *row_of_layer(const table_t *table, uint32_t position) {
  const rows_t *group = table->layer;
  for (; position >= group->count; group++) {
    position -= group->count;
  }
  return &group->rows[position];
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

// Returns the table row of a canonical index, and its layer as bl_parameter_t counts it.
static const row_t *row_of(const bl_model_t *model, uint32_t index, int32_t *layer) {
  const table_t *table = table_of(model);
  if (index < table->embedding.count) {
    *layer = BL_PARAMETER_LAYER_EMBEDDING;
    return &table->embedding.rows[index];
  }
  index -= table->embedding.count;
  if (index / table->layer_count < model->layers) {
    *layer = (int32_t)(index / table->layer_count);
    return row_of_layer(table, index % table->layer_count);
  }
  *layer = (int32_t)model->layers;
  return &table->final.rows[index - model->layers * table->layer_count];
}

uint32_t bl_parameter_count(const bl_model_t *model) {
  const table_t *table = table_of(model);
  return table->embedding.count + model->layers * table->layer_count + table->final.count - model->tied;
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
  const bool other = row->post_norm_name != NULL && model->post_norm;
  snprintf(parameter.name, sizeof parameter.name, other ? row->post_norm_name : row->name,
           (uint32_t)parameter.layer); // the formats come from the tables above
#pragma GCC diagnostic pop
  return parameter;
}

bool bl_parameter_find(const bl_model_t *model, const char *name, bl_parameter_t *parameter) {
  const char *prefix = table_of(model)->prefix;
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
  const table_t *table = table_of(model);
  if (role == BL_PARAMETER_HEAD_WEIGHT && model->tied) {
    role = BL_PARAMETER_TOKEN_EMBEDDING;
  }
  uint32_t position = position_in(table->embedding, role);
  if (position < table->embedding.count) {
    return position;
  }
  uint32_t before = 0;
  for (uint32_t group = 0; group < LAYER_GROUPS; group++) {
    position = position_in(table->layer[group], role);
    if (position < table->layer[group].count) {
      return table->embedding.count + layer * table->layer_count + before + position;
    }
    before += table->layer[group].count;
  }
  return table->embedding.count + model->layers * table->layer_count + position_in(table->final, role);
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
