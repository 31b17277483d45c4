// SPDX-License-Identifier: Apache-2.0
#include "compute/ops/cuda/flash.h"

#include "base/bytes.h"
#include "compute/ops/cuda/cudnn_graph.h"
#include "device/cuda/verdict.h"

#include <cudnn.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bl__flash_engine {
  bl__gpu_t *gpu; // NULL: a described GPU only
  bl__cudnn_graph_target_t target;
};

struct bl__flash {
  bl__flash_engine_t *engine;
  bl__flash_shape_t shape;
  bl__cudnn_graph_plan_t forward, backward;
  bool bounded, softcapped; // a window, a softcap: graphs then have nodes and runs have scalars for them
  float scale, lowest, one; // the library reads these in each run
  float softcap, inverse_softcap;
  int32_t window, first;
  size_t dq_at, dk_at, dv_at, delta_at; // of the backward, after the library's part of the workspace
  size_t workspace_bytes;
};

enum { Q = 1, K, V, ATT, LSE, DATT, DQ, DK, DV, DELTA, SCALE, LOWEST, ONE, WINDOW, SOFTCAP, INVERSE_SOFTCAP, FIRST };

// ---- engine ------------------------------------------------------------------------------------------------------

// The library encodes 9.19.0 as 91900.
static void found_version(int *major, int *minor, int *patch) {
  const int version = (int)cudnnGetVersion();
  *major = version / 10000;
  *minor = version / 100 % 100;
  *patch = version % 100;
}

void bl__flash_describe(char *text, size_t bytes) {
  int major, minor, patch;
  found_version(&major, &minor, &patch);
  snprintf(text, bytes, "cuDNN %d.%d.%d", major, minor, patch);
}

static bl_status_t failed(bl_error_t *err, const char *call, cudnnStatus_t status) {
  return bl_error_set(err, BL_INTERNAL, "%s: %s", call, cudnnGetErrorString(status));
}

bl_status_t bl__flash_engine_create(bl__gpu_t *gpu, bl__flash_engine_t **engine, bl_error_t *err) {
  bl__flash_engine_t *made = calloc(1, sizeof *made);
  if (!made) {
    return bl_error_set(err, BL_EXHAUSTED, "flash attention: out of memory");
  }
  made->gpu = gpu;
  *engine = made;
  return BL_OK;
}

static bl_status_t describe_device(bl__flash_engine_t *engine, const char *json, bl_error_t *err) {
  cudnnBackendDescriptor_t *device = &engine->target.device;
  cudnnStatus_t status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, device);
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnnBackendSetAttribute(*device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                      (int64_t)strlen(json), json);
  }
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnnBackendFinalize(*device);
  }
  return status == CUDNN_STATUS_SUCCESS ? BL_OK : failed(err, "cuDNN's description of the device", status);
}

bl_status_t bl__flash_engine_create_described(const char *json, bl__flash_engine_t **engine, bl_error_t *err) {
  bl__flash_engine_t *made = NULL;
  bl_status_t status = bl__flash_engine_create(NULL, &made, err);
  if (status == BL_OK) {
    status = describe_device(made, json, err);
  }
  if (status != BL_OK) {
    bl__flash_engine_destroy(made);
    return status;
  }
  *engine = made;
  return BL_OK;
}

void bl__flash_engine_destroy(bl__flash_engine_t *engine) {
  if (!engine) {
    return;
  }
  if (engine->target.device) {
    cudnnBackendDestroyDescriptor(engine->target.device);
  }
  if (engine->target.handle) {
    cudnnDestroy(engine->target.handle);
  }
  free(engine);
}

// Prepares the library. If its version does not fit, only cuDNN's flash attention is unavailable.
static bl_status_t prepare(bl__flash_engine_t *engine, bl_error_t *err) {
  int major, minor, patch;
  found_version(&major, &minor, &patch);
  bl_status_t fits = bl_cuda_verdict_library("cuDNN", CUDNN_MAJOR, CUDNN_MINOR, major, minor, err);
  if (fits != BL_OK) {
    return fits;
  }
  if (engine->target.device || engine->target.handle) {
    return BL_OK;
  }
  cudnnStatus_t status = cudnnCreate(&engine->target.handle);
  if (status == CUDNN_STATUS_SUCCESS) {
    status = cudnnSetStream(engine->target.handle, bl__gpu_stream(engine->gpu));
  }
  return status == CUDNN_STATUS_SUCCESS ? BL_OK : failed(err, "cudnnCreate", status);
}

// ---- graphs ------------------------------------------------------------------------------------------------------

// Dimensions and strides that forward and backward share.
typedef struct common {
  int64_t b, h, g, s, t, d;      // batch, query heads, key heads, queries, keys, head_dim
  int64_t row, key_row, att_row; // elements between positions of queries, of keys, of att
} common_t;

static common_t common_of(const bl__flash_shape_t *shape) {
  common_t c = {.b = (int64_t)shape->batch,
                .h = (int64_t)shape->heads,
                .g = (int64_t)shape->kv_heads,
                .s = (int64_t)shape->seq,
                .t = (int64_t)(shape->first + shape->seq),
                .d = (int64_t)shape->head_dim};
  c.row = (c.h + 2 * c.g) * c.d;
  c.key_row = shape->slice ? 2 * c.g * c.d : c.row;
  c.att_row = c.h * c.d;
  return c;
}

// Returns a tensor of heads [b, heads, positions, d] inside rows, or transposed [b, heads, d, positions].
static bl__cudnn_graph_tensor_t *heads_in_rows(bl__cudnn_graph_t *graph, int64_t uid, const common_t *c, int64_t heads,
                                               int64_t positions, int64_t row, bool transposed) {
  const int64_t dims[4] = {c->b, heads, transposed ? c->d : positions, transposed ? positions : c->d};
  const int64_t strides[4] = {positions * row, c->d, transposed ? 1 : row, transposed ? row : 1};
  return bl__cudnn_graph_input_output(graph, uid, CUDNN_DATA_BFLOAT16, dims, strides);
}

static bl__cudnn_graph_tensor_t *queries(bl__cudnn_graph_t *graph, int64_t uid, const common_t *c, int64_t row) {
  return heads_in_rows(graph, uid, c, c->h, c->s, row, false);
}

static bl__cudnn_graph_tensor_t *keys(bl__cudnn_graph_t *graph, int64_t uid, const common_t *c, bool transposed) {
  return heads_in_rows(graph, uid, c, c->g, c->t, c->key_row, transposed);
}

static bl__cudnn_graph_tensor_t *heads_dense(bl__cudnn_graph_t *graph, int64_t uid, const common_t *c, int64_t heads) {
  const int64_t dims[4] = {c->b, heads, c->s, c->d}, strides[4] = {heads * c->s * c->d, c->s * c->d, c->d, 1};
  return bl__cudnn_graph_input_output(graph, uid, CUDNN_DATA_BFLOAT16, dims, strides);
}

static bl__cudnn_graph_tensor_t *row_values(bl__cudnn_graph_t *graph, int64_t uid, const common_t *c) {
  const int64_t dims[4] = {c->b, c->h, c->s, 1}, strides[4] = {c->h * c->s, c->s, 1, 1};
  return uid ? bl__cudnn_graph_input_output(graph, uid, CUDNN_DATA_FLOAT, dims, strides)
             : bl__cudnn_graph_virtual(graph, CUDNN_DATA_FLOAT, dims, strides);
}

static bl__cudnn_graph_tensor_t *virtual_scores(bl__cudnn_graph_t *graph, const common_t *c) {
  const int64_t dims[4] = {c->b, c->h, c->s, c->t};
  return bl__cudnn_graph_virtual_dense(graph, CUDNN_DATA_FLOAT, dims);
}

static bl__cudnn_graph_tensor_t *scalar(bl__cudnn_graph_t *graph, int64_t uid) {
  return bl__cudnn_graph_scalar(graph, uid, uid == WINDOW || uid == FIRST ? CUDNN_DATA_INT32 : CUDNN_DATA_FLOAT);
}

// Returns the scores, with the lowest float in place of those whose indices do not satisfy a >= b or, for CMP_GT, a >
// b.
static bl__cudnn_graph_tensor_t *kept_where(bl__cudnn_graph_t *graph, cudnnPointwiseMode_t compare,
                                            const bl__cudnn_graph_tensor_t *a, const bl__cudnn_graph_tensor_t *b,
                                            const bl__cudnn_graph_tensor_t *scores,
                                            const bl__cudnn_graph_tensor_t *lowest) {
  bl__cudnn_graph_tensor_t *seen = bl__cudnn_graph_virtual_dense(graph, CUDNN_DATA_BOOLEAN, scores->dims);
  bl__cudnn_graph_pointwise_to(graph, compare, CUDNN_DATA_BOOLEAN, a, b, NULL, seen);
  bl__cudnn_graph_tensor_t *result = bl__cudnn_graph_virtual_dense(graph, CUDNN_DATA_FLOAT, scores->dims);
  bl__cudnn_graph_pointwise_to(graph, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, scores, lowest, seen, result);
  return result;
}

// Returns the indices of scores along an axis plus a scalar.
static bl__cudnn_graph_tensor_t *moved_indices(bl__cudnn_graph_t *graph, const bl__cudnn_graph_tensor_t *scores,
                                               int64_t axis, int64_t uid) {
  bl__cudnn_graph_tensor_t *indices = bl__cudnn_graph_indices(graph, scores, axis);
  bl__cudnn_graph_tensor_t *moved = bl__cudnn_graph_virtual_dense(graph, CUDNN_DATA_INT32, scores->dims);
  bl__cudnn_graph_pointwise_to(graph, CUDNN_POINTWISE_ADD, CUDNN_DATA_INT32, indices, scalar(graph, uid), NULL, moved);
  return moved;
}

// Masks the keys after a row's position, which is the row + FIRST, and with a window those before it: a row sees a
// column if column + WINDOW > row. WINDOW contains -FIRST.
static bl__cudnn_graph_tensor_t *masked(bl__cudnn_graph_t *graph, const bl__flash_t *flash,
                                        bl__cudnn_graph_tensor_t *scores) {
  if (scores == NULL) {
    return NULL;
  }
  bl__cudnn_graph_tensor_t *lowest = scalar(graph, LOWEST);
  bl__cudnn_graph_tensor_t *rows =
      flash->first > 0 ? moved_indices(graph, scores, 2, FIRST) : bl__cudnn_graph_indices(graph, scores, 2);
  bl__cudnn_graph_tensor_t *result =
      kept_where(graph, CUDNN_POINTWISE_CMP_GE, rows, bl__cudnn_graph_indices(graph, scores, 3), scores, lowest);
  if (!flash->bounded || result == NULL) {
    return result;
  }
  rows = bl__cudnn_graph_indices(graph, result, 2);
  return kept_where(graph, CUDNN_POINTWISE_CMP_GT, moved_indices(graph, result, 3, WINDOW), rows, result, lowest);
}

// Returns scale Q K', softcapped if there is a softcap. *bent: tanh of scale Q K' / softcap, for the slope; NULL
// without a softcap.
static bl__cudnn_graph_tensor_t *scores_of(bl__cudnn_graph_t *graph, const bl__flash_t *flash, const common_t *c,
                                           const bl__cudnn_graph_tensor_t *q, const bl__cudnn_graph_tensor_t *k,
                                           const bl__cudnn_graph_tensor_t *scale, bl__cudnn_graph_tensor_t **bent) {
  bl__cudnn_graph_tensor_t *scores = virtual_scores(graph, c);
  bl__cudnn_graph_matmul(graph, q, k, scores);
  scores = bl__cudnn_graph_pointwise(graph, CUDNN_POINTWISE_MUL, scores, scale);
  *bent = NULL;
  if (flash->softcapped) {
    scores = bl__cudnn_graph_pointwise(graph, CUDNN_POINTWISE_MUL, scores, scalar(graph, INVERSE_SOFTCAP));
    *bent = bl__cudnn_graph_pointwise(graph, CUDNN_POINTWISE_TANH_FWD, scores, NULL);
    scores = bl__cudnn_graph_pointwise(graph, CUDNN_POINTWISE_MUL, *bent, scalar(graph, SOFTCAP));
  }
  return scores;
}

static bl_status_t plan_forward(bl__flash_t *flash, bl_error_t *err) {
  bl__cudnn_graph_t graph;
  bl__cudnn_graph_init(&graph);
  const common_t c = common_of(&flash->shape);
  const int64_t matrix[4] = {c.b, c.h, c.s, c.t};
  bl__cudnn_graph_tensor_t *q = queries(&graph, Q, &c, c.row);
  bl__cudnn_graph_tensor_t *k = keys(&graph, K, &c, true), *v = keys(&graph, V, &c, false);
  bl__cudnn_graph_tensor_t *att = queries(&graph, ATT, &c, c.att_row);
  bl__cudnn_graph_tensor_t *lse = row_values(&graph, LSE, &c);
  bl__cudnn_graph_tensor_t *bent, *scores = scores_of(&graph, flash, &c, q, k, scalar(&graph, SCALE), &bent);
  scores = masked(&graph, flash, scores);
  bl__cudnn_graph_tensor_t *largest = row_values(&graph, 0, &c), *sum = row_values(&graph, 0, &c);
  bl__cudnn_graph_reduce(&graph, CUDNN_REDUCE_TENSOR_MAX, scores, largest);
  bl__cudnn_graph_tensor_t *powers = bl__cudnn_graph_pointwise(
      &graph, CUDNN_POINTWISE_EXP, bl__cudnn_graph_pointwise(&graph, CUDNN_POINTWISE_SUB, scores, largest), NULL);
  bl__cudnn_graph_reduce(&graph, CUDNN_REDUCE_TENSOR_ADD, powers, sum);
  bl__cudnn_graph_tensor_t *log_sum = row_values(&graph, 0, &c);
  bl__cudnn_graph_pointwise_to(&graph, CUDNN_POINTWISE_LOG, CUDNN_DATA_FLOAT, sum, NULL, NULL, log_sum);
  bl__cudnn_graph_pointwise_to(&graph, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, largest, log_sum, NULL, lse);
  bl__cudnn_graph_tensor_t *probabilities = bl__cudnn_graph_virtual_dense(&graph, CUDNN_DATA_BFLOAT16, matrix);
  bl__cudnn_graph_pointwise_to(&graph, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, powers, sum, NULL, probabilities);
  bl__cudnn_graph_matmul(&graph, probabilities, v, att);

  bl_status_t status = bl__cudnn_graph_plan(&graph, &flash->engine->target, &flash->forward, err);
  bl__cudnn_graph_cleanup(&graph);
  return status == BL_OK ? BL_OK : bl_error_prefix(err, "forward");
}

// Returns x [b, h, s, t] transposed, as bf16: the left operand of a product over queries.
static bl__cudnn_graph_tensor_t *turned(bl__cudnn_graph_t *graph, const common_t *c,
                                        const bl__cudnn_graph_tensor_t *x) {
  const int64_t dims[4] = {c->b, c->h, c->t, c->s}, strides[4] = {c->h * c->s * c->t, c->s * c->t, 1, c->t};
  bl__cudnn_graph_tensor_t *y = bl__cudnn_graph_virtual(graph, CUDNN_DATA_BFLOAT16, dims, strides);
  bl__cudnn_graph_reshape(graph, x, y);
  return y;
}

// Computes y (with key heads) = x' z, summed over the query heads that share a key head.
static void shared_product(bl__cudnn_graph_t *graph, const common_t *c, const bl__cudnn_graph_tensor_t *x,
                           const bl__cudnn_graph_tensor_t *z, bl__cudnn_graph_tensor_t *y) {
  if (c->h == c->g) {
    bl__cudnn_graph_matmul(graph, x, z, y);
    return;
  }
  const int64_t dims[4] = {c->b, c->h, c->t, c->d};
  bl__cudnn_graph_tensor_t *each = bl__cudnn_graph_virtual_dense(graph, CUDNN_DATA_BFLOAT16, dims);
  bl__cudnn_graph_matmul(graph, x, z, each);
  bl__cudnn_graph_reduce(graph, CUDNN_REDUCE_TENSOR_ADD, each, y);
}

// P = exp(scale Q K' - lse), dV = P' dO, dP = dO V', dS = P (dP - rowsum(dO O)) scale, dK = dS' Q, dQ = dS K. One
// product over all keys gives dQ. Partial sums that are added in memory would be added in an arbitrary order.
static bl_status_t plan_backward(bl__flash_t *flash, bl_error_t *err) {
  bl__cudnn_graph_t graph;
  bl__cudnn_graph_init(&graph);
  const common_t c = common_of(&flash->shape);
  bl__cudnn_graph_tensor_t *q = queries(&graph, Q, &c, c.row);
  bl__cudnn_graph_tensor_t *k = keys(&graph, K, &c, true), *v = keys(&graph, V, &c, true);
  bl__cudnn_graph_tensor_t *att = queries(&graph, ATT, &c, c.att_row), *datt = queries(&graph, DATT, &c, c.att_row);
  bl__cudnn_graph_tensor_t *lse = row_values(&graph, LSE, &c), *delta = row_values(&graph, DELTA, &c);
  bl__cudnn_graph_tensor_t *dq = heads_dense(&graph, DQ, &c, c.h);
  const bool in_rows = flash->shape.slice;
  bl__cudnn_graph_tensor_t *dk = in_rows ? keys(&graph, DK, &c, false) : heads_dense(&graph, DK, &c, c.g);
  bl__cudnn_graph_tensor_t *dv = in_rows ? keys(&graph, DV, &c, false) : heads_dense(&graph, DV, &c, c.g);
  bl__cudnn_graph_tensor_t *scale = scalar(&graph, SCALE), *one = scalar(&graph, ONE);

  bl__cudnn_graph_tensor_t *dots = row_values(&graph, 0, &c);
  bl__cudnn_graph_reduce(&graph, CUDNN_REDUCE_TENSOR_ADD,
                         bl__cudnn_graph_pointwise(&graph, CUDNN_POINTWISE_MUL, datt, att), dots);
  bl__cudnn_graph_pointwise_to(&graph, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, dots, one, NULL, delta);

  bl__cudnn_graph_tensor_t *bent, *scores = scores_of(&graph, flash, &c, q, k, scale, &bent);
  scores = masked(&graph, flash, bl__cudnn_graph_pointwise(&graph, CUDNN_POINTWISE_SUB, scores, lse));
  bl__cudnn_graph_tensor_t *probabilities = bl__cudnn_graph_pointwise(&graph, CUDNN_POINTWISE_EXP, scores, NULL);
  shared_product(&graph, &c, turned(&graph, &c, probabilities), datt, dv);

  bl__cudnn_graph_tensor_t *slopes = virtual_scores(&graph, &c);
  bl__cudnn_graph_matmul(&graph, datt, v, slopes);
  slopes = bl__cudnn_graph_pointwise(&graph, CUDNN_POINTWISE_SUB, slopes, delta);
  slopes = bl__cudnn_graph_pointwise(&graph, CUDNN_POINTWISE_MUL, slopes, probabilities);
  if (flash->softcapped) { // multiplies by 1 - tanh^2
    bl__cudnn_graph_tensor_t *lost = bl__cudnn_graph_pointwise(&graph, CUDNN_POINTWISE_MUL, bent, bent);
    lost = bl__cudnn_graph_pointwise(&graph, CUDNN_POINTWISE_MUL, slopes, lost);
    slopes = bl__cudnn_graph_pointwise(&graph, CUDNN_POINTWISE_SUB, slopes, lost);
  }
  slopes = bl__cudnn_graph_pointwise(&graph, CUDNN_POINTWISE_MUL, slopes, scale);
  shared_product(&graph, &c, turned(&graph, &c, slopes), q, dk);

  const int64_t k_dims[4] = {c.b, c.g, c.t, c.d}, k_strides[4] = {c.t * c.key_row, c.d, c.key_row, 1};
  bl__cudnn_graph_tensor_t *k_rows = bl__cudnn_graph_virtual(&graph, CUDNN_DATA_BFLOAT16, k_dims, k_strides);
  bl__cudnn_graph_reshape(&graph, k, k_rows);
  bl__cudnn_graph_matmul(&graph, slopes, k_rows, dq);

  bl_status_t status = bl__cudnn_graph_plan(&graph, &flash->engine->target, &flash->backward, err);
  bl__cudnn_graph_cleanup(&graph);
  return status == BL_OK ? BL_OK : bl_error_prefix(err, "backward");
}

// ---- plans -------------------------------------------------------------------------------------------------------

static void size_workspace(bl__flash_t *flash) {
  const bl__flash_shape_t *shape = &flash->shape;
  const size_t head = shape->batch * shape->seq * shape->head_dim * 2; // bytes
  const size_t key_heads = shape->slice ? 0 : shape->kv_heads;         // of a slice the caller has space
  const size_t parts[] = {shape->heads * head, key_heads * head, key_heads * head,
                          shape->batch * shape->heads * shape->seq * sizeof(float)};
  size_t *at[] = {&flash->dq_at, &flash->dk_at, &flash->dv_at, &flash->delta_at};
  const int64_t library = flash->forward.workspace_bytes > flash->backward.workspace_bytes
                              ? flash->forward.workspace_bytes
                              : flash->backward.workspace_bytes;
  size_t end = (size_t)(library > 0 ? library : 0);
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    *at[i] = bl_align_up(end, 256);
    end = *at[i] + parts[i];
  }
  flash->workspace_bytes = end;
}

bl_status_t bl__flash_create(bl__flash_engine_t *engine, const bl__flash_shape_t *shape, bl__flash_t **flash,
                             bl_error_t *err) {
  bl_status_t status = prepare(engine, err);
  if (status != BL_OK) {
    return status;
  }
  bl__flash_t *made = calloc(1, sizeof *made);
  if (!made) {
    return bl_error_set(err, BL_EXHAUSTED, "flash attention: out of memory");
  }
  made->engine = engine;
  made->shape = *shape;
  made->bounded = shape->window > 0 && shape->window < shape->first + shape->seq;
  made->softcapped = shape->softcap != 0;
  made->first = (int32_t)shape->first;
  made->window = made->bounded ? (int32_t)shape->window - made->first : 0;
  made->scale = shape->scale;
  made->softcap = shape->softcap;
  made->inverse_softcap = made->softcapped ? 1 / shape->softcap : 0;
  made->lowest = -FLT_MAX;
  made->one = 1.0f;
  status = plan_forward(made, err);
  if (status == BL_OK) {
    status = plan_backward(made, err);
  }
  if (status != BL_OK) {
    bl__flash_destroy(made);
    return status;
  }
  size_workspace(made);
  *flash = made;
  return BL_OK;
}

void bl__flash_destroy(bl__flash_t *flash) {
  if (flash) {
    bl__cudnn_graph_plan_cleanup(&flash->forward);
    bl__cudnn_graph_plan_cleanup(&flash->backward);
    free(flash);
  }
}

size_t bl__flash_workspace_bytes(const bl__flash_t *flash) {
  return flash->workspace_bytes;
}

void bl__flash_engines(const bl__flash_t *flash, int64_t *forward, int64_t *backward) {
  *forward = flash->forward.engine;
  *backward = flash->backward.engine;
}

// ---- runs --------------------------------------------------------------------------------------------------------

// Tensors of a run: those of every graph, then the scalars for the nodes that this graph has, in a fixed order.
#define BINDINGS_MAX 20
typedef struct bindings {
  int count;
  int64_t uids[BINDINGS_MAX];
  void *pointers[BINDINGS_MAX];
} bindings_t;

static void bind(bindings_t *b, int64_t uid, void *pointer) {
  b->uids[b->count] = uid;
  b->pointers[b->count++] = pointer;
}

static void bind_scalars(bindings_t *b, bl__flash_t *flash) {
  bind(b, SCALE, &flash->scale);
  bind(b, LOWEST, &flash->lowest);
  if (flash->first > 0) {
    bind(b, FIRST, &flash->first);
  }
  if (flash->bounded) {
    bind(b, WINDOW, &flash->window);
  }
  if (flash->softcapped) {
    bind(b, SOFTCAP, &flash->softcap);
    bind(b, INVERSE_SOFTCAP, &flash->inverse_softcap);
  }
}

static const char *run(const bl__flash_t *flash, const bl__cudnn_graph_plan_t *plan, const bindings_t *b,
                       void *workspace) {
  return bl__cudnn_graph_run(plan, flash->engine->target.handle, b->count, b->uids, b->pointers, workspace);
}

// The library takes inputs by pointers to non-const memory.
static void *at(const void *x, uint64_t element) {
  return (char *)(uintptr_t)x + element * 2;
}

// Binds keys and values: of qkv, or of a slice's block.
static void bind_keys(bindings_t *b, const bl__flash_shape_t *shape, const void *qkv, const void *keys_of) {
  const uint64_t width = shape->kv_heads * shape->head_dim;
  const void *first = keys_of != NULL ? keys_of : at(qkv, shape->heads * shape->head_dim);
  bind(b, K, at(first, 0));
  bind(b, V, at(first, width));
}

const char *bl__flash_forward(bl__flash_t *flash, const void *qkv, const void *keys_of, void *att, float *lse,
                              void *workspace) {
  bindings_t b = {0};
  bind(&b, Q, at(qkv, 0));
  bind_keys(&b, &flash->shape, qkv, keys_of);
  bind(&b, ATT, att);
  bind(&b, LSE, lse);
  bind_scalars(&b, flash);
  return run(flash, &flash->forward, &b, workspace);
}

// Copies dense gradients of heads into the rows of dqkv.
static const char *scatter(const bl__flash_t *flash, const char *scratch, void *dqkv) {
  const bl__flash_shape_t *shape = &flash->shape;
  const uint64_t keys_at = shape->heads * shape->head_dim, values_at = keys_at + shape->kv_heads * shape->head_dim;
  const bl__heads_t where = {.batch = shape->batch,
                             .seq = shape->seq,
                             .head_dim = shape->head_dim,
                             .row_stride = values_at + shape->kv_heads * shape->head_dim};
  const bl__scattered_t sets[] = {{scratch + flash->dq_at, at(dqkv, 0), shape->heads},
                                  {scratch + flash->dk_at, at(dqkv, keys_at), shape->kv_heads},
                                  {scratch + flash->dv_at, at(dqkv, values_at), shape->kv_heads}};
  const int error =
      bl__launch_scatter(bl__gpu_stream(flash->engine->gpu), true, false, &where, shape->slice ? 1 : 3, sets);
  return error ? bl__gpu_error_text(error) : NULL;
}

const char *bl__flash_backward(bl__flash_t *flash, const void *datt, const void *qkv, const void *keys_of,
                               const void *att, const float *lse, void *dqkv, void *dkeys, void *workspace) {
  char *scratch = workspace;
  bindings_t b = {0};
  bind(&b, Q, at(qkv, 0));
  bind_keys(&b, &flash->shape, qkv, keys_of);
  bind(&b, ATT, at(att, 0));
  bind(&b, DATT, at(datt, 0));
  bind(&b, LSE, (void *)(uintptr_t)lse);
  bind(&b, DELTA, scratch + flash->delta_at);
  bind(&b, DQ, scratch + flash->dq_at);
  bind(&b, DK, dkeys != NULL ? dkeys : scratch + flash->dk_at);
  bind(&b, DV, dkeys != NULL ? at(dkeys, flash->shape.kv_heads * flash->shape.head_dim) : scratch + flash->dv_at);
  bind(&b, ONE, &flash->one);
  bind_scalars(&b, flash);
  const char *fault = run(flash, &flash->backward, &b, workspace);
  return fault ? fault : scatter(flash, scratch, dqkv);
}
