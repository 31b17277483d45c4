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
// Only the softmax kernels implement a window and a softcap. Products cover whole matrices, so a window saves no work
// there. The slope of a softcap needs the scores: the backward recomputes them and keeps them in addition to dP.
//
// dK and dV are summed over the query heads in fp32, in the order of the heads. dqkv may be qkv: dQ is written over a
// query that the products before it have read, and dK and dV over the keys and values of a piece when all its query
// heads are done.
//
// A slice of a sequence has `rows` queries, the last of `keys` positions. Its matrices are [rows, keys]. The keys and
// values of a piece are gathered from the pages into a block [keys, 2, piece, head_dim] in workspace, except in the
// first slice, which reads its own rows. The gradients of all keys form such a block of floats, which is then taken
// apart: into the pages of sums and the own rows.
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
  uint64_t group;   // query heads per key head
  uint64_t piece;   // key heads per batch
  uint64_t row;     // elements between positions of qkv
  uint64_t rows;    // of a sequence in qkv: queries
  uint64_t keys;    // that the last query of a sequence sees
  bool gathered;    // keys and values are read from a block in workspace, not from qkv
  uint64_t key_row; // elements between positions of keys and values
  bl__bounds_t bounds;
  float scale;
  size_t keys_at, scores_at, probabilities_at, dscores_at, dkeys_at, dvalues_at;
  size_t dprobabilities_at; // the same as scores_at, unless a softcap's slope needs the scores
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

static uint64_t piece_of(const bl_attention_shape_t *shape, uint64_t rows, uint64_t keys) {
  const uint64_t bytes = rows * keys * sizeof(float);
  uint64_t piece = shape->kv_heads;
  while (piece > 1 && (shape->kv_heads % piece != 0 || piece * bytes > SCORES_BYTES_MAX)) {
    piece--;
  }
  return piece;
}

static bl__matmul_shape_t product_shape(const bl_attention_op_t *op, int which) {
  const bl_attention_shape_t *shape = &op->shape;
  const uint64_t d = shape->head_dim, matrix = op->rows * op->keys, element = bl__element_bytes(shape->dtype);
  const uint64_t att_row = shape->heads * d, q_stride = op->group * d;
  const uint64_t p_stride = shape->flash ? matrix : op->group * matrix;
  const bool is_slice = shape->count != 0, aligned = d * element % 16 == 0 && matrix * element % 16 == 0;
  bl__matmul_shape_t p = {
      .batch = op->piece, .bf16 = bl__is_bf16(shape->dtype), .alignment_bytes = aligned ? 16 : (uint32_t)element};
  switch (which) {
  case SCORES:
  case DPROBABILITIES:
    p.m = op->keys, p.n = op->rows, p.k = d;
    p.transpose_a = true;
    p.a_ld = op->key_row, p.a_stride = d;
    p.b_ld = which == SCORES ? op->row : att_row, p.b_stride = q_stride;
    p.d_ld = op->keys, p.d_stride = matrix;
    p.float_d = true;
    break;
  case ATTEND:
    p.m = d, p.n = op->rows, p.k = op->keys;
    p.a_ld = op->key_row, p.a_stride = d;
    p.b_ld = op->keys, p.b_stride = p_stride;
    p.d_ld = att_row, p.d_stride = q_stride;
    break;
  case DQUERIES:
    p.m = d, p.n = op->rows, p.k = op->keys;
    p.a_ld = op->key_row, p.a_stride = d;
    p.b_ld = op->keys, p.b_stride = matrix;
    p.d_ld = op->row, p.d_stride = q_stride;
    break;
  default: // products for keys and values; if heads share no values, dV of a whole sequence is rounded into rows
    p.m = d, p.n = op->keys, p.k = op->rows;
    p.transpose_b = true;
    if (which == DVALUES && op->group == 1 && !is_slice) {
      p.a_ld = att_row, p.a_stride = d;
      p.b_ld = op->keys, p.b_stride = p_stride;
      p.d_ld = op->row, p.d_stride = d;
      break;
    }
    p.a_ld = which == DKEYS || which == DKEYS_ADD ? op->row : att_row, p.a_stride = q_stride;
    p.b_ld = op->keys, p.b_stride = which == DKEYS || which == DKEYS_ADD ? matrix : p_stride;
    p.d_ld = is_slice ? 2 * op->piece * d : d, p.d_stride = is_slice ? d : op->keys * d;
    p.float_d = true;
    p.add = which == DKEYS_ADD || which == DVALUES_ADD;
    break;
  }
  return p;
}

// Lays out the workspace, after `end` bytes for the library.
static void size_workspace(bl_attention_op_t *op, size_t end) {
  const bl_attention_shape_t *shape = &op->shape;
  const bool is_slice = shape->count != 0;
  const uint64_t matrices = op->rows * op->keys * op->piece, heads = op->piece * op->keys * shape->head_dim;
  const uint64_t element = bl__element_bytes(shape->dtype);
  const size_t parts[] = {op->gathered ? 2 * heads * element : 0,
                          matrices * sizeof(float),
                          shape->flash ? matrices * element : 0,
                          matrices * element,
                          (is_slice ? 2 * heads : heads) * sizeof(float),
                          op->group == 1 || is_slice ? 0 : heads * sizeof(float),
                          shape->softcap != 0 ? matrices * sizeof(float) : 0};
  size_t *at[] = {&op->keys_at,  &op->scores_at,  &op->probabilities_at, &op->dscores_at,
                  &op->dkeys_at, &op->dvalues_at, &op->dprobabilities_at};
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    *at[i] = bl_align_up(end, 256);
    end = *at[i] + parts[i];
  }
  if (is_slice) {
    op->dvalues_at = op->dkeys_at + op->piece * shape->head_dim * sizeof(float);
  }
  op->dprobabilities_at = shape->softcap != 0 ? op->dprobabilities_at : op->scores_at;
  op->workspace_bytes = end;
}

static bl_status_t plan_composed(bl_attention_op_t *op, bl_error_t *err) {
  size_t end = 0;
  op->piece = piece_of(&op->shape, op->rows, op->keys);
  op->key_row = op->gathered ? 2 * op->piece * op->shape.head_dim : op->row;
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
  size_workspace(op, end);
  return BL_OK;
}

// ---- plan --------------------------------------------------------------------------------------------------------

static bl_status_t plan_flash(bl_attention_op_t *op, bl_error_t *err) {
  const bl_attention_shape_t *shape = &op->shape;
  const bl__flash_shape_t flash = {.batch = shape->batch,
                                   .seq = op->rows,
                                   .heads = shape->heads,
                                   .kv_heads = shape->kv_heads,
                                   .head_dim = shape->head_dim,
                                   .window = op->bounds.window,
                                   .scale = op->scale,
                                   .softcap = shape->softcap,
                                   .slice = shape->count != 0,
                                   .first = shape->first};
  if (!bl__is_bf16(shape->dtype)) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "not in fp32");
  }
  if (shape->head_dim % 8 != 0) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "heads of %llu elements are no multiple of 8",
                        (unsigned long long)shape->head_dim);
  }
  bl_status_t status = bl__flash_create(op->compute->flash, &flash, &op->flash, err);
  if (status == BL_OK) {
    const uint64_t block = shape->batch * op->keys * 2 * shape->kv_heads * shape->head_dim * 2; // bytes
    op->keys_at = bl_align_up(bl__flash_workspace_bytes(op->flash), 256);
    op->dkeys_at = bl_align_up(op->keys_at + (op->gathered ? block : 0), 256);
    op->workspace_bytes = op->dkeys_at + (shape->count != 0 ? block : 0);
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
    if (op->shape.first == 0) { // of slices, those after the first differ in length alone
      bl__cuda_note(op->compute, "; flash attention of %llu x %llu by products, with scores in workspace (%s)",
                    (unsigned long long)op->shape.seq, (unsigned long long)op->shape.head_dim, why.text);
    }
  }
  return plan_composed(op, err);
}

bl_status_t bl__cuda_attention_plan(bl_compute_t *compute, const bl_attention_shape_t *shape, bl_attention_op_t **op,
                                    bl_error_t *err) {
  bl_status_t status = bl_attention_shape_check(shape, err);
  if (status != BL_OK) {
    return status;
  }
  if (shape->count != 0 && shape->first / shape->count >= BL__PAGES_MAX) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "attention: slice %llu of a sequence; a GPU takes %d",
                        (unsigned long long)(shape->first / shape->count), BL__PAGES_MAX);
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
  made->row = (shape->heads + 2 * shape->kv_heads) * shape->head_dim;
  made->rows = bl_slice_rows(shape->seq, shape->count);
  made->keys = shape->first + made->rows;
  made->gathered = shape->first > 0;
  made->scale = (float)bl_attention_scale(shape);
  made->bounds = (bl__bounds_t){.window = shape->window < made->keys ? shape->window : 0,
                                .softcap = shape->softcap,
                                .inverse_softcap = shape->softcap != 0 ? 1 / shape->softcap : 0};
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
  const void *keys, *values;
  size_t q, own_keys, own_values; // of qkv
  size_t att;                     // of att and datt
  size_t probabilities;           // of saved (naive)
  size_t lse;                     // of saved (flash)
} batch_t;

static const void *element(const bl_attention_op_t *op, const void *x, size_t index) {
  return bl__element(op->shape.dtype, x, index);
}

static batch_t batch_of(const bl_attention_op_t *op, char *workspace, const void *qkv, uint64_t sequence, uint64_t key,
                        uint64_t g) {
  const bl_attention_shape_t *shape = &op->shape;
  const uint64_t query = key * op->group + g, d = shape->head_dim, first = sequence * op->rows;
  const uint64_t head = sequence * shape->heads + query;
  batch_t at = {.workspace = workspace,
                .q = first * op->row + query * d,
                .own_keys = first * op->row + (shape->heads + key) * d,
                .own_values = first * op->row + (shape->heads + shape->kv_heads + key) * d,
                .att = first * shape->heads * d + query * d,
                .probabilities = head * op->rows * op->keys,
                .lse = head * op->rows};
  at.keys = op->gathered ? workspace + op->keys_at : element(op, qkv, at.own_keys);
  at.values = op->gathered ? element(op, at.keys, op->piece * d) : element(op, qkv, at.own_values);
  return at;
}

static void multiply(bl_attention_op_t *op, int which, float alpha, const void *a, const void *b, void *d,
                     char *workspace, const char *name) {
  const char *fault = bl__matmul_execute(op->products[which], alpha, a, b, d, NULL, d, workspace);
  if (fault) {
    bl__cuda_fail(op->compute, "%s: %s", name, fault);
  }
}

static bl__scores_t scores_of(const bl_attention_op_t *op) {
  return (bl__scores_t){.matrices = op->piece, .rows = op->rows, .keys = op->keys};
}

static void forward_batch(bl_attention_op_t *op, const batch_t *at, const void *qkv, void *att, void *saved) {
  static const char name[] = "attention forward";
  const bl_attention_shape_t *shape = &op->shape;
  const uint64_t matrix = op->rows * op->keys;
  const bl__scores_t matrices = scores_of(op);
  const bool bf16 = bl__is_bf16(shape->dtype);
  float *scores = (float *)(void *)(at->workspace + op->scores_at);
  void *probabilities =
      shape->flash ? at->workspace + op->probabilities_at : bl__element_to(shape->dtype, saved, at->probabilities);
  float *lse = shape->flash ? (float *)saved + at->lse : NULL;
  multiply(op, SCORES, op->scale, at->keys, element(op, qkv, at->q), scores, at->workspace, name);
  bl__cuda_launched(op->compute,
                    bl__launch_softmax_forward(op->compute->stream, bf16, &op->bounds, &matrices, scores, probabilities,
                                               shape->flash ? matrix : op->group * matrix, lse, op->group * op->rows),
                    name);
  multiply(op, ATTEND, 1.0f, at->values, probabilities, bl__element_to(shape->dtype, att, at->att), at->workspace,
           name);
}

static void backward_batch(bl_attention_op_t *op, const batch_t *at, bool first, const void *datt, const void *qkv,
                           const void *saved, void *dqkv) {
  static const char name[] = "attention backward";
  const bl_attention_shape_t *shape = &op->shape;
  bl_compute_t *compute = op->compute;
  const uint64_t matrix = op->rows * op->keys;
  const bl__scores_t matrices = scores_of(op);
  const bool bf16 = bl__is_bf16(shape->dtype), direct = op->group == 1 && shape->count == 0;
  float *scores = (float *)(void *)(at->workspace + op->scores_at);
  float *dprobabilities = (float *)(void *)(at->workspace + op->dprobabilities_at);
  void *dscores = at->workspace + op->dscores_at, *dkeys = at->workspace + op->dkeys_at;
  void *dvalues = direct ? bl__element_to(shape->dtype, dqkv, at->own_values) : at->workspace + op->dvalues_at;
  const void *q = element(op, qkv, at->q), *gradient = element(op, datt, at->att);
  const void *probabilities = element(op, saved, at->probabilities);
  if (shape->flash || shape->softcap != 0) {
    multiply(op, SCORES, op->scale, at->keys, q, scores, at->workspace, name);
  }
  if (shape->flash) {
    void *again = at->workspace + op->probabilities_at;
    bl__cuda_launched(compute,
                      bl__launch_softmax_again(compute->stream, bf16, &op->bounds, &matrices, scores,
                                               (const float *)saved + at->lse, op->group * op->rows, again),
                      name);
    probabilities = again;
  }
  multiply(op, DPROBABILITIES, 1.0f, at->values, gradient, dprobabilities, at->workspace, name);
  multiply(op, first ? DVALUES : DVALUES_ADD, 1.0f, gradient, probabilities, dvalues, at->workspace, name);
  bl__cuda_launched(compute,
                    bl__launch_softmax_backward(compute->stream, bf16, &op->bounds, &matrices, scores, probabilities,
                                                shape->flash ? matrix : op->group * matrix, dprobabilities, op->scale,
                                                dscores),
                    name);
  multiply(op, first ? DKEYS : DKEYS_ADD, 1.0f, q, dscores, dkeys, at->workspace, name);
  multiply(op, DQUERIES, 1.0f, at->keys, dscores, bl__element_to(shape->dtype, dqkv, at->q), at->workspace, name);
}

// Writes the sums of a piece's keys into rows, and those of its values if heads share them.
static void put_keys(bl_attention_op_t *op, const batch_t *at, void *dqkv) {
  const bl_attention_shape_t *shape = &op->shape;
  const bl__heads_t where = {.batch = 1, .seq = op->rows, .head_dim = shape->head_dim, .row_stride = op->row};
  const bl__scattered_t sets[] = {
      {at->workspace + op->dkeys_at, bl__element_to(shape->dtype, dqkv, at->own_keys), op->piece},
      {at->workspace + op->dvalues_at, bl__element_to(shape->dtype, dqkv, at->own_values), op->piece}};
  bl__cuda_launched(
      op->compute,
      bl__launch_scatter(op->compute->stream, bl__is_bf16(shape->dtype), true, &where, op->group == 1 ? 1 : 2, sets),
      "attention backward");
}

// ---- slices --------------------------------------------------------------------------------------------------------

static unsigned pages_of(const bl_attention_op_t *op) { // slices up to this one
  return (unsigned)(op->keys / op->rows);
}

// Rows of a page, and of qkv from the first key head on.
static bl__key_rows_t page_rows(const bl_attention_op_t *op) {
  const uint64_t width = op->shape.kv_heads * op->shape.head_dim;
  return (bl__key_rows_t){.sequence = op->rows * 2 * width, .row = 2 * width, .values = width};
}

static bl__key_rows_t own_rows(const bl_attention_op_t *op) {
  return (bl__key_rows_t){
      .sequence = op->rows * op->row, .row = op->row, .values = op->shape.kv_heads * op->shape.head_dim};
}

// Pages, and a block of all sequences and key heads.
static bl__pages_t all_pages(const bl_attention_op_t *op) {
  const bl__key_rows_t page = page_rows(op);
  return (bl__pages_t){.sequences = op->shape.batch,
                       .rows = op->rows,
                       .width = page.values,
                       .page = page,
                       .block = {.sequence = op->keys * page.row, .row = page.row, .values = page.values}};
}

// Pages, and a block of a piece of one sequence.
static bl__pages_t piece_pages(const bl_attention_op_t *op) {
  const uint64_t width = op->piece * op->shape.head_dim;
  return (bl__pages_t){.sequences = 1,
                       .rows = op->rows,
                       .width = width,
                       .page = page_rows(op),
                       .block = {.row = 2 * width, .values = width}};
}

// Returns where a piece begins in a page.
static uint64_t piece_start(const bl_attention_op_t *op, uint64_t sequence, uint64_t key) {
  return sequence * page_rows(op).sequence + key * op->shape.head_dim;
}

// Copies the keys and values of the slice to its page.
static void keep_keys(bl_attention_op_t *op, const void *qkv, void *page) {
  const bl_attention_shape_t *shape = &op->shape;
  const bl__pages_t all = {.sequences = shape->batch,
                           .rows = op->rows,
                           .width = shape->kv_heads * shape->head_dim,
                           .page = own_rows(op),
                           .block = page_rows(op)};
  const void *own = element(op, qkv, shape->heads * shape->head_dim);
  bl__cuda_launched(op->compute,
                    bl__launch_copy_pages(op->compute->stream, bl__is_bf16(shape->dtype), &all, 1, &own, page),
                    "attention forward");
}

// Copies what begins at `start` of every page to the block in workspace.
static void gather(bl_attention_op_t *op, const bl__pages_t *shape, char *workspace, void *const *pages, uint64_t start,
                   const char *name) {
  const void *starts[BL__PAGES_MAX];
  for (unsigned i = 0; i < pages_of(op); i++) {
    starts[i] = element(op, pages[i], start);
  }
  bl__cuda_launched(op->compute,
                    bl__launch_copy_pages(op->compute->stream, bl__is_bf16(op->shape.dtype), shape, pages_of(op),
                                          starts, workspace + op->keys_at),
                    name);
}

// Takes a block of gradients apart, of what begins at `start` of every page and at `own_start` of dqkv.
static void put_gradients(bl_attention_op_t *op, const bl__pages_t *shape, char *workspace, float *const *gradients,
                          uint64_t start, void *dqkv, uint64_t own_start) {
  float *starts[BL__PAGES_MAX];
  const bl__key_rows_t own = own_rows(op);
  const bool adds = op->keys < op->shape.seq, floats = op->flash == NULL;
  for (unsigned i = 0; i < pages_of(op); i++) {
    starts[i] = gradients[i] == NULL ? NULL : gradients[i] + start;
  }
  bl__cuda_launched(op->compute,
                    bl__launch_put_gradients(op->compute->stream, bl__is_bf16(op->shape.dtype), floats, shape,
                                             pages_of(op), starts, workspace + op->dkeys_at, adds, &own,
                                             bl__element_to(op->shape.dtype, dqkv, own_start)),
                    "attention backward");
}

// ---- flash ---------------------------------------------------------------------------------------------------------

// Returns the block of keys and values that cuDNN reads: of a slice's pages; NULL for a whole sequence. The block of a
// first slice is its page.
static const void *flash_keys(bl_attention_op_t *op, char *workspace, void *const *pages, const char *name) {
  if (!op->gathered) {
    return pages == NULL ? NULL : pages[0];
  }
  const bl__pages_t shape = all_pages(op);
  gather(op, &shape, workspace, pages, 0, name);
  return workspace + op->keys_at;
}

static void flash_forward(bl_attention_op_t *op, char *workspace, const void *qkv, void *const *pages, void *att,
                          void *saved) {
  static const char name[] = "attention forward";
  const void *keys = flash_keys(op, workspace, pages, name);
  const char *fault = bl__flash_forward(op->flash, qkv, keys, att, saved, workspace);
  if (fault) {
    bl__cuda_fail(op->compute, "%s: %s", name, fault);
  }
}

static void flash_backward(bl_attention_op_t *op, char *workspace, const void *datt, const void *qkv,
                           void *const *pages, float *const *gradients, const void *att, const void *saved,
                           void *dqkv) {
  static const char name[] = "attention backward";
  const void *keys = flash_keys(op, workspace, pages, name);
  void *dkeys = pages == NULL ? NULL : workspace + op->dkeys_at;
  const char *fault = bl__flash_backward(op->flash, datt, qkv, keys, att, saved, dqkv, dkeys, workspace);
  if (fault) {
    bl__cuda_fail(op->compute, "%s: %s", name, fault);
  } else if (pages != NULL) {
    const bl__pages_t shape = all_pages(op);
    put_gradients(op, &shape, workspace, gradients, 0, dqkv, op->shape.heads * op->shape.head_dim);
  }
}

// ---- runs --------------------------------------------------------------------------------------------------------

// pages NULL: a whole sequence.
void bl__cuda_attention_slice_forward(bl_attention_op_t *op, const void *qkv, void *const *pages, void *att,
                                      void *saved) {
  static const char name[] = "attention forward";
  char *workspace = bl__cuda_workspace(op->compute, op->workspace_bytes, name);
  if (!workspace) {
    return;
  }
  if (pages != NULL) {
    keep_keys(op, qkv, pages[pages_of(op) - 1]);
  }
  if (op->flash) {
    flash_forward(op, workspace, qkv, pages, att, saved);
    return;
  }
  for (uint64_t sequence = 0; sequence < op->shape.batch; sequence++) {
    for (uint64_t key = 0; key < op->shape.kv_heads; key += op->piece) {
      if (op->gathered) {
        const bl__pages_t shape = piece_pages(op);
        gather(op, &shape, workspace, pages, piece_start(op, sequence, key), name);
      }
      for (uint64_t g = 0; g < op->group; g++) {
        const batch_t at = batch_of(op, workspace, qkv, sequence, key, g);
        forward_batch(op, &at, qkv, att, saved);
      }
    }
  }
}

void bl__cuda_attention_forward(bl_attention_op_t *op, const void *qkv, void *att, void *saved) {
  bl__cuda_attention_slice_forward(op, qkv, NULL, att, saved);
}

// One sequence's query heads of a piece of key heads.
static void backward_piece(bl_attention_op_t *op, char *workspace, uint64_t sequence, uint64_t key, const void *datt,
                           const void *qkv, void *const *pages, float *const *gradients, const void *saved,
                           void *dqkv) {
  const bl__pages_t shape = piece_pages(op);
  const uint64_t start = piece_start(op, sequence, key);
  batch_t at = {0};
  if (op->gathered) {
    gather(op, &shape, workspace, pages, start, "attention backward");
  }
  for (uint64_t g = 0; g < op->group; g++) {
    at = batch_of(op, workspace, qkv, sequence, key, g);
    backward_batch(op, &at, g == 0, datt, qkv, saved, dqkv);
  }
  if (pages != NULL) {
    put_gradients(op, &shape, workspace, gradients, start, dqkv, at.own_keys);
  } else {
    put_keys(op, &at, dqkv);
  }
}

void bl__cuda_attention_slice_backward(bl_attention_op_t *op, const void *datt, const void *qkv, void *const *pages,
                                       float *const *gradients, const void *att, const void *saved, void *dqkv) {
  char *workspace = bl__cuda_workspace(op->compute, op->workspace_bytes, "attention backward");
  if (!workspace) {
    return;
  }
  if (op->flash) {
    flash_backward(op, workspace, datt, qkv, pages, gradients, att, saved, dqkv);
    return;
  }
  for (uint64_t sequence = 0; sequence < op->shape.batch; sequence++) {
    for (uint64_t key = 0; key < op->shape.kv_heads; key += op->piece) {
      backward_piece(op, workspace, sequence, key, datt, qkv, pages, gradients, saved, dqkv);
    }
  }
}

void bl__cuda_attention_backward(bl_attention_op_t *op, const void *datt, const void *qkv, const void *att,
                                 const void *saved, void *dqkv) {
  bl__cuda_attention_slice_backward(op, datt, qkv, NULL, NULL, att, saved, dqkv);
}
