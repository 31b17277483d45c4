// SPDX-License-Identifier: Apache-2.0
// dims: batch, seq, heads, kv_heads, head_dim; of attention then the window, of rope the dimensions that turn, the first
// position and the length of the sequence (0: seq): seq positions of it are a slice. attention
// IN_PLACE: dqkv over qkv; SCALE and SOFTCAP: it has them.
#include "ops/cases/op_case.h"
#include "ops/reference/reference.h"

#include <stdlib.h>
#include <string.h>

enum { QKV, ATT, SAVED, DATT, DQKV };

static size_t tokens_of(const op_case_t *c) {
  return c->dims[0] * c->dims[1];
}

static size_t qkv_count(const op_case_t *c) {
  return tokens_of(c) * (c->dims[2] + 2 * c->dims[3]) * c->dims[4];
}

static size_t qkv_bytes(const op_case_t *c) {
  return qkv_count(c) * (c->flags & OP_BF16 ? sizeof(uint16_t) : sizeof(float));
}

static size_t scores_count(const op_case_t *c) {
  return tokens_of(c) * c->dims[2] * c->dims[1];
}

static void tensors(const op_case_t *c, op_tensor_t *t) {
  const size_t att = tokens_of(c) * c->dims[2] * c->dims[4];
  t[QKV] = (op_tensor_t){"qkv", qkv_count(c), OP_INPUT, 0, false, false};
  t[ATT] = (op_tensor_t){"att", att, OP_OUTPUT, 0, false, false};
  t[SAVED] = (op_tensor_t){
      "saved", c->flags & OP_FLASH ? tokens_of(c) * c->dims[2] : scores_count(c), OP_OUTPUT, 0, false, false};
  t[DATT] = (op_tensor_t){"datt", att, OP_INPUT, 0, false, false};
  t[DQKV] = (op_tensor_t){"dqkv", qkv_count(c), OP_OUTPUT, 0, false, false};
  op_set_typed(t, 1u << QKV | 1u << ATT | 1u << DATT | 1u << DQKV | (c->flags & OP_FLASH ? 0 : 1u << SAVED));
}

#define SCALE   0.3f
#define SOFTCAP 1.5f // of scores of about 1

static void host(const op_host_t *h, const op_case_t *c, float **t) {
  const bl_attention_shape_t shape = {.batch = c->dims[0],
                                      .seq = c->dims[1],
                                      .heads = c->dims[2],
                                      .kv_heads = c->dims[3],
                                      .head_dim = c->dims[4],
                                      .flash = c->flags & OP_FLASH,
                                      .window = c->dims[5],
                                      .scale = c->flags & OP_SCALE ? SCALE : 0.0f,
                                      .softcap = c->flags & OP_SOFTCAP ? SOFTCAP : 0.0f,
                                      .dtype = op_dtype(c)};
  bl_attention_op_t *op;
  bl_error_t err = {0};
  if (h->ops->attention_plan(h->compute, &shape, &op, &err) != BL_OK) {
    return; // the poisoned outputs fail the comparison
  }
  op_host_workspace(h);
  h->ops->attention_forward(op, t[QKV], t[ATT], t[SAVED]);
  const void *qkv = t[QKV];
  if (c->flags & OP_IN_PLACE) {
    op_move(h, t[DQKV], t[QKV], qkv_bytes(c));
    qkv = t[DQKV];
  }
  h->ops->attention_backward(op, t[DATT], qkv, t[ATT], t[SAVED], t[DQKV]);
}

static void run_reference(const op_case_t *c, double **t, bool backward) {
  const reference_attention_t shape = {.batch = c->dims[0],
                                       .seq = c->dims[1],
                                       .heads = c->dims[2],
                                       .kv_heads = c->dims[3],
                                       .head_dim = c->dims[4],
                                       .window = c->dims[5],
                                       .scale = c->flags & OP_SCALE ? (double)SCALE : 0,
                                       .softcap = c->flags & OP_SOFTCAP ? (double)SOFTCAP : 0};
  double *probabilities = calloc(scores_count(c), sizeof(double));
  double *log_sums = calloc(tokens_of(c) * c->dims[2], sizeof(double));
  reference_attention_forward(&shape, t[QKV], t[ATT], probabilities, log_sums);
  if (backward) {
    reference_attention_backward(&shape, t[DATT], t[QKV], probabilities, t[DQKV]);
    if (c->flags & OP_FLASH) {
      memcpy(t[SAVED], log_sums, tokens_of(c) * c->dims[2] * sizeof(double));
    } else {
      memcpy(t[SAVED], probabilities, scores_count(c) * sizeof(double));
    }
  }
  free(probabilities);
  free(log_sums);
}

static void forward(const op_case_t *c, double **t) {
  run_reference(c, t, false);
}

static void reference(const op_case_t *c, double **t) {
  run_reference(c, t, true);
}

const op_kind_t op_attention = {
    .name = "attention",
    .tolerance = 1e-5,
    .bf16_tolerance = 1.0 / 32, // probabilities and outputs that the backward reads have been rounded
    .tensors = tensors,
    .host = host,
    .reference = reference,
    .forward = forward,
    .y = ATT,
    .dy = DATT,
    .slopes = {{QKV, DQKV}},
    .slopes_count = 1,
};

// Rotary positions work in place: `y` and `dx` start as copies of inputs.
enum { ROPE_X, ROPE_Y, ROPE_DY, ROPE_DX };
#define THETA 10000.0

static void rope_tensors(const op_case_t *c, op_tensor_t *t) {
  t[ROPE_X] = (op_tensor_t){"x", qkv_count(c), OP_INPUT, 0, false, false};
  t[ROPE_Y] = (op_tensor_t){"y", qkv_count(c), OP_OUTPUT, 0, false, false};
  t[ROPE_DY] = (op_tensor_t){"dy", qkv_count(c), OP_INPUT, 0, false, false};
  t[ROPE_DX] = (op_tensor_t){"dx", qkv_count(c), OP_OUTPUT, 0, false, false};
  op_set_typed(t, 1u << ROPE_X | 1u << ROPE_Y | 1u << ROPE_DY | 1u << ROPE_DX);
}

static void rope_host(const op_host_t *h, const op_case_t *c, float **t) {
  const bl_rope_shape_t shape = {.batch = c->dims[0],
                                 .seq = c->dims[7] == 0 ? c->dims[1] : c->dims[7],
                                 .heads = c->dims[2],
                                 .kv_heads = c->dims[3],
                                 .head_dim = c->dims[4],
                                 .first = c->dims[6],
                                 .count = c->dims[7] == 0 ? 0 : c->dims[1],
                                 .rope = {.theta = THETA, .dims = (uint32_t)c->dims[5]},
                                 .dtype = op_dtype(c)};
  bl_rope_op_t *op;
  bl_error_t err = {0};
  if (h->ops->rope_plan(h->compute, &shape, &op, &err) != BL_OK) {
    return;
  }
  op_move(h, t[ROPE_Y], t[ROPE_X], qkv_bytes(c));
  h->ops->rope_forward(op, t[ROPE_Y]);
  op_move(h, t[ROPE_DX], t[ROPE_DY], qkv_bytes(c));
  h->ops->rope_backward(op, t[ROPE_DX]);
}

static size_t turning(const op_case_t *c) {
  return c->dims[5] == 0 ? c->dims[4] : c->dims[5];
}

static void turn(const op_case_t *c, double direction, double *qkv) {
  reference_rope(c->dims[0], c->dims[6], c->dims[1], c->dims[2], c->dims[3], c->dims[4], turning(c), THETA, direction,
                 qkv);
}

static void rope_forward(const op_case_t *c, double **t) {
  memcpy(t[ROPE_Y], t[ROPE_X], qkv_count(c) * sizeof(double));
  turn(c, 1, t[ROPE_Y]);
}

static void rope_reference(const op_case_t *c, double **t) {
  rope_forward(c, t);
  memcpy(t[ROPE_DX], t[ROPE_DY], qkv_count(c) * sizeof(double));
  turn(c, -1, t[ROPE_DX]);
}

const op_kind_t op_rope = {
    .name = "rope",
    .tolerance = 2e-5, // angles are rounded to fp32, as transformers does
    .tensors = rope_tensors,
    .host = rope_host,
    .reference = rope_reference,
    .forward = rope_forward,
    .y = ROPE_Y,
    .dy = ROPE_DY,
    .slopes = {{ROPE_X, ROPE_DX}},
    .slopes_count = 1,
};
