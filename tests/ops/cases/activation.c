// SPDX-License-Identifier: Apache-2.0
// gelu dims: count. gated dims: rows, width; GELU: its gate. IN_PLACE: dpre over pre.
#include "ops/cases/op_case.h"
#include "ops/reference/reference.h"

#include <string.h>

enum { PRE, ACT, DACT, DPRE };

static void gelu_tensors(const op_case_t *c, op_tensor_t *t) {
  t[PRE] = (op_tensor_t){"pre", c->dims[0], OP_INPUT, 0, false, false};
  t[ACT] = (op_tensor_t){"act", c->dims[0], OP_OUTPUT, 0, false, false};
  t[DACT] = (op_tensor_t){"dact", c->dims[0], OP_INPUT, 0, false, false};
  t[DPRE] = (op_tensor_t){"dpre", c->dims[0], OP_OUTPUT, 0, false, false};
  op_set_typed(t, 1u << PRE | 1u << ACT | 1u << DACT | 1u << DPRE);
}

static const float *source(const op_host_t *h, const op_case_t *c, float **t, size_t count) {
  if (!(c->flags & OP_IN_PLACE)) {
    return t[PRE];
  }
  op_move(h, t[DPRE], t[PRE], count * (c->flags & OP_BF16 ? sizeof(uint16_t) : sizeof(float)));
  return t[DPRE];
}

static void gelu_host(const op_host_t *h, const op_case_t *c, float **t) {
  h->ops->gelu_forward(h->compute, c->dims[0], op_dtype(c), t[PRE], t[ACT]);
  h->ops->gelu_backward(h->compute, c->dims[0], op_dtype(c), t[DACT], source(h, c, t, c->dims[0]), t[DPRE]);
}

static void gelu_forward(const op_case_t *c, double **t) {
  for (size_t i = 0; i < c->dims[0]; i++) {
    t[ACT][i] = reference_gelu(t[PRE][i]);
  }
}

static void gelu_reference(const op_case_t *c, double **t) {
  gelu_forward(c, t);
  for (size_t i = 0; i < c->dims[0]; i++) {
    t[DPRE][i] = t[DACT][i] * reference_gelu_slope(t[PRE][i]);
  }
}

const op_kind_t op_gelu = {
    .name = "gelu",
    .tolerance = 2e-6,
    .tensors = gelu_tensors,
    .host = gelu_host,
    .reference = gelu_reference,
    .forward = gelu_forward,
    .y = ACT,
    .dy = DACT,
    .slopes = {{PRE, DPRE}},
    .slopes_count = 1,
};

static void gated_tensors(const op_case_t *c, op_tensor_t *t) {
  const size_t count = c->dims[0] * c->dims[1];
  t[PRE] = (op_tensor_t){"pre", 2 * count, OP_INPUT, 0, false, false};
  t[ACT] = (op_tensor_t){"act", count, OP_OUTPUT, 0, false, false};
  t[DACT] = (op_tensor_t){"dact", count, OP_INPUT, 0, false, false};
  t[DPRE] = (op_tensor_t){"dpre", 2 * count, OP_OUTPUT, 0, false, false};
  op_set_typed(t, 1u << PRE | 1u << ACT | 1u << DACT | 1u << DPRE);
}

static bl_gate_t gate_of(const op_case_t *c) {
  return c->flags & OP_GELU ? BL_GATE_GELU : BL_GATE_SILU;
}

static void gated_host(const op_host_t *h, const op_case_t *c, float **t) {
  h->ops->gated_forward(h->compute, gate_of(c), c->dims[0], c->dims[1], op_dtype(c), t[PRE], t[ACT]);
  h->ops->gated_backward(h->compute, gate_of(c), c->dims[0], c->dims[1], op_dtype(c), t[DACT],
                         source(h, c, t, 2 * c->dims[0] * c->dims[1]), t[DPRE]);
}

static void gated_forward(const op_case_t *c, double **t) {
  const size_t width = c->dims[1];
  for (size_t i = 0; i < c->dims[0] * width; i++) {
    const double *row = t[PRE] + i / width * 2 * width;
    t[ACT][i] = reference_gate(gate_of(c), row[i % width]) * row[width + i % width];
  }
}

static void gated_reference(const op_case_t *c, double **t) {
  const size_t width = c->dims[1];
  gated_forward(c, t);
  for (size_t i = 0; i < c->dims[0] * width; i++) {
    const size_t gate = i / width * 2 * width + i % width, up = gate + width;
    t[DPRE][gate] = t[DACT][i] * reference_gate_slope(gate_of(c), t[PRE][gate]) * t[PRE][up];
    t[DPRE][up] = t[DACT][i] * reference_gate(gate_of(c), t[PRE][gate]);
  }
}

const op_kind_t op_gated = {
    .name = "gated",
    .tolerance = 2e-6,
    .tensors = gated_tensors,
    .host = gated_host,
    .reference = gated_reference,
    .forward = gated_forward,
    .y = ACT,
    .dy = DACT,
    .slopes = {{PRE, DPRE}},
    .slopes_count = 1,
};
