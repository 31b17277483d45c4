// SPDX-License-Identifier: Apache-2.0
// Operations on activations that take one or two kernels: norms, activations, the embedding, the loss.
#include "compute/ops/cuda/compute.h"
#include "compute/ops/draw.h"

#include <stdlib.h>

static bool fits(bl_compute_t *compute, const bl_norm_shape_t *shape, const char *name) {
  const bool is = shape->width > 0 && shape->width <= BL__NORM_WIDTH_MAX;
  if (!is) {
    bl__cuda_fail(compute, "%s: rows of %llu elements; a GPU takes 1 to %d", name, (unsigned long long)shape->width,
                  BL__NORM_WIDTH_MAX);
  }
  return is;
}

void bl__cuda_norm_forward(bl_compute_t *compute, const bl_norm_shape_t *shape, const void *x, const float *gain,
                           const float *bias, void *y, float *stats) {
  if (fits(compute, shape, "norm forward")) {
    bl__cuda_launched(compute,
                      bl__launch_norm_forward(compute->stream, bl__is_bf16(shape->dtype), shape->rms, shape->rows,
                                              shape->width, shape->epsilon, shape->gain_offset, x, gain, bias, y,
                                              stats),
                      "norm forward");
  }
}

void bl__cuda_norm_backward(bl_compute_t *compute, const bl_norm_shape_t *shape, const void *dy, const void *x,
                            const float *gain, const float *stats, const void *residual_gradient, void *dx,
                            float *partials) {
  if (fits(compute, shape, "norm backward")) {
    bl__cuda_launched(compute,
                      bl__launch_norm_backward(compute->stream, bl__is_bf16(shape->dtype), shape->rms, shape->rows,
                                               shape->width, shape->gain_offset, dy, x, gain, stats, residual_gradient,
                                               dx, partials, (float *)compute->scratch),
                      "norm backward");
  }
}

static bool take_heads(bl_compute_t *compute, const bl_head_norm_shape_t *shape, const char *name,
                       bl__head_norm_t *heads) {
  if (shape->head_dim == 0 || shape->head_dim > BL__HEAD_NORM_MAX) {
    bl__cuda_fail(compute, "%s: heads of %llu elements; a GPU takes 1 to %d", name, (unsigned long long)shape->head_dim,
                  BL__HEAD_NORM_MAX);
    return false;
  }
  *heads = (bl__head_norm_t){.rows = shape->rows,
                             .heads = shape->heads,
                             .kv_heads = shape->kv_heads,
                             .head_dim = shape->head_dim,
                             .epsilon = shape->epsilon,
                             .offset = shape->gain_offset};
  return true;
}

void bl__cuda_head_norm_forward(bl_compute_t *compute, const bl_head_norm_shape_t *shape, const void *qkv,
                                const float *query_gain, const float *key_gain, void *y) {
  bl__head_norm_t heads;
  if (take_heads(compute, shape, "head norm forward", &heads)) {
    bl__cuda_launched(
        compute,
        bl__launch_head_norm_forward(compute->stream, bl__is_bf16(shape->dtype), &heads, qkv, query_gain, key_gain, y),
        "head norm forward");
  }
}

void bl__cuda_head_norm_backward(bl_compute_t *compute, const bl_head_norm_shape_t *shape, const void *dy,
                                 const void *qkv, const float *query_gain, const float *key_gain, void *dqkv,
                                 float *partials) {
  bl__head_norm_t heads;
  if (take_heads(compute, shape, "head norm backward", &heads)) {
    bl__cuda_launched(compute,
                      bl__launch_head_norm_backward(compute->stream, bl__is_bf16(shape->dtype), &heads, dy, qkv,
                                                    query_gain, key_gain, dqkv, partials, (float *)compute->scratch),
                      "head norm backward");
  }
}

void bl__cuda_gelu_forward(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *pre,
                           void *act) {
  bl__cuda_launched(compute, bl__launch_gelu_forward(compute->stream, bl__is_bf16(dtype), count, pre, act),
                    "gelu forward");
}

void bl__cuda_gelu_backward(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *dact,
                            const void *pre, void *dpre) {
  bl__cuda_launched(compute, bl__launch_gelu_backward(compute->stream, bl__is_bf16(dtype), count, dact, pre, dpre),
                    "gelu backward");
}

void bl__cuda_gated_forward(bl_compute_t *compute, bl_gate_t gate, uint64_t rows, uint64_t width,
                            bl_compute_dtype_t dtype, const void *pre, void *act) {
  bl__cuda_launched(
      compute,
      bl__launch_gated_forward(compute->stream, bl__is_bf16(dtype), gate == BL_GATE_GELU, rows, width, pre, act),
      "gated forward");
}

void bl__cuda_gated_backward(bl_compute_t *compute, bl_gate_t gate, uint64_t rows, uint64_t width,
                             bl_compute_dtype_t dtype, const void *dact, const void *pre, void *dpre) {
  bl__cuda_launched(compute,
                    bl__launch_gated_backward(compute->stream, bl__is_bf16(dtype), gate == BL_GATE_GELU, rows, width,
                                              dact, pre, dpre),
                    "gated backward");
}

// Whoever loaded the tokens has checked them against the vocabulary.
static bl__embedding_t whole_embedding(uint64_t batch, uint64_t seq, uint64_t width, float scale) {
  return (bl__embedding_t){
      .batch = batch, .seq = seq, .width = width, .tokens = UINT32_MAX, .positions = seq, .scale = scale};
}

void bl__cuda_embedding_forward(bl_compute_t *compute, uint64_t batch, uint64_t seq, uint64_t width, float scale,
                                bl_compute_dtype_t dtype, const int32_t *tokens, const float *wte, const float *wpe,
                                void *x) {
  const bl__embedding_t whole = whole_embedding(batch, seq, width, scale);
  bl__cuda_launched(
      compute,
      bl__launch_embedding_forward(compute->stream, bl__is_bf16(dtype), &whole, tokens, wte, wpe, x, compute->scratch),
      "embedding forward");
}

void bl__cuda_embedding_backward(bl_compute_t *compute, uint64_t batch, uint64_t seq, uint64_t width, float scale,
                                 bl_compute_dtype_t dtype, const int32_t *tokens, const void *dx, float *dwte,
                                 float *dwpe) {
  const bl__embedding_t whole = whole_embedding(batch, seq, width, scale);
  bl__cuda_launched(compute,
                    bl__launch_embedding_backward(compute->stream, bl__is_bf16(dtype), &whole, tokens, dx, dwte, dwpe,
                                                  compute->scratch),
                    "embedding backward");
}

void bl__cuda_softcap_logits(bl_compute_t *compute, uint64_t rows, uint64_t vocab, uint64_t stride, float softcap,
                             float *logits) {
  bl__cuda_launched(compute, bl__launch_softcap_logits(compute->stream, rows, vocab, stride, softcap, logits),
                    "softcap logits");
}

void bl__cuda_cross_entropy(bl_compute_t *compute, uint64_t rows, uint64_t vocab, uint64_t stride,
                            bl_compute_dtype_t dtype, const int32_t *labels, float scale, float softcap, float *logits,
                            double *row_losses) {
  bl__cuda_launched(compute,
                    bl__launch_cross_entropy(compute->stream, bl__is_bf16(dtype), rows, vocab, stride, labels, scale,
                                             softcap, logits, row_losses),
                    "cross entropy");
}

void bl__cuda_loss_sum(bl_compute_t *compute, uint64_t rows, const double *row_losses, double *loss,
                       int64_t *first_bad_row) {
  bl__cuda_launched(compute, bl__launch_loss_sum(compute->stream, rows, row_losses, loss, first_bad_row), "loss sum");
}

// Called outside of steps, so it may allocate.
int32_t bl__cuda_draw(bl_compute_t *compute, uint64_t vocab, const float *logits, float temperature, double uniform) {
  bl_error_t err = {0};
  float *row = malloc(vocab * sizeof *row);
  bl_status_t status = row ? bl__gpu_copy(compute->gpu, row, logits, vocab * sizeof *row, &err)
                           : bl_error_set(&err, BL_EXHAUSTED, "out of memory");
  int32_t token = -1;
  if (status == BL_OK) {
    token = bl_draw_token(vocab, row, temperature, uniform);
  } else {
    bl__cuda_fail(compute, "draw: %s", err.text);
  }
  free(row);
  return token;
}
