// SPDX-License-Identifier: Apache-2.0
#include "ceiling.h"

#include "base/bytes.h"
#include "sys/clock.h"

#include <stdlib.h>
#include <string.h>

enum { SHAPES = 2, FORMS = 3, PRODUCTS = SHAPES * FORMS };

static const struct { uint64_t rows, out, in; } shapes[SHAPES] = {{256, 768, 256}, {1024, 3072, 768}};

typedef struct {
  bl_linear_op_t *op;
  double flops;
  void *packed; // or NULL
} product_t;

struct bl_ceiling {
  const bl_ops_t *ops;
  product_t products[PRODUCTS];
  float *x, *w, *y;
};

static float *block(uint64_t elements) {
  uint64_t bytes = bl_align_up(elements * sizeof(float), BL_CACHE_LINE_BYTES);
  float *made = aligned_alloc(BL_CACHE_LINE_BYTES, bytes);
  for (uint64_t i = 0; made != NULL && i < bytes / sizeof(float); i++) {
    made[i] = (float)(i % 17) * 0.01f;
  }
  return made;
}

static bl_status_t plan(bl_ceiling_t *ceiling, bl_compute_t *compute, int index, bl_error_t *err) {
  product_t *product = &ceiling->products[index];
  const uint64_t rows = shapes[index / FORMS].rows, in = shapes[index / FORMS].in, out = shapes[index / FORMS].out;
  const int form = index % FORMS; // plain in either weight order, or prepacked
  bl_linear_shape_t shape = {.rows = rows,
                             .in = in,
                             .out = out,
                             .order = form == 0 ? BL_WEIGHT_IN_OUT : BL_WEIGHT_OUT_IN,
                             .uses = BL_LINEAR_FORWARD,
                             .prepack = form == 2};
  bl_status_t status = ceiling->ops->linear_plan(compute, &shape, &product->op, err);
  if (status != BL_OK) {
    return status;
  }
  product->flops = 2.0 * (double)rows * (double)in * (double)out;
  size_t bytes = ceiling->ops->linear_packed_bytes(product->op);
  if (bytes > 0) {
    product->packed = aligned_alloc(BL_CACHE_LINE_BYTES, bl_align_up(bytes, BL_CACHE_LINE_BYTES));
    if (product->packed == NULL) {
      return bl_error_set(err, BL_EXHAUSTED, "no memory for a packed weight");
    }
  }
  return BL_OK;
}

bl_status_t bl_ceiling_create(const bl_ops_t *ops, bl_compute_t *compute, bl_ceiling_t **ceiling, bl_error_t *err) {
  bl_ceiling_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the ceiling");
  }
  made->ops = ops;
  made->x = block(UINT64_C(1024) * 768);
  made->w = block(UINT64_C(3072) * 768);
  made->y = block(UINT64_C(1024) * 3072);
  bl_status_t status = made->x && made->w && made->y ? BL_OK : bl_error_set(err, BL_EXHAUSTED, "no memory");
  for (int i = 0; i < PRODUCTS && status == BL_OK; i++) {
    status = plan(made, compute, i, err);
  }
  if (status != BL_OK) {
    bl_ceiling_destroy(made);
    return status;
  }
  *ceiling = made;
  return BL_OK;
}

void bl_ceiling_destroy(bl_ceiling_t *ceiling) {
  if (ceiling == NULL) {
    return;
  }
  for (int i = 0; i < PRODUCTS; i++) {
    free(ceiling->products[i].packed);
  }
  free(ceiling->x);
  free(ceiling->w);
  free(ceiling->y);
  free(ceiling);
}

double bl_ceiling_measure(bl_ceiling_t *ceiling, unsigned milliseconds) {
  double best = 0;
  for (int i = 0; i < PRODUCTS; i++) {
    product_t *product = &ceiling->products[i];
    if (product->packed != NULL) {
      ceiling->ops->linear_pack(product->op, ceiling->w, NULL, product->packed);
    }
    ceiling->ops->linear_forward(product->op, ceiling->x, ceiling->w, product->packed, NULL, NULL, ceiling->y); // warm
    uint64_t start = bl_clock_now_ns(), now = start;
    double done = 0;
    while (now - start < (uint64_t)milliseconds * BL_NS_PER_MS) {
      ceiling->ops->linear_forward(product->op, ceiling->x, ceiling->w, product->packed, NULL, NULL, ceiling->y);
      done += product->flops;
      now = bl_clock_now_ns();
    }
    double rate = done * 1e9 / (double)(now - start);
    best = rate > best ? rate : best;
  }
  return best;
}
