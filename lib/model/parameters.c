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
  FFN,
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
} row_t;

// Names, shapes and orientation of transformers' GPT2LMHeadModel.
static const row_t gpt2_embedding[] = {
    {"transformer.wte.weight", BL_PARAMETER_TOKEN_EMBEDDING, {VOCAB, HIDDEN}, NORMAL},
    {"transformer.wpe.weight", BL_PARAMETER_POSITION_EMBEDDING, {POSITIONS, HIDDEN}, NORMAL},
};
static const row_t gpt2_layer[] = {
    {"transformer.h.%" PRIu32 ".ln_1.weight", BL_PARAMETER_NORM1_WEIGHT, {HIDDEN, ONE}, ONES},
    {"transformer.h.%" PRIu32 ".ln_1.bias", BL_PARAMETER_NORM1_BIAS, {HIDDEN, ONE}, ZEROS},
    {"transformer.h.%" PRIu32 ".attn.c_attn.weight", BL_PARAMETER_QKV_WEIGHT, {HIDDEN, QKV}, NORMAL},
    {"transformer.h.%" PRIu32 ".attn.c_attn.bias", BL_PARAMETER_QKV_BIAS, {QKV, ONE}, ZEROS},
    {"transformer.h.%" PRIu32 ".attn.c_proj.weight",
     BL_PARAMETER_ATTENTION_OUT_WEIGHT,
     {QUERY, HIDDEN},
     NORMAL_RESIDUAL},
    {"transformer.h.%" PRIu32 ".attn.c_proj.bias", BL_PARAMETER_ATTENTION_OUT_BIAS, {HIDDEN, ONE}, ZEROS},
    {"transformer.h.%" PRIu32 ".ln_2.weight", BL_PARAMETER_NORM2_WEIGHT, {HIDDEN, ONE}, ONES},
    {"transformer.h.%" PRIu32 ".ln_2.bias", BL_PARAMETER_NORM2_BIAS, {HIDDEN, ONE}, ZEROS},
    {"transformer.h.%" PRIu32 ".mlp.c_fc.weight", BL_PARAMETER_FFN_IN_WEIGHT, {HIDDEN, FFN}, NORMAL},
    {"transformer.h.%" PRIu32 ".mlp.c_fc.bias", BL_PARAMETER_FFN_IN_BIAS, {FFN, ONE}, ZEROS},
    {"transformer.h.%" PRIu32 ".mlp.c_proj.weight", BL_PARAMETER_FFN_OUT_WEIGHT, {FFN, HIDDEN}, NORMAL_RESIDUAL},
    {"transformer.h.%" PRIu32 ".mlp.c_proj.bias", BL_PARAMETER_FFN_OUT_BIAS, {HIDDEN, ONE}, ZEROS},
};
static const row_t gpt2_final[] = {
    {"transformer.ln_f.weight", BL_PARAMETER_FINAL_NORM_WEIGHT, {HIDDEN, ONE}, ONES},
    {"transformer.ln_f.bias", BL_PARAMETER_FINAL_NORM_BIAS, {HIDDEN, ONE}, ZEROS},
    {"lm_head.weight", BL_PARAMETER_HEAD_WEIGHT, {VOCAB, HIDDEN}, NORMAL},
};

// Names and shapes of transformers' LlamaForCausalLM.
static const row_t llama_embedding[] = {
    {"model.embed_tokens.weight", BL_PARAMETER_TOKEN_EMBEDDING, {VOCAB, HIDDEN}, NORMAL},
};
static const row_t llama_layer[] = {
    {"model.layers.%" PRIu32 ".input_layernorm.weight", BL_PARAMETER_NORM1_WEIGHT, {HIDDEN, ONE}, ONES},
    {"model.layers.%" PRIu32 ".self_attn.q_proj.weight", BL_PARAMETER_Q_WEIGHT, {QUERY, HIDDEN}, NORMAL},
    {"model.layers.%" PRIu32 ".self_attn.k_proj.weight", BL_PARAMETER_K_WEIGHT, {KEY_VALUE, HIDDEN}, NORMAL},
    {"model.layers.%" PRIu32 ".self_attn.v_proj.weight", BL_PARAMETER_V_WEIGHT, {KEY_VALUE, HIDDEN}, NORMAL},
    {"model.layers.%" PRIu32 ".self_attn.o_proj.weight",
     BL_PARAMETER_ATTENTION_OUT_WEIGHT,
     {HIDDEN, QUERY},
     NORMAL_RESIDUAL},
    {"model.layers.%" PRIu32 ".post_attention_layernorm.weight", BL_PARAMETER_NORM2_WEIGHT, {HIDDEN, ONE}, ONES},
    {"model.layers.%" PRIu32 ".mlp.gate_proj.weight", BL_PARAMETER_GATE_WEIGHT, {FFN, HIDDEN}, NORMAL},
    {"model.layers.%" PRIu32 ".mlp.up_proj.weight", BL_PARAMETER_UP_WEIGHT, {FFN, HIDDEN}, NORMAL},
    {"model.layers.%" PRIu32 ".mlp.down_proj.weight", BL_PARAMETER_FFN_OUT_WEIGHT, {HIDDEN, FFN}, NORMAL_RESIDUAL},
    // Where the model has biases of queries, keys and values; the last ones, so that they can be left out.
    {"model.layers.%" PRIu32 ".self_attn.q_proj.bias", BL_PARAMETER_Q_BIAS, {QUERY, ONE}, ZEROS},
    {"model.layers.%" PRIu32 ".self_attn.k_proj.bias", BL_PARAMETER_K_BIAS, {KEY_VALUE, ONE}, ZEROS},
    {"model.layers.%" PRIu32 ".self_attn.v_proj.bias", BL_PARAMETER_V_BIAS, {KEY_VALUE, ONE}, ZEROS},
};
#define LLAMA_BIASES 3
static const row_t llama_final[] = {
    {"model.norm.weight", BL_PARAMETER_FINAL_NORM_WEIGHT, {HIDDEN, ONE}, ONES},
    {"lm_head.weight", BL_PARAMETER_HEAD_WEIGHT, {VOCAB, HIDDEN}, NORMAL},
};

typedef struct {
  const row_t *rows;
  uint32_t count;
} rows_t;
#define ROWS(array)                                                                                                    \
  { array, sizeof array / sizeof array[0] }

typedef struct {
  const char *prefix; // what checkpoints of the base class leave out
  rows_t embedding, layer, final;
} table_t;

static const table_t tables[] = {
    [BL_FAMILY_GPT2] = {"transformer.", ROWS(gpt2_embedding), ROWS(gpt2_layer), ROWS(gpt2_final)},
    [BL_FAMILY_LLAMA] = {"model.", ROWS(llama_embedding), ROWS(llama_layer), ROWS(llama_final)},
};

static table_t table_of(const bl_model_t *model) {
  table_t table = tables[model->family];
  if (model->family == BL_FAMILY_LLAMA && !model->qkv_bias) {
    table.layer.count -= LLAMA_BIASES;
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
  case FFN:
    return model->ffn;
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
  if (index / table.layer.count < model->layers) {
    *layer = (int32_t)(index / table.layer.count);
    return &table.layer.rows[index % table.layer.count];
  }
  *layer = (int32_t)model->layers;
  return &table.final.rows[index - model->layers * table.layer.count];
}

uint32_t bl_parameter_count(const bl_model_t *model) {
  const table_t table = table_of(model);
  return table.embedding.count + model->layers * table.layer.count + table.final.count - model->tied;
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
  const char *prefix = table_of(model).prefix;
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
  position = position_in(table.layer, role);
  if (position < table.layer.count) {
    return table.embedding.count + layer * table.layer.count + position;
  }
  return table.embedding.count + model->layers * table.layer.count + position_in(table.final, role);
}

void bl_parameter_initial(const bl_model_t *model, const bl_parameter_t *parameter, uint64_t seed, uint64_t first,
                          uint64_t count, float *values) {
  int32_t layer;
  const row_t *row = row_of(model, parameter->index, &layer);
  if (row->initial == ZEROS || row->initial == ONES) {
    for (uint64_t i = 0; i < count; i++) {
      values[i] = row->initial == ONES ? 1.0f : 0.0f;
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
