// SPDX-License-Identifier: Apache-2.0
#include "ops/reference/backend.h"

#include "compute/ops/shapes.h"
#include "ops/reference/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HANDLES 1024

struct bl_compute {
  void *handles[HANDLES];
  size_t handle_count;
};

struct bl_linear_op {
  bl_linear_shape_t shape;
};
struct bl_attention_op {
  bl_attention_shape_t shape;
};
struct bl_rope_op {
  bl_rope_shape_t shape;
};

// ---- elements

static double from_bf16(uint16_t element) {
  const uint32_t bits = (uint32_t)element << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return (double)value;
}

static uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return isnan(value) ? (uint16_t)0x7fc0 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// `count` elements in double, freed by the caller. NULL for NULL.
static double *widen(bl_compute_dtype_t dtype, const void *from, size_t count) {
  if (from == NULL) {
    return NULL;
  }
  double *made = malloc((count + 1) * sizeof *made);
  for (size_t i = 0; i < count; i++) {
    made[i] = dtype == BL_COMPUTE_BF16 ? from_bf16(((const uint16_t *)from)[i]) : (double)((const float *)from)[i];
  }
  return made;
}

static void narrow(bl_compute_dtype_t dtype, const double *from, size_t count, void *to) {
  for (size_t i = 0; i < count; i++) {
    if (dtype == BL_COMPUTE_BF16) {
      ((uint16_t *)to)[i] = to_bf16((float)from[i]);
    } else {
      ((float *)to)[i] = (float)from[i];
    }
  }
}

static size_t element_bytes(bl_compute_dtype_t dtype) {
  return dtype == BL_COMPUTE_BF16 ? sizeof(uint16_t) : sizeof(float);
}

// Rows of `width` elements that start `stride` bytes apart, packed.
static double *widen_rows(bl_compute_dtype_t dtype, const void *from, size_t rows, size_t width, size_t stride) {
  double *made = malloc((rows * width + 1) * sizeof *made);
  for (size_t row = 0; row < rows; row++) {
    double *one = widen(dtype, (const char *)from + row * stride, width);
    memcpy(made + row * width, one, width * sizeof *made);
    free(one);
  }
  return made;
}

static void narrow_rows(bl_compute_dtype_t dtype, const double *from, size_t rows, size_t width, size_t stride,
                        void *to) {
  for (size_t row = 0; row < rows; row++) {
    narrow(dtype, from + row * width, width, (char *)to + row * stride);
  }
}

// ---- context

static bl_status_t create(const bl_compute_options_t *options, bl_compute_t **compute, bl_error_t *err) {
  if (options->device != NULL && !options->device->host_memory) {
    return bl_error_set(err, BL_INVALID, "the reference computes in memory of the host");
  }
  *compute = calloc(1, sizeof **compute);
  return *compute == NULL ? bl_error_set(err, BL_EXHAUSTED, "no memory") : BL_OK;
}

static void destroy(bl_compute_t *compute) {
  for (size_t i = 0; compute != NULL && i < compute->handle_count; i++) {
    free(compute->handles[i]);
  }
  free(compute);
}

static void attach(bl_compute_t *compute) {
  (void)compute;
}

static const char *describe(const bl_compute_t *compute) {
  (void)compute;
  return "fp64 reference, plain C";
}

static size_t workspace_bytes(const bl_compute_t *compute) {
  (void)compute;
  return 0;
}

static void use_workspace(bl_compute_t *compute, void *workspace, size_t bytes) {
  (void)compute;
  (void)workspace;
  (void)bytes;
}

static bl_status_t status(const bl_compute_t *compute, bl_error_t *err) {
  (void)compute;
  (void)err;
  return BL_OK;
}

// A planned operation with a copy of its shape, which is the first thing in it.
static void *plan(bl_compute_t *compute, const void *shape, size_t bytes) {
  void *made = compute->handle_count == HANDLES ? NULL : malloc(bytes);
  if (made != NULL) {
    memcpy(made, shape, bytes);
    compute->handles[compute->handle_count++] = made;
  }
  return made;
}

static bl_status_t planned(const void *op, bl_error_t *err) {
  return op == NULL ? bl_error_set(err, BL_EXHAUSTED, "more operations than the reference plans") : BL_OK;
}

// ---- linear

static bl_status_t linear_plan(bl_compute_t *compute, const bl_linear_shape_t *shape, bl_linear_op_t **op,
                               bl_error_t *err) {
  *op = plan(compute, shape, sizeof *shape);
  return planned(*op, err);
}

static size_t linear_packed_bytes(const bl_linear_op_t *op) {
  (void)op;
  return 0;
}

static void linear_pack(bl_linear_op_t *op, const float *w, const float *bias, void *packed) {
  (void)op;
  (void)w;
  (void)bias;
  (void)packed;
}

static size_t x_stride_bytes(const bl_linear_shape_t *s) {
  return (s->x_stride == 0 ? s->in : s->x_stride) * element_bytes(s->dtype);
}

static size_t y_stride_bytes(const bl_linear_shape_t *s) {
  return (s->y_stride == 0 ? s->out : s->y_stride) * (s->float_y ? sizeof(float) : element_bytes(s->dtype));
}

static reference_linear_t dense(const bl_linear_shape_t *s) {
  const bool in_out = s->order == BL_WEIGHT_IN_OUT;
  return (reference_linear_t){.rows = s->rows,
                              .in = s->in,
                              .out = s->out,
                              .w_in = in_out ? s->out : 1,
                              .w_out = in_out ? 1 : s->in,
                              .x_stride = s->in,
                              .y_stride = s->out};
}

// Masters as the products read them.
static double *weights_of(const bl_linear_shape_t *s, const float *w) {
  double *made = widen(BL_COMPUTE_FP32, w, s->in * s->out);
  for (size_t i = 0; s->dtype == BL_COMPUTE_BF16 && i < s->in * s->out; i++) {
    made[i] = from_bf16(to_bf16((float)made[i]));
  }
  return made;
}

static void linear_forward(bl_linear_op_t *op, const void *x, const float *w, const void *packed, const float *bias,
                           const void *residual, void *y) {
  (void)packed;
  const bl_linear_shape_t *s = &op->shape;
  const reference_linear_t shape = dense(s);
  double *x64 = widen_rows(s->dtype, x, s->rows, s->in, x_stride_bytes(s)), *w64 = weights_of(s, w);
  double *bias64 = widen(BL_COMPUTE_FP32, bias, s->out), *y64 = malloc(s->rows * s->out * sizeof *y64);
  double *residual64 = residual == NULL ? NULL : widen_rows(s->dtype, residual, s->rows, s->out, y_stride_bytes(s));
  reference_linear_forward(&shape, x64, w64, bias64, residual64, y64);
  narrow_rows(s->float_y ? BL_COMPUTE_FP32 : s->dtype, y64, s->rows, s->out, y_stride_bytes(s), y);
  free(x64);
  free(w64);
  free(bias64);
  free(residual64);
  free(y64);
}

static void linear_backward_input(bl_linear_op_t *op, const void *dy, const float *w, const void *packed,
                                  bool accumulate, void *dx) {
  (void)packed;
  const bl_linear_shape_t *s = &op->shape;
  const reference_linear_t shape = dense(s);
  double *dy64 = widen_rows(s->dtype, dy, s->rows, s->out, y_stride_bytes(s)), *w64 = weights_of(s, w);
  double *dx64 =
      accumulate ? widen_rows(s->dtype, dx, s->rows, s->in, x_stride_bytes(s)) : calloc(s->rows * s->in, sizeof *dx64);
  reference_linear_input(&shape, dy64, w64, dx64);
  narrow_rows(s->dtype, dx64, s->rows, s->in, x_stride_bytes(s), dx);
  free(dy64);
  free(w64);
  free(dx64);
}

static void linear_backward_weight(bl_linear_op_t *op, const void *x, const void *dy, bool accumulate, float *dw) {
  const bl_linear_shape_t *s = &op->shape;
  const reference_linear_t shape = dense(s);
  double *x64 = widen_rows(s->dtype, x, s->rows, s->in, x_stride_bytes(s));
  double *dy64 = widen_rows(s->dtype, dy, s->rows, s->out, y_stride_bytes(s));
  double *dw64 = accumulate ? widen(BL_COMPUTE_FP32, dw, s->in * s->out) : calloc(s->in * s->out, sizeof *dw64);
  reference_linear_weight(&shape, x64, dy64, dw64);
  narrow(BL_COMPUTE_FP32, dw64, s->in * s->out, dw);
  free(x64);
  free(dy64);
  free(dw64);
}

// ---- normalisation

static void norm_forward(bl_compute_t *compute, const bl_norm_shape_t *s, const void *x, const float *gain,
                         const float *bias, void *y, float *stats) {
  (void)compute;
  const size_t count = s->rows * s->width;
  double *x64 = widen(s->dtype, x, count), *gain64 = widen(BL_COMPUTE_FP32, gain, s->width);
  double *bias64 = s->rms ? NULL : widen(BL_COMPUTE_FP32, bias, s->width);
  double *y64 = malloc(count * sizeof *y64), *stats64 = malloc(2 * s->rows * sizeof *stats64);
  reference_norm_forward(s->rows, s->width, (double)s->epsilon, (double)s->gain_offset, x64, gain64, bias64, y64,
                         stats64);
  narrow(s->dtype, y64, count, y);
  narrow(BL_COMPUTE_FP32, stats64, s->rows * (s->rms ? 1 : 2), stats);
  free(x64);
  free(gain64);
  free(bias64);
  free(y64);
  free(stats64);
}

static void norm_backward(bl_compute_t *compute, const bl_norm_shape_t *s, const void *dy, const void *x,
                          const float *gain, const float *stats, const void *residual_gradient, void *dx,
                          float *partials) {
  (void)compute;
  (void)stats;
  const size_t count = s->rows * s->width;
  double *dy64 = widen(s->dtype, dy, count), *x64 = widen(s->dtype, x, count);
  double *gain64 = widen(BL_COMPUTE_FP32, gain, s->width), *residual64 = widen(s->dtype, residual_gradient, count);
  double *dx64 = malloc(count * sizeof *dx64), *partials64 = calloc(2 * s->width, sizeof *partials64);
  reference_norm_backward(s->rows, s->width, s->rms, (double)s->epsilon, (double)s->gain_offset, dy64, x64, gain64,
                          residual64, dx64, partials64, partials64 + s->width);
  narrow(s->dtype, dx64, count, dx);
  if (partials != NULL) {
    narrow(BL_COMPUTE_FP32, partials64, (s->rms ? 1 : 2) * s->width, partials);
  }
  free(dy64);
  free(x64);
  free(gain64);
  free(residual64);
  free(dx64);
  free(partials64);
}

static reference_head_norm_t head_norm_of(const bl_head_norm_shape_t *s) {
  return (reference_head_norm_t){s->rows,     s->heads,           s->kv_heads,
                                 s->head_dim, (double)s->epsilon, (double)s->gain_offset};
}

static void head_norm_forward(bl_compute_t *compute, const bl_head_norm_shape_t *s, const void *qkv,
                              const float *query_gain, const float *key_gain, void *y) {
  (void)compute;
  const reference_head_norm_t shape = head_norm_of(s);
  const size_t count = s->rows * (s->heads + 2 * s->kv_heads) * s->head_dim;
  double *qkv64 = widen(s->dtype, qkv, count), *y64 = malloc(count * sizeof *y64);
  double *query64 = widen(BL_COMPUTE_FP32, query_gain, s->head_dim);
  double *key64 = widen(BL_COMPUTE_FP32, key_gain, s->head_dim);
  reference_head_norm_forward(&shape, qkv64, query64, key64, y64);
  narrow(s->dtype, y64, count, y);
  free(qkv64);
  free(y64);
  free(query64);
  free(key64);
}

static void head_norm_backward(bl_compute_t *compute, const bl_head_norm_shape_t *s, const void *dy, const void *qkv,
                               const float *query_gain, const float *key_gain, void *dqkv, float *partials) {
  (void)compute;
  const reference_head_norm_t shape = head_norm_of(s);
  const size_t count = s->rows * (s->heads + 2 * s->kv_heads) * s->head_dim;
  double *dy64 = widen(s->dtype, dy, count), *qkv64 = widen(s->dtype, qkv, count);
  double *query64 = widen(BL_COMPUTE_FP32, query_gain, s->head_dim);
  double *key64 = widen(BL_COMPUTE_FP32, key_gain, s->head_dim);
  double *dqkv64 = malloc(count * sizeof *dqkv64), *partials64 = malloc(2 * s->head_dim * sizeof *partials64);
  reference_head_norm_backward(&shape, dy64, qkv64, query64, key64, dqkv64, partials64);
  narrow(s->dtype, dqkv64, count, dqkv);
  narrow(BL_COMPUTE_FP32, partials64, 2 * s->head_dim, partials);
  free(dy64);
  free(qkv64);
  free(query64);
  free(key64);
  free(dqkv64);
  free(partials64);
}

// ---- activations

static void gelu_forward(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *pre, void *act) {
  (void)compute;
  double *values = widen(dtype, pre, count);
  for (size_t i = 0; i < count; i++) {
    values[i] = reference_gelu(values[i]);
  }
  narrow(dtype, values, count, act);
  free(values);
}

static void gelu_backward(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *dact,
                          const void *pre, void *dpre) {
  (void)compute;
  double *values = widen(dtype, pre, count), *slopes = widen(dtype, dact, count);
  for (size_t i = 0; i < count; i++) {
    values[i] = slopes[i] * reference_gelu_slope(values[i]);
  }
  narrow(dtype, values, count, dpre);
  free(values);
  free(slopes);
}

static void gated_forward(bl_compute_t *compute, bl_gate_t gate, uint64_t rows, uint64_t width,
                          bl_compute_dtype_t dtype, const void *pre, void *act) {
  (void)compute;
  double *values = widen(dtype, pre, 2 * rows * width), *made = malloc(rows * width * sizeof *made);
  for (size_t i = 0; i < rows * width; i++) {
    const double *pair = values + i / width * 2 * width + i % width;
    made[i] = reference_gate(gate, pair[0]) * pair[width];
  }
  narrow(dtype, made, rows * width, act);
  free(values);
  free(made);
}

static void gated_backward(bl_compute_t *compute, bl_gate_t gate, uint64_t rows, uint64_t width,
                           bl_compute_dtype_t dtype, const void *dact, const void *pre, void *dpre) {
  (void)compute;
  double *values = widen(dtype, pre, 2 * rows * width), *slopes = widen(dtype, dact, rows * width);
  for (size_t i = 0; i < rows * width; i++) {
    double *pair = values + i / width * 2 * width + i % width, up = pair[width];
    pair[width] = slopes[i] * reference_gate(gate, pair[0]);
    pair[0] = slopes[i] * reference_gate_slope(gate, pair[0]) * up;
  }
  narrow(dtype, values, 2 * rows * width, dpre);
  free(values);
  free(slopes);
}

// ---- positions and attention

static bl_status_t rope_plan(bl_compute_t *compute, const bl_rope_shape_t *shape, bl_rope_op_t **op, bl_error_t *err) {
  *op = plan(compute, shape, sizeof *shape);
  return planned(*op, err);
}

static void rotate(const bl_rope_shape_t *s, double direction, void *qkv) {
  const size_t rows = bl_slice_rows(s->seq, s->count);
  const size_t count = s->batch * rows * (s->heads + 2 * s->kv_heads) * s->head_dim;
  double *values = widen(s->dtype, qkv, count);
  reference_rope(s->batch, s->first, rows, s->heads, s->kv_heads, s->head_dim, bl_rope_dims(&s->rope, s->head_dim),
                 s->rope.theta, direction, values);
  narrow(s->dtype, values, count, qkv);
  free(values);
}

static void rope_forward(bl_rope_op_t *op, void *qkv) {
  rotate(&op->shape, 1, qkv);
}

static void rope_backward(bl_rope_op_t *op, void *dqkv) {
  rotate(&op->shape, -1, dqkv);
}

static bl_status_t attention_plan(bl_compute_t *compute, const bl_attention_shape_t *shape, bl_attention_op_t **op,
                                  bl_error_t *err) {
  *op = plan(compute, shape, sizeof *shape);
  return planned(*op, err);
}

// A slice is computed as the sequence up to its end, whose earlier keys and values come from pages, and whose earlier
// queries get no gradient. Pages of gradients hold sums as they are.
typedef struct {
  size_t rows, keys;             // own positions, positions up to the slice's end
  size_t qkv_row, att_row, page; // elements of a row; of a row of a page
  size_t scores, sums;           // elements
  reference_attention_t shape;
} attention_sizes_t;

static attention_sizes_t attention_sizes(const bl_attention_shape_t *s) {
  const size_t rows = bl_slice_rows(s->seq, s->count), keys = s->first + rows;
  return (attention_sizes_t){.rows = rows,
                             .keys = keys,
                             .qkv_row = (s->heads + 2 * s->kv_heads) * s->head_dim,
                             .att_row = s->heads * s->head_dim,
                             .page = 2 * s->kv_heads * s->head_dim,
                             .scores = s->batch * s->heads * keys * keys,
                             .sums = s->batch * s->heads * keys,
                             .shape = {.batch = s->batch,
                                       .seq = keys,
                                       .heads = s->heads,
                                       .kv_heads = s->kv_heads,
                                       .head_dim = s->head_dim,
                                       .window = s->window,
                                       .scale = (double)s->scale,
                                       .softcap = (double)s->softcap}};
}

// Own rows of [groups, rows, width] as the last ones of [groups, keys, width], zeros before them; freed by the caller.
static double *widen_own(const attention_sizes_t *n, bl_compute_dtype_t dtype, const void *from, size_t groups,
                         size_t width) {
  double *own = widen(dtype, from, groups * n->rows * width);
  double *made = calloc(groups * n->keys * width, sizeof *made);
  for (size_t i = 0; i < groups; i++) {
    memcpy(made + ((i + 1) * n->keys - n->rows) * width, own + i * n->rows * width, n->rows * width * sizeof *made);
  }
  free(own);
  return made;
}

static void narrow_own(const attention_sizes_t *n, bl_compute_dtype_t dtype, const double *from, size_t groups,
                       size_t width, void *to) {
  for (size_t i = 0; i < groups; i++) {
    narrow(dtype, from + ((i + 1) * n->keys - n->rows) * width, n->rows * width,
           (char *)to + i * n->rows * width * element_bytes(dtype));
  }
}

// The keys and values of row `row` of page `page`, in sequences of `keys` rows.
static double *keys_of_row(const attention_sizes_t *n, double *qkv, size_t page, size_t row) {
  const size_t sequence = row / n->rows, position = page * n->rows + row % n->rows;
  return qkv + (sequence * n->keys + position) * n->qkv_row + n->att_row;
}

static double *widen_qkv(const attention_sizes_t *n, bl_compute_dtype_t dtype, const void *qkv, void *const *pages) {
  double *made = widen_own(n, dtype, qkv, n->shape.batch, n->qkv_row);
  for (size_t i = 0; pages != NULL && i + 1 < n->keys / n->rows; i++) {
    double *page = widen(dtype, pages[i], n->shape.batch * n->rows * n->page);
    for (size_t row = 0; row < n->shape.batch * n->rows; row++) {
      memcpy(keys_of_row(n, made, i, row), page + row * n->page, n->page * sizeof *page);
    }
    free(page);
  }
  return made;
}

static void attention_slice_forward(bl_attention_op_t *op, const void *qkv, void *const *pages, void *att,
                                    void *saved) {
  const bl_attention_shape_t *s = &op->shape;
  const attention_sizes_t n = attention_sizes(s);
  double *qkv64 = widen_qkv(&n, s->dtype, qkv, pages), *att64 = malloc(s->batch * n.keys * n.att_row * sizeof *att64);
  double *scores = calloc(n.scores, sizeof *scores), *sums = calloc(n.sums, sizeof *sums);
  for (size_t row = 0; pages != NULL && row < s->batch * n.rows; row++) {
    narrow(s->dtype, keys_of_row(&n, qkv64, n.keys / n.rows - 1, row), n.page,
           (char *)pages[n.keys / n.rows - 1] + row * n.page * element_bytes(s->dtype));
  }
  reference_attention_forward(&n.shape, qkv64, att64, scores, sums);
  narrow_own(&n, s->dtype, att64, s->batch, n.att_row, att);
  if (s->flash) {
    narrow_own(&n, BL_COMPUTE_FP32, sums, s->batch * s->heads, 1, saved);
  } else {
    narrow_own(&n, s->dtype, scores, s->batch * s->heads, n.keys, saved);
  }
  free(qkv64);
  free(att64);
  free(scores);
  free(sums);
}

static void attention_forward(bl_attention_op_t *op, const void *qkv, void *att, void *saved) {
  attention_slice_forward(op, qkv, NULL, att, saved);
}

// Moves gradients of keys between the pages and dqkv.
static void move_gradients(const attention_sizes_t *n, bool last, double *dqkv, float *const *gradients) {
  const size_t slices = n->keys / n->rows;
  for (size_t i = 0; i < slices; i++) {
    for (size_t row = 0; row < n->shape.batch * n->rows; row++) {
      double *sums = keys_of_row(n, dqkv, i, row);
      for (size_t k = 0; k < n->page; k++) {
        sums[k] += last ? 0 : (double)gradients[i][row * n->page + k];
        if (i + 1 < slices) {
          gradients[i][row * n->page + k] = (float)sums[k];
        }
      }
    }
  }
}

static void attention_slice_backward(bl_attention_op_t *op, const void *datt, const void *qkv, void *const *pages,
                                     float *const *gradients, const void *att, const void *saved, void *dqkv) {
  (void)att;
  (void)saved; // made again without their rounding
  const bl_attention_shape_t *s = &op->shape;
  const attention_sizes_t n = attention_sizes(s);
  double *qkv64 = widen_qkv(&n, s->dtype, qkv, pages);
  double *datt64 = widen_own(&n, s->dtype, datt, s->batch, n.att_row);
  double *att64 = malloc(s->batch * n.keys * n.att_row * sizeof *att64);
  double *dqkv64 = calloc(s->batch * n.keys * n.qkv_row, sizeof *dqkv64);
  double *scores = calloc(n.scores, sizeof *scores), *sums = calloc(n.sums, sizeof *sums);
  reference_attention_forward(&n.shape, qkv64, att64, scores, sums);
  reference_attention_backward(&n.shape, datt64, qkv64, scores, dqkv64);
  if (pages != NULL) {
    move_gradients(&n, n.keys == s->seq, dqkv64, gradients);
  }
  narrow_own(&n, s->dtype, dqkv64, s->batch, n.qkv_row, dqkv);
  free(qkv64);
  free(datt64);
  free(att64);
  free(dqkv64);
  free(scores);
  free(sums);
}

static void attention_backward(bl_attention_op_t *op, const void *datt, const void *qkv, const void *att,
                               const void *saved, void *dqkv) {
  attention_slice_backward(op, datt, qkv, NULL, NULL, att, saved, dqkv);
}

// ---- embedding

static void embedding_forward(bl_compute_t *compute, uint64_t batch, uint64_t seq, uint64_t width, float scale,
                              bl_compute_dtype_t dtype, const int32_t *tokens, const float *wte, const float *wpe,
                              void *x) {
  (void)compute;
  double *made = malloc(batch * seq * width * sizeof *made);
  for (size_t i = 0; i < batch * seq * width; i++) {
    const size_t row = i / width, column = i % width;
    made[i] = (double)scale * (double)wte[(size_t)tokens[row] * width + column] +
              (wpe == NULL ? 0 : (double)wpe[row % seq * width + column]);
  }
  narrow(dtype, made, batch * seq * width, x);
  free(made);
}

static void embedding_backward(bl_compute_t *compute, uint64_t batch, uint64_t seq, uint64_t width, float scale,
                               bl_compute_dtype_t dtype, const int32_t *tokens, const void *dx, float *dwte,
                               float *dwpe) {
  (void)compute;
  double *values = widen(dtype, dx, batch * seq * width);
  for (size_t i = 0; i < batch * seq * width; i++) {
    const size_t row = i / width, column = i % width;
    float *token = &dwte[(size_t)tokens[row] * width + column];
    *token = (float)((double)*token + (double)scale * values[i]);
    if (dwpe != NULL) {
      float *position = &dwpe[row % seq * width + column];
      *position = (float)((double)*position + values[i]);
    }
  }
  free(values);
}

// ---- head

static void softcap_logits(bl_compute_t *compute, uint64_t rows, uint64_t vocab, uint64_t stride, float softcap,
                           float *logits) {
  (void)compute;
  for (size_t i = 0; i < rows * vocab; i++) {
    float *z = logits + i / vocab * stride + i % vocab;
    *z = (float)reference_softcap((double)softcap, (double)*z);
  }
}

static void cross_entropy(bl_compute_t *compute, uint64_t rows, uint64_t vocab, uint64_t stride,
                          bl_compute_dtype_t dtype, const int32_t *labels, float scale, float softcap, float *logits,
                          double *row_losses) {
  (void)compute;
  double *gradient = malloc(vocab * sizeof *gradient);
  for (size_t row = 0; row < rows; row++) {
    double *values = widen(BL_COMPUTE_FP32, logits + row * stride, vocab);
    row_losses[row] = reference_cross_entropy(vocab, values, labels[row], gradient);
    for (size_t i = 0; i < vocab; i++) {
      gradient[i] *= (double)scale * reference_softcap_slope((double)softcap, values[i]);
    }
    narrow(dtype, gradient, vocab, logits + row * stride);
    free(values);
  }
  free(gradient);
}

static void loss_sum(bl_compute_t *compute, uint64_t rows, const double *row_losses, double *loss,
                     int64_t *first_bad_row) {
  (void)compute;
  *loss = 0;
  *first_bad_row = -1;
  for (size_t row = 0; row < rows; row++) {
    *loss += row_losses[row];
    if (*first_bad_row < 0 && !isfinite(row_losses[row])) {
      *first_bad_row = (int64_t)row;
    }
  }
}

static int32_t draw(bl_compute_t *compute, uint64_t vocab, const float *logits, float temperature, double uniform) {
  (void)compute;
  size_t largest = 0;
  for (size_t i = 0; i < vocab; i++) {
    if (!isfinite(logits[i])) {
      return -1;
    }
    largest = logits[i] > logits[largest] ? i : largest;
  }
  double total = 0, running = 0;
  for (size_t i = 0; temperature > 0 && i < vocab; i++) {
    total += exp(((double)logits[i] - (double)logits[largest]) / (double)temperature);
  }
  for (size_t i = 0; temperature > 0 && i < vocab; i++) {
    running += exp(((double)logits[i] - (double)logits[largest]) / (double)temperature);
    if (running > uniform * total) {
      return (int32_t)i;
    }
  }
  return (int32_t)largest;
}

// ---- parts of a layer

static void sum_parts(bl_compute_t *compute, uint64_t rows, uint64_t width, bl_compute_dtype_t dtype, uint32_t count,
                      const void *const *parts, const float *bias, const void *residual, void *y) {
  (void)compute;
  double *sum = widen(dtype, residual, rows * width);
  sum = sum == NULL ? calloc(rows * width, sizeof *sum) : sum;
  for (size_t i = 0; bias != NULL && i < rows * width; i++) {
    sum[i] += (double)bias[i % width];
  }
  for (uint32_t part = 0; part < count; part++) {
    double *values = widen(dtype, parts[part], rows * width);
    for (size_t i = 0; i < rows * width; i++) {
      sum[i] += values[i];
    }
    free(values);
  }
  narrow(dtype, sum, rows * width, y);
  free(sum);
}

// Row `index` of a table that begins with row `first`; NULL: the part does not have it.
static float *part_row(const float *table, uint64_t index, uint64_t first, uint64_t count, uint64_t width) {
  const bool here = table != NULL && index >= first && index - first < count;
  return here ? (float *)(uintptr_t)table + (index - first) * width : NULL;
}

static void embedding_part_forward(bl_compute_t *compute, const bl_embedding_part_t *part, const int32_t *tokens,
                                   const float *wte, const float *wpe, void *x) {
  (void)compute;
  const size_t rows = part->batch * part->seq, width = part->width;
  double *made = calloc(rows * width, sizeof *made);
  for (size_t row = 0; row < rows; row++) {
    const float *token = part_row(wte, (uint64_t)tokens[row], part->first_token, part->tokens, width);
    const float *position = part_row(wpe, part->start + row % part->seq, part->first_position, part->positions, width);
    for (size_t i = 0; i < width; i++) {
      made[row * width + i] =
          (token == NULL ? 0 : (double)part->scale * (double)token[i]) + (position == NULL ? 0 : (double)position[i]);
    }
  }
  narrow(part->dtype, made, rows * width, x);
  free(made);
}

static void add_row(float *to, double scale, const double *values, size_t width) {
  for (size_t i = 0; to != NULL && i < width; i++) {
    to[i] = (float)((double)to[i] + scale * values[i]);
  }
}

static void embedding_part_backward(bl_compute_t *compute, const bl_embedding_part_t *part, const int32_t *tokens,
                                    const void *dx, float *dwte, float *dwpe) {
  (void)compute;
  const size_t rows = part->batch * part->seq, width = part->width;
  double *values = widen(part->dtype, dx, rows * width);
  for (size_t row = 0; row < rows; row++) {
    add_row(part_row(dwte, (uint64_t)tokens[row], part->first_token, part->tokens, width), (double)part->scale,
            values + row * width, width);
    add_row(part_row(dwpe, part->start + row % part->seq, part->first_position, part->positions, width), 1,
            values + row * width, width);
  }
  free(values);
}

static void softmax_statistics(bl_compute_t *compute, uint64_t rows, uint64_t vocab, uint64_t stride, uint64_t first,
                               const int32_t *labels, const float *logits, float *statistics) {
  (void)compute;
  for (size_t row = 0; row < rows; row++) {
    const float *line = logits + row * stride;
    const uint64_t label = (uint64_t)labels[row] - first; // of another part: too large
    double largest = -INFINITY, sum = 0;
    for (size_t i = 0; i < vocab; i++) {
      largest = (double)line[i] > largest ? (double)line[i] : largest;
    }
    for (size_t i = 0; i < vocab; i++) {
      sum += exp((double)line[i] - largest);
    }
    float *to = statistics + row * BL_SOFTMAX_STATISTICS;
    to[0] = (float)largest;
    to[1] = (float)sum;
    to[2] = label < vocab ? line[label] : 0;
  }
}

static void cross_entropy_part(bl_compute_t *compute, uint64_t rows, uint64_t vocab, uint64_t stride, uint64_t first,
                               bl_compute_dtype_t dtype, const int32_t *labels, float scale, float softcap,
                               uint32_t parts, const float *statistics, float *logits, double *row_losses) {
  (void)compute;
  for (size_t row = 0; row < rows; row++) {
    double *values = widen(BL_COMPUTE_FP32, logits + row * stride, vocab), log_sum = 0, label_logit = 0;
    for (uint32_t part = 0; part < parts; part++) {
      const float *of = statistics + (part * rows + row) * BL_SOFTMAX_STATISTICS;
      const double more = (double)of[0] + log((double)of[1]);
      const double larger = part == 0 || more > log_sum ? more : log_sum;
      log_sum = part == 0 ? more : larger + log(exp(log_sum - larger) + exp(more - larger));
      label_logit += (double)of[2];
    }
    for (size_t i = 0; i < vocab; i++) {
      const double share =
          labels[row] < 0 ? 0 : exp(values[i] - log_sum) - ((uint64_t)labels[row] == first + i ? 1 : 0);
      values[i] = share * (double)scale * reference_softcap_slope((double)softcap, values[i]);
    }
    narrow(dtype, values, vocab, logits + row * stride);
    free(values);
    if (row_losses != NULL) {
      row_losses[row] = labels[row] < 0 ? 0 : log_sum - label_logit;
    }
  }
}

// ---- parameters

static void update(const bl_adamw_tensor_t *t) {
  const bl_adamw_t *o = &t->options;
  const double beta1 = (double)o->beta1, beta2 = (double)o->beta2, rate = (double)o->rate;
  for (size_t i = 0; i < t->count; i++) {
    const double g = (double)o->gradient_scale * (double)t->dw[i];
    const double first = beta1 * (double)t->m[i] + (1 - beta1) * g;
    const double second = beta2 * (double)t->v[i] + (1 - beta2) * g * g;
    const double decayed = (double)t->w[i] * (1 - rate * (double)o->weight_decay);
    t->w[i] = (float)(decayed - rate * (first / (double)o->correction1) /
                                    (sqrt(second / (double)o->correction2) + (double)o->epsilon));
    t->m[i] = (float)first;
    t->v[i] = (float)second;
  }
}

static void adamw(bl_compute_t *compute, uint32_t count, const bl_adamw_tensor_t *tensors) {
  (void)compute;
  for (uint32_t i = 0; i < count; i++) {
    update(&tensors[i]);
  }
}

static void sum_squares(bl_compute_t *compute, uint32_t count, const bl_squares_t *tensors) {
  (void)compute;
  for (uint32_t i = 0; i < count; i++) {
    *tensors[i].sum = 0;
    for (size_t k = 0; k < tensors[i].count; k++) {
      *tensors[i].sum += (double)tensors[i].x[k] * (double)tensors[i].x[k];
    }
  }
}

static void add_columns(bl_compute_t *compute, uint32_t count, const bl_column_sum_t *sums) {
  (void)compute;
  for (uint32_t i = 0; i < count; i++) {
    const bl_column_sum_t *s = &sums[i];
    double *x = widen(s->dtype, s->x, s->rows * s->columns), *total = widen(BL_COMPUTE_FP32, s->sums, s->columns);
    reference_add_columns(s->rows, s->columns, x, total);
    narrow(BL_COMPUTE_FP32, total, s->columns, s->sums);
    free(x);
    free(total);
  }
}

static void accumulate(bl_compute_t *compute, uint64_t count, const float *x, float *y) {
  (void)compute;
  for (size_t i = 0; i < count; i++) {
    y[i] = (float)((double)y[i] + (double)x[i]);
  }
}

static void add(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *a, const void *b,
                void *y) {
  (void)compute;
  double *left = widen(dtype, a, count), *right = widen(dtype, b, count);
  for (size_t i = 0; i < count; i++) {
    left[i] += right[i];
  }
  narrow(dtype, left, count, y);
  free(left);
  free(right);
}

static void fill(bl_compute_t *compute, uint64_t count, float value, float *y) {
  (void)compute;
  for (size_t i = 0; i < count; i++) {
    y[i] = value;
  }
}

const bl_ops_t *bl_ops_reference(void) {
  static const bl_ops_t ops = {.name = "reference",
                               .create = create,
                               .destroy = destroy,
                               .attach = attach,
                               .describe = describe,
                               .workspace_bytes = workspace_bytes,
                               .use_workspace = use_workspace,
                               .status = status,
                               .linear_plan = linear_plan,
                               .linear_packed_bytes = linear_packed_bytes,
                               .linear_pack = linear_pack,
                               .linear_forward = linear_forward,
                               .linear_backward_input = linear_backward_input,
                               .linear_backward_weight = linear_backward_weight,
                               .norm_forward = norm_forward,
                               .norm_backward = norm_backward,
                               .head_norm_forward = head_norm_forward,
                               .head_norm_backward = head_norm_backward,
                               .gelu_forward = gelu_forward,
                               .gelu_backward = gelu_backward,
                               .gated_forward = gated_forward,
                               .gated_backward = gated_backward,
                               .rope_plan = rope_plan,
                               .rope_forward = rope_forward,
                               .rope_backward = rope_backward,
                               .attention_plan = attention_plan,
                               .attention_forward = attention_forward,
                               .attention_backward = attention_backward,
                               .attention_slice_forward = attention_slice_forward,
                               .attention_slice_backward = attention_slice_backward,
                               .embedding_forward = embedding_forward,
                               .embedding_backward = embedding_backward,
                               .softcap_logits = softcap_logits,
                               .cross_entropy = cross_entropy,
                               .loss_sum = loss_sum,
                               .draw = draw,
                               .sum_parts = sum_parts,
                               .embedding_part_forward = embedding_part_forward,
                               .embedding_part_backward = embedding_part_backward,
                               .softmax_statistics = softmax_statistics,
                               .cross_entropy_part = cross_entropy_part,
                               .adamw = adamw,
                               .sum_squares = sum_squares,
                               .add_columns = add_columns,
                               .accumulate = accumulate,
                               .add = add,
                               .fill = fill};
  return &ops;
}
