// SPDX-License-Identifier: Apache-2.0
#include "timed_ops.h"

#include "sys/clock.h"

#define SPANS 4096

static const bl_ops_t *inner;

enum {
  LINEAR_FORWARD,
  LINEAR_INPUT,
  LINEAR_WEIGHT,
  LINEAR_PACK,
  ATTENTION_FORWARD,
  ATTENTION_BACKWARD,
  NORM_FORWARD,
  NORM_BACKWARD,
  ACTIVATION_FORWARD,
  ACTIVATION_BACKWARD,
  ROPE,
  EMBEDDING,
  CROSS_ENTROPY,
  ACCUMULATE,
  ADD,
  FILL,
  SUM_SQUARES,
  ADAMW,
  ADD_COLUMNS,
  KINDS
};

static bl_timed_kind_t kinds[KINDS] = {
    [LINEAR_FORWARD] = {.name = "linear forward"},
    [LINEAR_INPUT] = {.name = "linear input gradient"},
    [LINEAR_WEIGHT] = {.name = "linear weight gradient"},
    [LINEAR_PACK] = {.name = "weight packing"},
    [ATTENTION_FORWARD] = {.name = "attention forward"},
    [ATTENTION_BACKWARD] = {.name = "attention backward"},
    [NORM_FORWARD] = {.name = "norm forward"},
    [NORM_BACKWARD] = {.name = "norm backward"},
    [ACTIVATION_FORWARD] = {.name = "activation forward"},
    [ACTIVATION_BACKWARD] = {.name = "activation backward"},
    [ROPE] = {.name = "rope"},
    [EMBEDDING] = {.name = "embedding"},
    [CROSS_ENTROPY] = {.name = "cross entropy"},
    [ACCUMULATE] = {.name = "accumulate"},
    [ADD] = {.name = "add"},
    [FILL] = {.name = "fill"},
    [SUM_SQUARES] = {.name = "sum of squares"},
    [ADAMW] = {.name = "adamw"},
    [ADD_COLUMNS] = {.name = "add columns"},
};

// If operations are only queued: a pair of events around each.
typedef struct span {
  bl_device_event_t *from, *to;
  int kind;
} span_t;

static struct {
  bool off;
  bl_device_t *device;
  bl_device_stream_t *stream; // NULL: by the clock
  span_t spans[SPANS];
  size_t used, made;
  bl_error_t error;
} watch;

static span_t *begin_span(int kind) {
  if (watch.used == SPANS || watch.error.status != BL_OK) {
    (void)bl_error_set(&watch.error, BL_EXHAUSTED, "more than %d operations between two readings", SPANS);
    return NULL;
  }
  span_t *span = &watch.spans[watch.used];
  bl_status_t status = BL_OK;
  if (watch.used == watch.made) {
    status = bl_device_event_create(watch.device, true, &span->from, &watch.error);
    status = status == BL_OK ? bl_device_event_create(watch.device, true, &span->to, &watch.error) : status;
    watch.made += status == BL_OK;
  }
  span->kind = kind;
  status = status == BL_OK ? bl_device_event_record(watch.device, span->from, watch.stream, &watch.error) : status;
  watch.used += status == BL_OK;
  return status == BL_OK ? span : NULL;
}

static void end_span(const span_t *span) {
  if (span != NULL && bl_device_event_record(watch.device, span->to, watch.stream, &watch.error) != BL_OK) {
    watch.used--;
  }
}

// Runs a statement and adds its time to a kind of operation.
#define TIMED(kind, statement)                                                                                         \
  do {                                                                                                                 \
    if (watch.off) {                                                                                                   \
      statement;                                                                                                       \
    } else if (watch.stream != NULL) {                                                                                 \
      const span_t *timed_span = begin_span(kind);                                                                     \
      statement;                                                                                                       \
      end_span(timed_span);                                                                                            \
    } else {                                                                                                           \
      uint64_t timed_start = bl_clock_now_ns();                                                                        \
      statement;                                                                                                       \
      kinds[kind].ns += bl_clock_now_ns() - timed_start;                                                               \
      kinds[kind].calls++;                                                                                             \
    }                                                                                                                  \
  } while (0)

static void linear_pack(bl_linear_op_t *op, const float *w, const float *bias, void *packed) {
  TIMED(LINEAR_PACK, inner->linear_pack(op, w, bias, packed));
}

static void linear_forward(bl_linear_op_t *op, const void *x, const float *w, const void *packed, const float *bias,
                           const void *residual, void *y) {
  TIMED(LINEAR_FORWARD, inner->linear_forward(op, x, w, packed, bias, residual, y));
}

static void linear_backward_input(bl_linear_op_t *op, const void *dy, const float *w, const void *packed,
                                  bool accumulate, void *dx) {
  TIMED(LINEAR_INPUT, inner->linear_backward_input(op, dy, w, packed, accumulate, dx));
}

static void linear_backward_weight(bl_linear_op_t *op, const void *x, const void *dy, bool accumulate, float *dw) {
  TIMED(LINEAR_WEIGHT, inner->linear_backward_weight(op, x, dy, accumulate, dw));
}

static void norm_forward(bl_compute_t *compute, const bl_norm_shape_t *shape, const void *x, const float *gain,
                         const float *bias, void *y, float *stats) {
  TIMED(NORM_FORWARD, inner->norm_forward(compute, shape, x, gain, bias, y, stats));
}

static void norm_backward(bl_compute_t *compute, const bl_norm_shape_t *shape, const void *dy, const void *x,
                          const float *gain, const float *stats, const void *residual_gradient, void *dx,
                          float *partials) {
  TIMED(NORM_BACKWARD, inner->norm_backward(compute, shape, dy, x, gain, stats, residual_gradient, dx, partials));
}

static void head_norm_forward(bl_compute_t *compute, const bl_head_norm_shape_t *shape, const void *qkv,
                              const float *query_gain, const float *key_gain, void *y) {
  TIMED(NORM_FORWARD, inner->head_norm_forward(compute, shape, qkv, query_gain, key_gain, y));
}

static void head_norm_backward(bl_compute_t *compute, const bl_head_norm_shape_t *shape, const void *dy,
                               const void *qkv, const float *query_gain, const float *key_gain, void *dqkv,
                               float *partials) {
  TIMED(NORM_BACKWARD, inner->head_norm_backward(compute, shape, dy, qkv, query_gain, key_gain, dqkv, partials));
}

static void gelu_forward(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *pre, void *act) {
  TIMED(ACTIVATION_FORWARD, inner->gelu_forward(compute, count, dtype, pre, act));
}

static void gelu_backward(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *dact,
                          const void *pre, void *dpre) {
  TIMED(ACTIVATION_BACKWARD, inner->gelu_backward(compute, count, dtype, dact, pre, dpre));
}

static void gated_forward(bl_compute_t *compute, bl_gate_t gate, uint64_t rows, uint64_t width,
                          bl_compute_dtype_t dtype, const void *pre, void *act) {
  TIMED(ACTIVATION_FORWARD, inner->gated_forward(compute, gate, rows, width, dtype, pre, act));
}

static void gated_backward(bl_compute_t *compute, bl_gate_t gate, uint64_t rows, uint64_t width,
                           bl_compute_dtype_t dtype, const void *dact, const void *pre, void *dpre) {
  TIMED(ACTIVATION_BACKWARD, inner->gated_backward(compute, gate, rows, width, dtype, dact, pre, dpre));
}

static void rope_forward(bl_rope_op_t *op, void *qkv) {
  TIMED(ROPE, inner->rope_forward(op, qkv));
}

static void rope_backward(bl_rope_op_t *op, void *dqkv) {
  TIMED(ROPE, inner->rope_backward(op, dqkv));
}

static void attention_forward(bl_attention_op_t *op, const void *qkv, void *att, void *saved) {
  TIMED(ATTENTION_FORWARD, inner->attention_forward(op, qkv, att, saved));
}

static void attention_backward(bl_attention_op_t *op, const void *datt, const void *qkv, const void *att,
                               const void *saved, void *dqkv) {
  TIMED(ATTENTION_BACKWARD, inner->attention_backward(op, datt, qkv, att, saved, dqkv));
}

static void embedding_forward(bl_compute_t *compute, uint64_t batch, uint64_t seq, uint64_t width, float scale,
                              bl_compute_dtype_t dtype, const int32_t *tokens, const float *wte, const float *wpe,
                              void *x) {
  TIMED(EMBEDDING, inner->embedding_forward(compute, batch, seq, width, scale, dtype, tokens, wte, wpe, x));
}

static void embedding_backward(bl_compute_t *compute, uint64_t batch, uint64_t seq, uint64_t width, float scale,
                               bl_compute_dtype_t dtype, const int32_t *tokens, const void *dx, float *dwte,
                               float *dwpe) {
  TIMED(EMBEDDING, inner->embedding_backward(compute, batch, seq, width, scale, dtype, tokens, dx, dwte, dwpe));
}

static void softcap_logits(bl_compute_t *compute, uint64_t rows, uint64_t vocab, uint64_t stride, float softcap,
                           float *logits) {
  TIMED(CROSS_ENTROPY, inner->softcap_logits(compute, rows, vocab, stride, softcap, logits));
}

static void cross_entropy(bl_compute_t *compute, uint64_t rows, uint64_t vocab, uint64_t stride,
                          bl_compute_dtype_t dtype, const int32_t *labels, float scale, float softcap, float *logits,
                          double *row_losses) {
  TIMED(CROSS_ENTROPY,
        inner->cross_entropy(compute, rows, vocab, stride, dtype, labels, scale, softcap, logits, row_losses));
}

static void accumulate(bl_compute_t *compute, uint64_t count, const float *x, float *y) {
  TIMED(ACCUMULATE, inner->accumulate(compute, count, x, y));
}

static void add(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *a, const void *b,
                void *y) {
  TIMED(ADD, inner->add(compute, count, dtype, a, b, y));
}

static void fill(bl_compute_t *compute, uint64_t count, float value, float *y) {
  TIMED(FILL, inner->fill(compute, count, value, y));
}

static void sum_squares(bl_compute_t *compute, uint32_t count, const bl_squares_t *tensors) {
  TIMED(SUM_SQUARES, inner->sum_squares(compute, count, tensors));
}

static void add_columns(bl_compute_t *compute, uint32_t count, const bl_column_sum_t *sums) {
  TIMED(ADD_COLUMNS, inner->add_columns(compute, count, sums));
}

static void adamw(bl_compute_t *compute, uint32_t count, const bl_adamw_tensor_t *tensors) {
  TIMED(ADAMW, inner->adamw(compute, count, tensors));
}

const bl_ops_t *bl_timed_ops(const bl_ops_t *ops) {
  static bl_ops_t timed;
  inner = ops;
  timed = *ops;
  timed.linear_pack = linear_pack;
  timed.linear_forward = linear_forward;
  timed.linear_backward_input = linear_backward_input;
  timed.linear_backward_weight = linear_backward_weight;
  timed.norm_forward = norm_forward;
  timed.norm_backward = norm_backward;
  timed.head_norm_forward = head_norm_forward;
  timed.head_norm_backward = head_norm_backward;
  timed.gelu_forward = gelu_forward;
  timed.gelu_backward = gelu_backward;
  timed.gated_forward = gated_forward;
  timed.gated_backward = gated_backward;
  timed.rope_forward = rope_forward;
  timed.rope_backward = rope_backward;
  timed.attention_forward = attention_forward;
  timed.attention_backward = attention_backward;
  timed.embedding_forward = embedding_forward;
  timed.embedding_backward = embedding_backward;
  timed.softcap_logits = softcap_logits;
  timed.cross_entropy = cross_entropy;
  timed.accumulate = accumulate;
  timed.add = add;
  timed.fill = fill;
  timed.sum_squares = sum_squares;
  timed.adamw = adamw;
  timed.add_columns = add_columns;
  return &timed;
}

void bl_timed_use_clock(void) {
  for (size_t i = 0; i < watch.made; i++) {
    bl_device_event_destroy(watch.device, watch.spans[i].from);
    bl_device_event_destroy(watch.device, watch.spans[i].to);
  }
  watch.stream = NULL;
  watch.used = watch.made = 0;
  watch.off = false;
}

void bl_timed_use_events(bl_device_t *device, bl_device_stream_t *stream) {
  bl_timed_use_clock();
  watch.device = device;
  watch.stream = stream;
}

void bl_timed_pause(bool paused) {
  watch.off = paused;
}

bl_status_t bl_timed_collect(bl_error_t *err) {
  const bl_error_t error = watch.error;
  bl_status_t status = error.status == BL_OK ? BL_OK : bl_error_set(err, error.status, "%s", error.text);
  for (size_t i = 0; i < watch.used && status == BL_OK; i++) {
    const span_t *span = &watch.spans[i];
    uint64_t ns = 0;
    status = bl_device_event_wait(watch.device, span->to, UINT64_MAX, err);
    status = status == BL_OK ? bl_device_event_elapsed(watch.device, span->from, span->to, &ns, err) : status;
    kinds[span->kind].ns += ns;
    kinds[span->kind].calls++;
  }
  watch.used = 0;
  bl_error_clear(&watch.error);
  return status;
}

void bl_timed_reset(void) {
  for (int i = 0; i < KINDS; i++) {
    kinds[i].ns = kinds[i].calls = 0;
  }
}

const bl_timed_kind_t *bl_timed_kinds(size_t *count) {
  *count = KINDS;
  return kinds;
}
