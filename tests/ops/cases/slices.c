// SPDX-License-Identifier: Apache-2.0
// Attention of sequences in slices. dims: batch, seq, heads, kv_heads, head_dim, slices, window. Flags as of attention.
//
// Tensors have one part per slice, which starts at a multiple of PART elements. Forwards run from the first slice to the
// last, backwards from the last to the first. Pages of gradients are NaN before: the last slice sets them. What they
// hold in between is up to the back end, so they are no tensors of the case; the pages of keys and values are.
#include "ops/cases/op_case.h"
#include "ops/reference/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PART       64 // elements: every part of a tensor begins at a multiple of 16 bytes
#define SLICES_MAX 8
#define SCALE      0.3f
#define SOFTCAP    1.5f // of scores of about 1

enum { QKV, ATT, SAVED, DATT, DQKV, PAGES };

static size_t rounded(size_t elements) {
  return (elements + PART - 1) / PART * PART;
}

static size_t rows_of(const op_case_t *c) { // of a sequence in a slice
  return c->dims[1] / c->dims[5];
}

static size_t qkv_row(const op_case_t *c) {
  return (c->dims[2] + 2 * c->dims[3]) * c->dims[4];
}

static size_t att_row(const op_case_t *c) {
  return c->dims[2] * c->dims[4];
}

static size_t page_row(const op_case_t *c) {
  return 2 * c->dims[3] * c->dims[4];
}

// Elements of a part whose rows are `row` long.
static size_t part_of(const op_case_t *c, size_t row) {
  return rounded(c->dims[0] * rows_of(c) * row);
}

// Offset of what slice `slice` saves; for the number of slices, the size of all.
static size_t saved_at(const op_case_t *c, size_t slice) {
  const size_t lines = c->dims[0] * c->dims[2] * rows_of(c);
  size_t end = 0;
  for (size_t i = 0; i < slice; i++) {
    end += rounded(c->flags & OP_FLASH ? lines : lines * (i + 1) * rows_of(c));
  }
  return end;
}

static void tensors(const op_case_t *c, op_tensor_t *t) {
  const size_t slices = c->dims[5];
  t[QKV] = (op_tensor_t){"qkv", slices * part_of(c, qkv_row(c)), OP_INPUT, 0, false, false};
  t[ATT] = (op_tensor_t){"att", slices * part_of(c, att_row(c)), OP_OUTPUT, 0, false, false};
  t[SAVED] = (op_tensor_t){"saved", saved_at(c, slices), OP_OUTPUT, 0, false, false};
  t[DATT] = (op_tensor_t){"datt", slices * part_of(c, att_row(c)), OP_INPUT, 0, false, false};
  t[DQKV] = (op_tensor_t){"dqkv", slices * part_of(c, qkv_row(c)), OP_OUTPUT, 0, false, false};
  t[PAGES] = (op_tensor_t){"pages", slices * part_of(c, page_row(c)), OP_OUTPUT, 0, false, false};
  op_set_typed(t,
               1u << QKV | 1u << ATT | 1u << DATT | 1u << DQKV | 1u << PAGES | (c->flags & OP_FLASH ? 0 : 1u << SAVED));
}

static size_t element_bytes(const op_case_t *c) {
  return c->flags & OP_BF16 ? sizeof(uint16_t) : sizeof(float);
}

// Element `index` of a typed tensor.
static void *element(const op_case_t *c, float *tensor, size_t index) {
  return (char *)tensor + index * element_bytes(c);
}

static void *saved_of(const op_case_t *c, float **t, size_t slice) {
  return c->flags & OP_FLASH ? (void *)(t[SAVED] + saved_at(c, slice)) : element(c, t[SAVED], saved_at(c, slice));
}

static bl_attention_op_t *plan(const op_host_t *h, const op_case_t *c, size_t slice) {
  const bl_attention_shape_t shape = {.batch = c->dims[0],
                                      .seq = c->dims[1],
                                      .heads = c->dims[2],
                                      .kv_heads = c->dims[3],
                                      .head_dim = c->dims[4],
                                      .flash = c->flags & OP_FLASH,
                                      .window = c->dims[6],
                                      .scale = c->flags & OP_SCALE ? SCALE : 0.0f,
                                      .softcap = c->flags & OP_SOFTCAP ? SOFTCAP : 0.0f,
                                      .first = slice * rows_of(c),
                                      .count = rows_of(c),
                                      .dtype = op_dtype(c)};
  bl_attention_op_t *op = NULL;
  bl_error_t err = {0};
  return h->ops->attention_plan(h->compute, &shape, &op, &err) == BL_OK ? op : NULL;
}

// Pages of gradients of all slices but the last.
static void create_gradients(const op_host_t *h, const op_case_t *c, float *gradients[SLICES_MAX]) {
  const size_t slices = c->dims[5], page = part_of(c, page_row(c));
  float *block = op_block(h, BL_ARENA_PRIVATE, slices * page * sizeof(float));
  h->ops->fill(h->compute, slices * page, NAN, block);
  for (size_t i = 0; i + 1 < slices; i++) {
    gradients[i] = block + i * page;
  }
  gradients[slices - 1] = NULL;
}

static void host(const op_host_t *h, const op_case_t *c, float **t) {
  const size_t slices = c->dims[5], qkv = part_of(c, qkv_row(c)), att = part_of(c, att_row(c));
  bl_attention_op_t *ops[SLICES_MAX];
  void *pages[SLICES_MAX];
  float *gradients[SLICES_MAX];
  for (size_t i = 0; i < slices; i++) {
    pages[i] = element(c, t[PAGES], i * part_of(c, page_row(c)));
    ops[i] = plan(h, c, i);
    if (ops[i] == NULL) {
      return; // the poisoned outputs fail the comparison
    }
  }
  op_host_workspace(h);
  create_gradients(h, c, gradients);
  for (size_t i = 0; i < slices; i++) {
    h->ops->attention_slice_forward(ops[i], element(c, t[QKV], i * qkv), pages, element(c, t[ATT], i * att),
                                    saved_of(c, t, i));
  }
  for (size_t i = slices; i-- > 0;) {
    const void *from = element(c, t[QKV], i * qkv);
    void *to = element(c, t[DQKV], i * qkv);
    if (c->flags & OP_IN_PLACE) {
      op_move(h, to, from, c->dims[0] * rows_of(c) * qkv_row(c) * element_bytes(c));
      from = to;
    }
    h->ops->attention_slice_backward(ops[i], element(c, t[DATT], i * att), from, pages, gradients,
                                     element(c, t[ATT], i * att), saved_of(c, t, i), to);
  }
}

// Copies rows of `row` elements from parts to whole sequences, or back.
static void join(const op_case_t *c, size_t row, double *parts, double *whole, bool back) {
  for (size_t line = 0; line < c->dims[0] * c->dims[1]; line++) {
    const size_t sequence = line / c->dims[1], position = line % c->dims[1], slice = position / rows_of(c);
    double *part = parts + slice * part_of(c, row) + (sequence * rows_of(c) + position % rows_of(c)) * row;
    memcpy(back ? part : whole + line * row, back ? whole + line * row : part, row * sizeof *part);
  }
}

// Writes what slices save: rows of their positions, of probabilities up to their last.
static void split_saved(const op_case_t *c, const double *probabilities, const double *log_sums, double *saved) {
  const size_t seq = c->dims[1], rows = rows_of(c), matrices = c->dims[0] * c->dims[2];
  for (size_t slice = 0; slice < c->dims[5]; slice++) {
    const size_t keys = (slice + 1) * rows;
    double *to = saved + saved_at(c, slice);
    for (size_t line = 0; line < matrices * rows; line++) {
      const size_t from = line / rows * seq + slice * rows + line % rows;
      if (c->flags & OP_FLASH) {
        to[line] = log_sums[from];
      } else {
        memcpy(to + line * keys, probabilities + from * seq, keys * sizeof *to);
      }
    }
  }
}

static void fill_pages(const op_case_t *c, const double *qkv, double *pages) {
  for (size_t slice = 0; slice < c->dims[5]; slice++) {
    for (size_t line = 0; line < c->dims[0] * rows_of(c); line++) {
      memcpy(pages + slice * part_of(c, page_row(c)) + line * page_row(c),
             qkv + slice * part_of(c, qkv_row(c)) + line * qkv_row(c) + att_row(c), page_row(c) * sizeof *pages);
    }
  }
}

static void run_reference(const op_case_t *c, double **t, bool backward) {
  const reference_attention_t shape = {.batch = c->dims[0],
                                       .seq = c->dims[1],
                                       .heads = c->dims[2],
                                       .kv_heads = c->dims[3],
                                       .head_dim = c->dims[4],
                                       .window = c->dims[6],
                                       .scale = c->flags & OP_SCALE ? (double)SCALE : 0,
                                       .softcap = c->flags & OP_SOFTCAP ? (double)SOFTCAP : 0};
  const size_t tokens = c->dims[0] * c->dims[1];
  double *qkv = calloc(tokens * qkv_row(c), sizeof(double)), *att = calloc(tokens * att_row(c), sizeof(double));
  double *probabilities = calloc(tokens * c->dims[2] * c->dims[1], sizeof(double));
  double *log_sums = calloc(tokens * c->dims[2], sizeof(double));
  join(c, qkv_row(c), t[QKV], qkv, false);
  reference_attention_forward(&shape, qkv, att, probabilities, log_sums);
  join(c, att_row(c), t[ATT], att, true);
  if (backward) {
    double *dqkv = calloc(tokens * qkv_row(c), sizeof(double));
    split_saved(c, probabilities, log_sums, t[SAVED]);
    fill_pages(c, t[QKV], t[PAGES]);
    join(c, att_row(c), t[DATT], att, false);
    reference_attention_backward(&shape, att, qkv, probabilities, dqkv);
    join(c, qkv_row(c), t[DQKV], dqkv, true);
    free(dqkv);
  }
  free(qkv);
  free(att);
  free(probabilities);
  free(log_sums);
}

static void forward(const op_case_t *c, double **t) {
  run_reference(c, t, false);
}

static void reference(const op_case_t *c, double **t) {
  run_reference(c, t, true);
}

const op_kind_t op_attention_slices = {
    .name = "attention_slices",
    .tolerance = 1e-5,
    .bf16_tolerance = 1.0 / 32, // as of attention
    .tensors = tensors,
    .host = host,
    .reference = reference,
    .forward = forward,
    .y = ATT,
    .dy = DATT,
    .slopes = {{QKV, DQKV}},
    .slopes_count = 1,
};
