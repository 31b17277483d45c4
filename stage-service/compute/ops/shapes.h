// SPDX-License-Identifier: Apache-2.0
// Checks of shapes that every back end makes when it plans: whether a shape is valid, with the same messages, and
// whether two shapes are equal and share a plan. Also the table of rotary positions. Pure. Thread: any.
#ifndef BALLAST_COMPUTE_OPS_SHAPES_H
#define BALLAST_COMPUTE_OPS_SHAPES_H

#include "compute/ops/ops.h"

#include <math.h>

static inline bool bl_linear_shapes_match(const bl_linear_shape_t *a, const bl_linear_shape_t *b) {
  return a->rows == b->rows && a->in == b->in && a->out == b->out && a->order == b->order && a->uses == b->uses &&
         a->bias == b->bias && a->residual == b->residual && a->prepack == b->prepack && a->float_y == b->float_y &&
         a->x_stride == b->x_stride && a->y_stride == b->y_stride && a->dtype == b->dtype;
}

// BL_INVALID.
static inline bl_status_t bl_linear_shape_check(const bl_linear_shape_t *shape, bl_error_t *err) {
  if (shape->rows == 0 || shape->in == 0 || shape->out == 0 || (shape->x_stride && shape->x_stride < shape->in) ||
      (shape->y_stride && shape->y_stride < shape->out)) {
    return bl_error_set(err, BL_INVALID, "linear: %llu rows, %llu in, %llu out: nothing may be 0, strides not shorter",
                        (unsigned long long)shape->rows, (unsigned long long)shape->in, (unsigned long long)shape->out);
  }
  if (shape->float_y && shape->residual) {
    return bl_error_set(err, BL_INVALID, "linear: no residual is added to floats");
  }
  return BL_OK;
}

// BL_INVALID: positions [first, first + count) are not a slice of seq. Slices are equally long.
static inline bl_status_t bl_slice_check(const char *what, uint64_t seq, uint64_t first, uint64_t count,
                                         bl_error_t *err) {
  return count == 0 ? (first == 0 ? BL_OK : bl_error_set(err, BL_INVALID, "%s: a whole sequence begins at 0", what))
         : seq % count == 0 && first % count == 0 && first < seq
             ? BL_OK
             : bl_error_set(err, BL_INVALID, "%s: %llu positions from %llu on are no slice of %llu", what,
                            (unsigned long long)count, (unsigned long long)first, (unsigned long long)seq);
}
// Rows of a sequence that this slice has; count 0: all.
static inline uint64_t bl_slice_rows(uint64_t seq, uint64_t count) {
  return count != 0 ? count : seq;
}

static inline bool bl_attention_shapes_match(const bl_attention_shape_t *a, const bl_attention_shape_t *b) {
  return a->batch == b->batch && a->seq == b->seq && a->heads == b->heads && a->kv_heads == b->kv_heads &&
         a->head_dim == b->head_dim && a->flash == b->flash && a->window == b->window && a->scale == b->scale &&
         a->softcap == b->softcap && a->first == b->first && a->count == b->count && a->dtype == b->dtype;
}

// BL_INVALID.
static inline bl_status_t bl_attention_shape_check(const bl_attention_shape_t *shape, bl_error_t *err) {
  if (shape->batch == 0 || shape->seq == 0 || shape->head_dim == 0 || shape->kv_heads == 0 || shape->heads == 0 ||
      shape->heads % shape->kv_heads) {
    return bl_error_set(err, BL_INVALID,
                        "attention: batch %llu, seq %llu, %llu heads of %llu over %llu key heads: nothing may be 0 and "
                        "key heads must divide heads",
                        (unsigned long long)shape->batch, (unsigned long long)shape->seq,
                        (unsigned long long)shape->heads, (unsigned long long)shape->head_dim,
                        (unsigned long long)shape->kv_heads);
  }
  return bl_slice_check("attention", shape->seq, shape->first, shape->count, err);
}

static inline double bl_attention_scale(const bl_attention_shape_t *shape) {
  return shape->scale != 0 ? (double)shape->scale : 1.0 / sqrt((double)shape->head_dim);
}

static inline bool bl_rope_shapes_match(const bl_rope_shape_t *a, const bl_rope_shape_t *b) {
  return a->batch == b->batch && a->seq == b->seq && a->heads == b->heads && a->kv_heads == b->kv_heads &&
         a->head_dim == b->head_dim && a->first == b->first && a->count == b->count &&
         bl_rope_equal(&a->rope, &b->rope) && a->dtype == b->dtype;
}

// BL_INVALID.
static inline bl_status_t bl_rope_shape_check(const bl_rope_shape_t *shape, bl_error_t *err) {
  if (shape->head_dim % 2 || shape->head_dim == 0 || shape->seq == 0 ||
      bl_rope_fault(&shape->rope, shape->head_dim) != NULL || shape->rope.dims > shape->head_dim) {
    return bl_error_set(
        err, BL_INVALID, "rope: head_dim %llu must be even, seq %llu at least 1%s%s",
        (unsigned long long)shape->head_dim, (unsigned long long)shape->seq,
        bl_rope_fault(&shape->rope, shape->head_dim) != NULL ? ", " : "",
        bl_rope_fault(&shape->rope, shape->head_dim) != NULL ? bl_rope_fault(&shape->rope, shape->head_dim) : "");
  }
  return bl_slice_check("rope", shape->seq, shape->first, shape->count, err);
}

// Fills cosines and sines [rows of the slice, bl_rope_dims / 2]. transformers computes frequency and angle in fp32. The
// same rounding here keeps long positions in agreement.
static inline void bl_rope_fill(const bl_rope_shape_t *shape, float *cosines, float *sines) {
  const size_t half = bl_rope_dims(&shape->rope, shape->head_dim) / 2;
  const double scale = bl_rope_scale(&shape->rope);
  for (size_t row = 0; row < bl_slice_rows(shape->seq, shape->count); row++) {
    for (size_t i = 0; i < half; i++) {
      const float frequency = (float)bl_rope_frequency(&shape->rope, i, shape->head_dim, shape->seq);
      const float angle = (float)(shape->first + row) * frequency;
      cosines[row * half + i] = (float)(scale * cos((double)angle));
      sines[row * half + i] = (float)(scale * sin((double)angle));
    }
  }
}

#endif
