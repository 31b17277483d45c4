// SPDX-License-Identifier: Apache-2.0
// adamw and sums dims: count.
#include "ops/cases/op_case.h"

#include <math.h>
#include <string.h>

enum { DW, W, M, V };

static const bl_adamw_t adamw_options = {.rate = 1e-2f,
                                         .beta1 = 0.9f,
                                         .beta2 = 0.95f,
                                         .epsilon = 1e-8f,
                                         .weight_decay = 0.1f,
                                         .correction1 = 0.271f,
                                         .correction2 = 0.142625f,
                                         .gradient_scale = 0.7f};

static void adamw_tensors(const op_case_t *c, op_tensor_t *t) {
  t[DW] = (op_tensor_t){"dw", c->dims[0], OP_INPUT, 0, false, false};
  t[W] = (op_tensor_t){"w", c->dims[0], OP_ADDED, 0, false, false};
  t[M] = (op_tensor_t){"m", c->dims[0], OP_ADDED, 0, false, false};
  t[V] = (op_tensor_t){"v", c->dims[0], OP_ADDED, 0, true, false};
}

static void adamw_host(const op_host_t *h, const op_case_t *c, float **t) {
  h->ops->adamw(h->compute, c->dims[0], &adamw_options, t[DW], t[W], t[M], t[V]);
}

static void adamw_reference(const op_case_t *c, double **t) {
  const bl_adamw_t *o = &adamw_options;
  const double beta1 = o->beta1, beta2 = o->beta2, rate = o->rate;
  for (size_t i = 0; i < c->dims[0]; i++) {
    const double g = (double)o->gradient_scale * t[DW][i];
    t[W][i] *= 1 - rate * (double)o->weight_decay;
    t[M][i] = beta1 * t[M][i] + (1 - beta1) * g;
    t[V][i] = beta2 * t[V][i] + (1 - beta2) * g * g;
    t[W][i] -=
        rate * (t[M][i] / (double)o->correction1) / (sqrt(t[V][i] / (double)o->correction2) + (double)o->epsilon);
  }
}

const op_kind_t op_adamw = {
    .name = "adamw",
    .tolerance = 2e-6,
    .tensors = adamw_tensors,
    .host = adamw_host,
    .reference = adamw_reference,
};

enum { A, B, SQUARES, TOTAL, SUM, FILLED };

static void sums_tensors(const op_case_t *c, op_tensor_t *t) {
  t[A] = (op_tensor_t){"a", c->dims[0], OP_INPUT, 0, false, false};
  t[B] = (op_tensor_t){"b", c->dims[0], OP_INPUT, 0, false, false};
  t[SQUARES] = (op_tensor_t){"squares", 1, OP_OUTPUT, 0, false, false};
  t[TOTAL] = (op_tensor_t){"total", c->dims[0], OP_ADDED, 0, false, false};
  t[SUM] = (op_tensor_t){"sum", c->dims[0], OP_OUTPUT, 0, false, false};
  t[FILLED] = (op_tensor_t){"filled", c->dims[0], OP_OUTPUT, 0, false, false};
}

static void sums_host(const op_host_t *h, const op_case_t *c, float **t) {
  double *squares = op_block(h, BL_ARENA_STAGING, sizeof *squares);
  h->ops->sum_squares(h->compute, c->dims[0], t[A], squares);
  op_move(h, t[A], t[A], 0); // waits
  const float rounded = (float)*squares;
  op_move(h, t[SQUARES], &rounded, sizeof rounded);
  h->ops->accumulate(h->compute, c->dims[0], t[A], t[TOTAL]);
  const float *a = t[A];
  if (c->flags & OP_IN_PLACE) {
    op_move(h, t[SUM], t[A], c->dims[0] * sizeof(float));
    a = t[SUM];
  }
  h->ops->add(h->compute, c->dims[0], BL_COMPUTE_FP32, a, t[B], t[SUM]);
  h->ops->fill(h->compute, c->dims[0], 0.5f, t[FILLED]);
}

static void sums_reference(const op_case_t *c, double **t) {
  t[SQUARES][0] = 0;
  for (size_t i = 0; i < c->dims[0]; i++) {
    t[SQUARES][0] += t[A][i] * t[A][i];
    t[TOTAL][i] += t[A][i];
    t[SUM][i] = t[A][i] + t[B][i];
    t[FILLED][i] = 0.5;
  }
}

const op_kind_t op_sums = {
    .name = "sums",
    .tolerance = 2e-7,
    .tensors = sums_tensors,
    .host = sums_host,
    .reference = sums_reference,
};
