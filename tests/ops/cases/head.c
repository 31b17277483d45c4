// SPDX-License-Identifier: Apache-2.0
// embedding dims: batch, seq, width, vocab; BIAS: with learned positions; SCALE: tokens' rows have one. cross_entropy dims:
// rows, vocab, floats between rows (0: dense); SOFTCAP: of logits that are softcapped first, of which losses and
// gradients are then functions of what was softcapped.
#include "ops/cases/op_case.h"
#include "ops/reference/reference.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS, WTE, WPE, X, DX, DWTE, DWPE };

static void embedding_tensors(const op_case_t *c, op_tensor_t *t) {
  const size_t rows = c->dims[0] * c->dims[1], width = c->dims[2], vocab = c->dims[3];
  const size_t positions = c->flags & OP_BIAS ? c->dims[1] * width : 0;
  t[TOKENS] = (op_tensor_t){"tokens", rows, OP_INDEX, vocab, false, false};
  t[WTE] = (op_tensor_t){"wte", vocab * width, OP_INPUT, 0, false, false};
  t[WPE] = (op_tensor_t){"wpe", positions, OP_INPUT, 0, false, false};
  t[X] = (op_tensor_t){"x", rows * width, OP_OUTPUT, 0, false, false};
  t[DX] = (op_tensor_t){"dx", rows * width, OP_INPUT, 0, false, false};
  t[DWTE] = (op_tensor_t){"dwte", vocab * width, OP_ADDED, 0, false, false};
  t[DWPE] = (op_tensor_t){"dwpe", positions, OP_ADDED, 0, false, false};
  op_set_typed(t, 1u << X | 1u << DX);
}

static float row_scale(const op_case_t *c) {
  return c->flags & OP_SCALE ? 5.5f : 1.0f;
}

static void embedding_host(const op_host_t *h, const op_case_t *c, float **t) {
  const int32_t *tokens = (const int32_t *)(const void *)t[TOKENS];
  h->ops->embedding_forward(h->compute, c->dims[0], c->dims[1], c->dims[2], row_scale(c), op_dtype(c), tokens, t[WTE],
                            t[WPE], t[X]);
  h->ops->embedding_backward(h->compute, c->dims[0], c->dims[1], c->dims[2], row_scale(c), op_dtype(c), tokens, t[DX],
                             t[DWTE], t[DWPE]);
}

static void embedding_reference(const op_case_t *c, double **t) {
  const size_t width = c->dims[2];
  for (size_t row = 0; row < c->dims[0] * c->dims[1]; row++) {
    const size_t token = (size_t)t[TOKENS][row], position = row % c->dims[1];
    for (size_t i = 0; i < width; i++) {
      t[X][row * width + i] =
          (double)row_scale(c) * t[WTE][token * width + i] + (t[WPE] ? t[WPE][position * width + i] : 0);
      t[DWTE][token * width + i] += (double)row_scale(c) * t[DX][row * width + i];
      if (t[DWPE]) {
        t[DWPE][position * width + i] += t[DX][row * width + i];
      }
    }
  }
}

const op_kind_t op_embedding = {
    .name = "embedding",
    .tolerance = 1e-6,
    .tensors = embedding_tensors,
    .host = embedding_host,
    .reference = embedding_reference,
};

enum { LABELS, LOGITS, LOSS, DLOGITS, SUM };
#define SCALE   0.25f
#define SOFTCAP 2.0f

static void cross_entropy_tensors(const op_case_t *c, op_tensor_t *t) {
  t[LABELS] = (op_tensor_t){"labels", c->dims[0], OP_INDEX, c->dims[1], false, false};
  t[LOGITS] = (op_tensor_t){"logits", c->dims[0] * c->dims[1], OP_INPUT, 0, false, false};
  t[LOSS] = (op_tensor_t){"loss", c->dims[0], OP_OUTPUT, 0, false, false};
  t[DLOGITS] = (op_tensor_t){"dlogits", c->dims[0] * c->dims[1], OP_OUTPUT, 0, false, false};
  t[SUM] = (op_tensor_t){"sum", 1, OP_OUTPUT, 0, false, false};
  op_set_typed(t, 1u << DLOGITS);
}

static void cross_entropy_host(const op_host_t *h, const op_case_t *c, float **t) {
  const size_t rows = c->dims[0], vocab = c->dims[1], stride = c->dims[2] == 0 ? vocab : c->dims[2];
  float *logits = op_block(h, BL_ARENA_PRIVATE, rows * stride * sizeof *logits);
  float *values = malloc(rows * sizeof *values);
  double *losses = op_block(h, BL_ARENA_STAGING, rows * sizeof *losses);
  double *sum = op_block(h, BL_ARENA_STAGING, sizeof *sum);
  int64_t *bad = op_block(h, BL_ARENA_STAGING, sizeof *bad);
  uint8_t *bad_bytes =
      malloc((stride - vocab + 1) * sizeof *logits); // NaN: whoever reads what is behind the rows shows it
  memset(bad_bytes, 0xff, (stride - vocab + 1) * sizeof *logits);
  for (size_t row = 0; row < rows; row++) {
    op_move(h, logits + row * stride, t[LOGITS] + row * vocab, vocab * sizeof *logits);
    op_move(h, logits + row * stride + vocab, bad_bytes, (stride - vocab) * sizeof *logits);
  }
  free(bad_bytes);
  if (c->flags & OP_SOFTCAP) {
    h->ops->softcap_logits(h->compute, rows, vocab, stride, SOFTCAP, logits);
  }
  h->ops->cross_entropy(h->compute, rows, vocab, stride, op_dtype(c), op_labels(h, t[LABELS], rows), SCALE,
                        c->flags & OP_SOFTCAP ? SOFTCAP : 0.0f, logits, losses);
  const size_t row_bytes = vocab * (c->flags & OP_BF16 ? sizeof(uint16_t) : sizeof(float));
  for (size_t row = 0; row < rows; row++) { // a row of the gradient starts where its logits do
    op_move(h, (char *)t[DLOGITS] + row * row_bytes, logits + row * stride, row_bytes);
  }
  h->ops->loss_sum(h->compute, c->dims[0], losses, sum, bad);
  op_move(h, logits, logits, 0); // waits
  for (size_t i = 0; i < c->dims[0]; i++) {
    values[i] = (float)losses[i];
  }
  op_move(h, t[LOSS], values, rows * sizeof *values);
  values[0] = *bad == -1 ? (float)*sum : -1.0f;
  op_move(h, t[SUM], values, sizeof *values);
  free(values);
}

// Of one row: logits are softcapped where the case says so, and the gradient is that of what they were.
static double loss_of(const op_case_t *c, const double *logits, int64_t label, double *gradient) {
  const size_t vocab = c->dims[1];
  const double softcap = c->flags & OP_SOFTCAP ? (double)SOFTCAP : 0;
  double *softcapped = calloc(vocab, sizeof *softcapped);
  for (size_t i = 0; i < vocab; i++) {
    softcapped[i] = reference_softcap(softcap, logits[i]);
  }
  const double loss = reference_cross_entropy(vocab, softcapped, label, gradient);
  for (size_t i = 0; i < vocab; i++) {
    gradient[i] *= reference_softcap_slope(softcap, softcapped[i]);
  }
  free(softcapped);
  return loss;
}

static void cross_entropy_reference(const op_case_t *c, double **t) {
  t[SUM][0] = 0;
  for (size_t row = 0; row < c->dims[0]; row++) {
    double *gradient = t[DLOGITS] + row * c->dims[1];
    t[LOSS][row] = loss_of(c, t[LOGITS] + row * c->dims[1], op_label(t[LABELS], row), gradient);
    t[SUM][0] += t[LOSS][row];
    for (size_t i = 0; i < c->dims[1]; i++) {
      gradient[i] *= (double)SCALE;
    }
  }
}

// The objective is the scaled loss itself.
static void cross_entropy_forward(const op_case_t *c, double **t) {
  double *gradient = malloc(c->dims[1] * sizeof *gradient);
  for (size_t row = 0; row < c->dims[0]; row++) {
    t[LOSS][row] = (double)SCALE * loss_of(c, t[LOGITS] + row * c->dims[1], op_label(t[LABELS], row), gradient);
  }
  free(gradient);
}

const op_kind_t op_cross_entropy = {
    .name = "cross_entropy",
    .tolerance = 3e-6,
    .tensors = cross_entropy_tensors,
    .host = cross_entropy_host,
    .reference = cross_entropy_reference,
    .forward = cross_entropy_forward,
    .y = LOSS,
    .dy = -1,
    .slopes = {{LOGITS, DLOGITS}},
    .slopes_count = 1,
};
