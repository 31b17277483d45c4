// SPDX-License-Identifier: Apache-2.0
// Causal attention. `flash` in bf16 uses cuDNN (flash.h) if cuDNN has an engine for the shape. All other attention is
// composed of batched products and softmax kernels with scores in memory. `naive` keeps its probabilities. `flash` in
// fp32 or with odd head sizes keeps only the log-sum-exps and recomputes the probabilities in its backward.
//
// The composed form loops over sequences, pieces of the key heads, and the query heads per key head. One batch of
// products covers the g-th query head of every key head of a piece. Row-major [seq, head_dim] is column-major
// [head_dim, seq]:
//
//   S' = K'^T Q'   P = softmax(S)   att' = V' P'
//   dP' = V'^T dO'   dS = P (dP - rowsum(P dP)) scale   dV' += dO' P'^T   dK' += Q' dS'^T   dQ' = K' dS'
//
// Only the softmax kernels implement a window and a cap. Products cover whole matrices, so a window saves no work
// there. The slope of a cap needs the scores: the backward recomputes them and keeps them in addition to dP.
//
// dK and dV are summed over the query heads in fp32, in the order of the heads. dqkv may be qkv: dQ is written over a
// query that the products before it have read, and dK and dV over the keys and values of a piece when all its query
// heads are done.
// the products before it have read, dK and dV over keys and values of a piece when all its query heads are done.
#include "compute/ops/cuda/compute.h"
#include "compute/ops/shapes.h"

#include <stdlib.h>

#define SCORES_BYTES_MAX ((uint64_t)128 << 20) // of one batch, unless one head needs more

enum { SCORES, ATTEND, DPROBABILITIES, DVALUES, DVALUES_ADD, DKEYS, DKEYS_ADD, DQUERIES, PRODUCTS };

struct bl_attention_op {
  bl_attention_op_t *next;
  bl_compute_t *compute;
  bl_attention_shape_t shape;
  bl__flash_t *flash; // NULL: composed; the fields below are for that form
  bl__matmul_t *products[PRODUCTS];
  uint64_t group; // query heads per key head
  uint64_t piece; // key heads per batch
  uint64_t row;   // elements between positions of qkv
  bl__bounds_t bounds;
  float scale;
  size_t scores_at, probabilities_at, dscores_at, dkeys_at, dvalues_at;
  size_t dprobabilities_at; // the same as scores_at, unless a cap's slope needs the scores
  size_t workspace_bytes;
};

static void destroy(bl_attention_op_t *op) {
  bl__flash_destroy(op->flash);
  for (int i = 0; i < PRODUCTS; i++) {
    bl__matmul_destroy(op->products[i]);
  }
  free(op);
}

void bl__cuda_attention_destroy_all(bl_compute_t *compute) {
  while (compute->attentions) {
    bl_attention_op_t *op = compute->attentions;
    compute->attentions = op->next;
    destroy(op);
  }
}

// ---- the composed form: plan -------------------------------------------------------------------------------------

static uint64_t piece_of(const bl_attention_shape_t *shape) {
  const uint64_t bytes = shape->seq * shape->seq * sizeof(float);
  uint64_t piece = shape->kv_heads;
  while (piece > 1 && (shape->kv_heads % piece != 0 || piece * bytes > SCORES_BYTES_MAX)) {
    piece--;
  }
  return piece;
}

static bl__matmul_shape_t product_shape(const bl_attention_op_t *op, int which) {
  const bl_attention_shape_t *shape = &op->shape;
  const uint64_t seq = shape->seq, d = shape->head_dim, square = seq * seq, element = bl__element_bytes(shape->dtype);
  const uint64_t att_row = shape->heads * d, q_stride = op->group * d;
  const uint64_t p_stride = shape->flash ? square : op->group * square;
  const bool aligned = d * element % 16 == 0 && square * element % 16 == 0;
  bl__matmul_shape_t p = {
      .batch = op->piece, .bf16 = bl__is_bf16(shape->dtype), .alignment_bytes = aligned ? 16 : (uint32_t)element};
  switch (which) {
  case SCORES:
  case DPROBABILITIES:
    p.m = seq, p.n = seq, p.k = d;
    p.transpose_a = true;
    p.a_ld = op->row, p.a_stride = d;
    p.b_ld = which == SCORES ? op->row : att_row, p.b_stride = q_stride;
    p.d_ld = seq, p.d_stride = square;
    p.float_d = true;
    break;
  case ATTEND:
    p.m = d, p.n = seq, p.k = seq;
    p.a_ld = op->row, p.a_stride = d;
    p.b_ld = seq, p.b_stride = p_stride;
    p.d_ld = att_row, p.d_stride = q_stride;
    break;
  case DQUERIES:
    p.m = d, p.n = seq, p.k = seq;
    p.a_ld = op->row, p.a_stride = d;
    p.b_ld = seq, p.b_stride = square;
    p.d_ld = op->row, p.d_stride = q_stride;
    break;
  default: // products for keys and values; if heads share no values, dV is rounded directly into rows
    p.m = d, p.n = seq, p.k = seq;
    p.transpose_b = true;
    if (which == DVALUES && op->group == 1) {
      p.a_ld = att_row, p.a_stride = d;
      p.b_ld = seq, p.b_stride = p_stride;
      p.d_ld = op->row, p.d_stride = d;
      break;
    }
    p.a_ld = which == DKEYS || which == DKEYS_ADD ? op->row : att_row, p.a_stride = q_stride;
    p.b_ld = seq, p.b_stride = which == DKEYS || which == DKEYS_ADD ? square : p_stride;
    p.d_ld = d, p.d_stride = seq * d;
    p.float_d = true;
    p.add = which == DKEYS_ADD || which == DVALUES_ADD;
    break;
  }
  return p;
}

static bl_status_t plan_composed(bl_attention_op_t *op, bl_error_t *err) {
  const bl_attention_shape_t *shape = &op->shape;
  const uint64_t square = shape->seq * shape->seq * op->piece, element = bl__element_bytes(shape->dtype);
  size_t end = 0;
  for (int i = 0; i < PRODUCTS; i++) {
    if (op->group == 1 && (i == DVALUES_ADD || i == DKEYS_ADD)) {
      continue;
    }
    const bl__matmul_shape_t product = product_shape(op, i);
    bl_status_t status = bl__matmul_create(op->compute->matmuls, &product, &op->products[i], err);
    if (status != BL_OK) {
      return bl_error_prefix(err, "attention");
    }
    const size_t bytes = bl__matmul_workspace_bytes(op->products[i]);
    end = bytes > end ? bytes : end;
  }
  const size_t parts[] = {square * sizeof(float),
                          shape->flash ? square * element : 0,
                          square * element,
                          op->piece * shape->seq * shape->head_dim * sizeof(float),
                          op->group == 1 ? 0 : op->piece * shape->seq * shape->head_dim * sizeof(float),
                          shape->cap != 0 ? square * sizeof(float) : 0};
  size_t *at[] = {&op->scores_at, &op->probabilities_at, &op->dscores_at,
                  &op->dkeys_at,  &op->dvalues_at,       &op->dprobabilities_at};
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    *at[i] = bl_align_up(end, 256);
    end = *at[i] + parts[i];
  }
  op->dprobabilities_at = shape->cap != 0 ? op->dprobabilities_at : op->scores_at;
  op->workspace_bytes = end;
  return BL_OK;
}

// ---- plan --------------------------------------------------------------------------------------------------------

static bl_status_t plan_flash(bl_attention_op_t *op, bl_error_t *err) {
  const bl_attention_shape_t *shape = &op->shape;
  const bl__flash_shape_t flash = {.batch = shape->batch,
                                   .seq = shape->seq,
                                   .heads = shape->heads,
                                   .kv_heads = shape->kv_heads,
                                   .head_dim = shape->head_dim,
                                   .window = op->bounds.window,
                                   .scale = op->scale,
                                   .cap = shape->cap};
  if (!bl__is_bf16(shape->dtype)) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "not in fp32");
  }
  if (shape->head_dim % 8 != 0) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "heads of %llu elements are no multiple of 8",
                        (unsigned long long)shape->head_dim);
  }
  bl_status_t status = bl__flash_create(op->compute->flash, &flash, &op->flash, err);
  if (status == BL_OK) {
    op->workspace_bytes = bl__flash_workspace_bytes(op->flash);
  }
  return status;
}

static bl_status_t plan(bl_attention_op_t *op, bl_error_t *err) {
  if (op->shape.flash) {
    bl_error_t why = {0};
    bl_status_t status = plan_flash(op, &why);
    if (status == BL_OK) {
      return BL_OK;
    }
    if (status != BL_UNIMPLEMENTED) {
      return bl_error_set(err, status, "attention: flash: %s", why.text);
    }
    bl__cuda_note(op->compute, "; flash attention of %llu x %llu by products, with scores in workspace (%s)",
                  (unsigned long long)op->shape.seq, (unsigned long long)op->shape.head_dim, why.text);
  }
  return plan_composed(op, err);
}

bl_status_t bl__cuda_attention_plan(bl_compute_t *compute, const bl_attention_shape_t *shape, bl_attention_op_t **op,
                                    bl_error_t *err) {
  bl_status_t status = bl_attention_shape_check(shape, err);
  if (status != BL_OK) {
    return status;
  }
  for (bl_attention_op_t *known = compute->attentions; known; known = known->next) {
    if (bl_attention_shapes_match(&known->shape, shape)) {
      *op = known;
      return BL_OK;
    }
  }
  bl_attention_op_t *made = calloc(1, sizeof *made);
  if (!made) {
    return bl_error_set(err, BL_EXHAUSTED, "attention: out of memory");
  }
  made->compute = compute;
  made->shape = *shape;
  made->group = shape->heads / shape->kv_heads;
  made->piece = piece_of(shape);
  made->row = (shape->heads + 2 * shape->kv_heads) * shape->head_dim;
  made->scale = (float)bl_attention_scale(shape);
  made->bounds = (bl__bounds_t){.window = shape->window < shape->seq ? shape->window : 0,
                                .cap = shape->cap,
                                .inverse_cap = shape->cap != 0 ? 1 / shape->cap : 0};
  status = plan(made, err);
  if (status != BL_OK) {
    destroy(made);
    return status;
  }
  bl__cuda_want(compute, made->workspace_bytes);
  made->next = compute->attentions;
  compute->attentions = made;
  *op = made;
  return BL_OK;
}

// ---- the composed form: runs ---------------------------------------------------------------------------------------

// One batch of products: the positions of its first head. Offsets count elements.
typedef struct batch {
  char *workspace;
  size_t q, k, v;       // of qkv
  size_t att;           // of att and datt
  size_t probabilities; // of saved (naive)
  size_t lse;           // of saved (flash)
} batch_t;

static batch_t batch_of(const bl_attention_op_t *op, char *workspace, uint64_t sequence, uint64_t key, uint64_t g) {
  const bl_attention_shape_t *shape = &op->shape;
  const uint64_t query = key * op->group + g, d = shape->head_dim, first = sequence * shape->seq;
  const uint64_t head = sequence * shape->heads + query;
  return (batch_t){.workspace = workspace,
                   .q = first * op->row + query * d,
                   .k = first * op->row + (shape->heads + key) * d,
                   .v = first * op->row + (shape->heads + shape->kv_heads + key) * d,
                   .att = first * shape->heads * d + query * d,
                   .probabilities = head * shape->seq * shape->seq,
                   .lse = head * shape->seq};
}

static const void *element(const bl_attention_op_t *op, const void *x, size_t index) {
  return bl__element(op->shape.dtype, x, index);
}

static void multiply(bl_attention_op_t *op, int which, float alpha, const void *a, const void *b, void *d,
                     char *workspace, const char *name) {
  const char *fault = bl__matmul_execute(op->products[which], alpha, a, b, d, NULL, d, workspace);
  if (fault) {
    bl__cuda_fail(op->compute, "%s: %s", name, fault);
  }
}

static void forward_batch(bl_attention_op_t *op, const batch_t *at, const void *qkv, void *att, void *saved) {
  static const char name[] = "attention forward";
  const bl_attention_shape_t *shape = &op->shape;
  const uint64_t square = shape->seq * shape->seq;
  const bool bf16 = bl__is_bf16(shape->dtype);
  float *scores = (float *)(void *)(at->workspace + op->scores_at);
  void *probabilities =
      shape->flash ? at->workspace + op->probabilities_at : bl__element_to(shape->dtype, saved, at->probabilities);
  float *lse = shape->flash ? (float *)saved + at->lse : NULL;
  multiply(op, SCORES, op->scale, element(op, qkv, at->k), element(op, qkv, at->q), scores, at->workspace, name);
  bl__cuda_launched(op->compute,
                    bl__launch_softmax_forward(op->compute->stream, bf16, &op->bounds, op->piece, shape->seq, scores,
                                               probabilities, shape->flash ? square : op->group * square, lse,
                                               op->group * shape->seq),
                    name);
  multiply(op, ATTEND, 1.0f, element(op, qkv, at->v), probabilities, bl__element_to(shape->dtype, att, at->att),
           at->workspace, name);
}

static void backward_batch(bl_attention_op_t *op, const batch_t *at, bool first, const void *datt, const void *qkv,
                           const void *saved, void *dqkv) {
  static const char name[] = "attention backward";
  const bl_attention_shape_t *shape = &op->shape;
  bl_compute_t *compute = op->compute;
  const uint64_t square = shape->seq * shape->seq;
  const bool bf16 = bl__is_bf16(shape->dtype);
  float *scores = (float *)(void *)(at->workspace + op->scores_at);
  float *dprobabilities = (float *)(void *)(at->workspace + op->dprobabilities_at);
  void *dscores = at->workspace + op->dscores_at, *dkeys = at->workspace + op->dkeys_at;
  void *dvalues = op->group == 1 ? bl__element_to(shape->dtype, dqkv, at->v) : at->workspace + op->dvalues_at;
  const void *q = element(op, qkv, at->q), *k = element(op, qkv, at->k), *gradient = element(op, datt, at->att);
  const void *probabilities = element(op, saved, at->probabilities);
  if (shape->flash || shape->cap != 0) {
    multiply(op, SCORES, op->scale, k, q, scores, at->workspace, name);
  }
  if (shape->flash) {
    void *again = at->workspace + op->probabilities_at;
    bl__cuda_launched(compute,
                      bl__launch_softmax_again(compute->stream, bf16, &op->bounds, op->piece, shape->seq, scores,
                                               (const float *)saved + at->lse, op->group * shape->seq, again),
                      name);
    probabilities = again;
  }
  multiply(op, DPROBABILITIES, 1.0f, element(op, qkv, at->v), gradient, dprobabilities, at->workspace, name);
  multiply(op, first ? DVALUES : DVALUES_ADD, 1.0f, gradient, probabilities, dvalues, at->workspace, name);
  bl__cuda_launched(compute,
                    bl__launch_softmax_backward(compute->stream, bf16, &op->bounds, op->piece, shape->seq, scores,
                                                probabilities, shape->flash ? square : op->group * square,
                                                dprobabilities, op->scale, dscores),
                    name);
  multiply(op, first ? DKEYS : DKEYS_ADD, 1.0f, q, dscores, dkeys, at->workspace, name);
  multiply(op, DQUERIES, 1.0f, k, dscores, bl__element_to(shape->dtype, dqkv, at->q), at->workspace, name);
}

// Writes the sums of a piece's keys into rows, and those of its values if heads share them.
static void put_keys(bl_attention_op_t *op, const batch_t *at, void *dqkv) {
  const bl_attention_shape_t *shape = &op->shape;
  const bl__heads_t where = {.batch = 1, .seq = shape->seq, .head_dim = shape->head_dim, .row_stride = op->row};
  const bl__scattered_t sets[] = {
      {at->workspace + op->dkeys_at, bl__element_to(shape->dtype, dqkv, at->k), op->piece},
      {at->workspace + op->dvalues_at, bl__element_to(shape->dtype, dqkv, at->v), op->piece}};
  bl__cuda_launched(
      op->compute,
      bl__launch_scatter(op->compute->stream, bl__is_bf16(shape->dtype), true, &where, op->group == 1 ? 1 : 2, sets),
      "attention backward");
}

// ---- runs --------------------------------------------------------------------------------------------------------

void bl__cuda_attention_forward(bl_attention_op_t *op, const void *qkv, void *att, void *saved) {
  char *workspace = bl__cuda_workspace(op->compute, op->workspace_bytes, "attention forward");
  if (!workspace) {
    return;
  }
  if (op->flash) {
    const char *fault = bl__flash_forward(op->flash, qkv, att, saved, workspace);
    if (fault) {
      bl__cuda_fail(op->compute, "attention forward: %s", fault);
    }
    return;
  }
  for (uint64_t sequence = 0; sequence < op->shape.batch; sequence++) {
    for (uint64_t key = 0; key < op->shape.kv_heads; key += op->piece) {
      for (uint64_t g = 0; g < op->group; g++) {
        const batch_t at = batch_of(op, workspace, sequence, key, g);
        forward_batch(op, &at, qkv, att, saved);
      }
    }
  }
}

void bl__cuda_attention_backward(bl_attention_op_t *op, const void *datt, const void *qkv, const void *att,
                                 const void *saved, void *dqkv) {
  char *workspace = bl__cuda_workspace(op->compute, op->workspace_bytes, "attention backward");
  if (!workspace) {
    return;
  }
  if (op->flash) {
    const char *fault = bl__flash_backward(op->flash, datt, qkv, att, saved, dqkv, workspace);
    if (fault) {
      bl__cuda_fail(op->compute, "attention backward: %s", fault);
    }
    return;
  }
  for (uint64_t sequence = 0; sequence < op->shape.batch; sequence++) {
    for (uint64_t key = 0; key < op->shape.kv_heads; key += op->piece) {
      batch_t at = batch_of(op, workspace, sequence, key, 0);
      for (uint64_t g = 0; g < op->group; g++) {
        at = batch_of(op, workspace, sequence, key, g);
        backward_batch(op, &at, g == 0, datt, qkv, saved, dqkv);
      }
      put_keys(op, &at, dqkv);
    }
  }
}
