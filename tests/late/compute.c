// SPDX-License-Identifier: Apache-2.0
// libballast-cuda-compute.so of the device that is not there: every operation is the host's, done later on the stream's
// thread. Each is a struct of its arguments, a function that queues it, and one that does it.
#include "base/hash.h"
#include "compute/ops/ops.h"
#include "device/module.h"
#include "late/late.h"

#include <stdlib.h>
#include <string.h>

#define HANDLES 256

struct bl_compute {
  bl_compute_t *inner;
  bl_device_t *device;
  bl_device_stream_t *stream;
  bl_device_event_t *event;
  pthread_mutex_t mutex;
  bl_error_t failure; // of the inner context, by the stream's thread
  void *handles[HANDLES];
  size_t handle_count;
};

// What stands for a planned operation; all three kinds are this.
typedef struct {
  bl_compute_t *compute;
  void *inner;
} handle_t;

static const bl_ops_t *host(void) {
  return bl_ops_host();
}

static handle_t *wrap(bl_compute_t *compute, void *inner) {
  for (size_t i = 0; i < compute->handle_count; i++) {
    handle_t *known = compute->handles[i];
    if (known->inner == inner) {
      return known;
    }
  }
  handle_t *made = calloc(1, sizeof *made);
  *made = (handle_t){compute, inner};
  if (compute->handle_count == HANDLES) {
    abort();
  }
  compute->handles[compute->handle_count++] = made;
  return made;
}

static void note_failure(bl_compute_t *compute) {
  bl_error_t err = {0};
  if (host()->status(compute->inner, &err) != BL_OK) {
    pthread_mutex_lock(&compute->mutex);
    compute->failure = err;
    pthread_mutex_unlock(&compute->mutex);
  }
}

static bl_status_t late_create(const bl_compute_options_t *options, bl_compute_t **compute, bl_error_t *err) {
  bl_compute_options_t inner = *options;
  inner.device = NULL;
  bl_compute_t *made = calloc(1, sizeof *made);
  made->device = options->device;
  pthread_mutex_init(&made->mutex, NULL);
  bl_status_t status = host()->create(&inner, &made->inner, err);
  if (status == BL_OK) {
    status = bl_device_stream_create(made->device, BL_STREAM_COMPUTE, &made->stream, err);
  }
  if (status == BL_OK) {
    status = bl_device_event_create(made->device, false, &made->event, err);
  }
  if (status == BL_OK) {
    *compute = made;
  }
  return status;
}

static void late_destroy(bl_compute_t *compute) {
  if (compute == NULL) {
    return;
  }
  bl_device_stream_destroy(compute->device, compute->stream); // ends what is queued
  bl_device_event_destroy(compute->device, compute->event);
  host()->destroy(compute->inner);
  for (size_t i = 0; i < compute->handle_count; i++) {
    free(compute->handles[i]);
  }
  pthread_mutex_destroy(&compute->mutex);
  free(compute);
}

static void wait_for_all(bl_compute_t *compute) {
  bl_error_t err;
  if (bl_device_event_record(compute->device, compute->event, compute->stream, &err) != BL_OK ||
      bl_device_event_wait(compute->device, compute->event, UINT64_MAX, &err) != BL_OK) {
    abort();
  }
}

static void do_attach(void *arguments) {
  bl_compute_t *compute = *(bl_compute_t **)arguments;
  host()->attach(compute->inner);
}

// Planning goes on here; the thread that computes is the stream's.
static void late_attach(bl_compute_t *compute) {
  host()->attach(compute->inner);
  late_put(compute->stream, do_attach, &compute, sizeof compute);
}

static const char *late_describe(const bl_compute_t *compute) {
  (void)compute;
  return "the host, later";
}

static size_t late_workspace_bytes(const bl_compute_t *compute) {
  return host()->workspace_bytes(compute->inner);
}

static void late_use_workspace(bl_compute_t *compute, void *workspace, size_t bytes) {
  wait_for_all(compute);
  host()->use_workspace(compute->inner, late_real(workspace), bytes);
}

static bl_status_t late_status(const bl_compute_t *compute, bl_error_t *err) {
  bl_compute_t *own = (bl_compute_t *)(uintptr_t)compute;
  pthread_mutex_lock(&own->mutex);
  bl_error_t failure = own->failure;
  pthread_mutex_unlock(&own->mutex);
  return failure.status == BL_OK ? BL_OK : bl_error_set(err, failure.status, "%s", failure.text);
}

static bl_device_stream_t *late_stream(bl_compute_t *compute) {
  return compute->stream;
}

static size_t late_held_bytes(const bl_compute_t *compute) {
  (void)compute;
  return 4096; // something, so that it is counted
}

static bl_status_t late_linear_plan(bl_compute_t *compute, const bl_linear_shape_t *shape, bl_linear_op_t **op,
                                    bl_error_t *err) {
  bl_linear_op_t *inner;
  bl_status_t status = host()->linear_plan(compute->inner, shape, &inner, err);
  if (status == BL_OK) {
    *op = (bl_linear_op_t *)(void *)wrap(compute, inner);
  }
  return status;
}

static bl_status_t late_attention_plan(bl_compute_t *compute, const bl_attention_shape_t *shape, bl_attention_op_t **op,
                                       bl_error_t *err) {
  bl_attention_op_t *inner;
  bl_status_t status = host()->attention_plan(compute->inner, shape, &inner, err);
  if (status == BL_OK) {
    *op = (bl_attention_op_t *)(void *)wrap(compute, inner);
  }
  return status;
}

static bl_status_t late_rope_plan(bl_compute_t *compute, const bl_rope_shape_t *shape, bl_rope_op_t **op,
                                  bl_error_t *err) {
  bl_rope_op_t *inner;
  bl_status_t status = host()->rope_plan(compute->inner, shape, &inner, err);
  if (status == BL_OK) {
    *op = (bl_rope_op_t *)(void *)wrap(compute, inner);
  }
  return status;
}

static size_t late_linear_packed_bytes(const bl_linear_op_t *op) {
  return host()->linear_packed_bytes(((const handle_t *)(const void *)op)->inner);
}

typedef struct {
  bl_compute_t *compute;
  void *op;
  const float *w;
  void *packed;
} linear_pack_t;

static void do_linear_pack(void *arguments) {
  const linear_pack_t *call = arguments;
  host()->linear_pack(call->op, call->w, call->packed);
  note_failure(call->compute);
}

static void late_linear_pack(bl_linear_op_t *op, const float *w, void *packed) {
  const handle_t *handle = (const handle_t *)(const void *)op;
  linear_pack_t call = {
      .compute = handle->compute, .op = handle->inner, .w = late_real(w), .packed = late_real(packed)};
  late_put(handle->compute->stream, do_linear_pack, &call, sizeof call);
}

typedef struct {
  bl_compute_t *compute;
  void *op;
  const void *x;
  const float *w;
  const void *packed;
  const float *bias;
  const void *residual;
  void *y;
} linear_forward_t;

static void do_linear_forward(void *arguments) {
  const linear_forward_t *call = arguments;
  host()->linear_forward(call->op, call->x, call->w, call->packed, call->bias, call->residual, call->y);
  note_failure(call->compute);
}

static void late_linear_forward(bl_linear_op_t *op, const void *x, const float *w, const void *packed,
                                const float *bias, const void *residual, void *y) {
  const handle_t *handle = (const handle_t *)(const void *)op;
  linear_forward_t call = {.compute = handle->compute,
                           .op = handle->inner,
                           .x = late_real(x),
                           .w = late_real(w),
                           .packed = late_real(packed),
                           .bias = late_real(bias),
                           .residual = late_real(residual),
                           .y = late_real(y)};
  late_put(handle->compute->stream, do_linear_forward, &call, sizeof call);
}

typedef struct {
  bl_compute_t *compute;
  void *op;
  const void *dy;
  const float *w;
  const void *packed;
  bool accumulate;
  void *dx;
} linear_backward_input_t;

static void do_linear_backward_input(void *arguments) {
  const linear_backward_input_t *call = arguments;
  host()->linear_backward_input(call->op, call->dy, call->w, call->packed, call->accumulate, call->dx);
  note_failure(call->compute);
}

static void late_linear_backward_input(bl_linear_op_t *op, const void *dy, const float *w, const void *packed,
                                       bool accumulate, void *dx) {
  const handle_t *handle = (const handle_t *)(const void *)op;
  linear_backward_input_t call = {.compute = handle->compute,
                                  .op = handle->inner,
                                  .dy = late_real(dy),
                                  .w = late_real(w),
                                  .packed = late_real(packed),
                                  .accumulate = accumulate,
                                  .dx = late_real(dx)};
  late_put(handle->compute->stream, do_linear_backward_input, &call, sizeof call);
}

typedef struct {
  bl_compute_t *compute;
  void *op;
  const void *x;
  const void *dy;
  bool accumulate;
  float *dw;
  float *dbias;
} linear_backward_weight_t;

static void do_linear_backward_weight(void *arguments) {
  const linear_backward_weight_t *call = arguments;
  host()->linear_backward_weight(call->op, call->x, call->dy, call->accumulate, call->dw, call->dbias);
  note_failure(call->compute);
}

static void late_linear_backward_weight(bl_linear_op_t *op, const void *x, const void *dy, bool accumulate, float *dw,
                                        float *dbias) {
  const handle_t *handle = (const handle_t *)(const void *)op;
  linear_backward_weight_t call = {.compute = handle->compute,
                                   .op = handle->inner,
                                   .x = late_real(x),
                                   .dy = late_real(dy),
                                   .accumulate = accumulate,
                                   .dw = late_real(dw),
                                   .dbias = late_real(dbias)};
  late_put(handle->compute->stream, do_linear_backward_weight, &call, sizeof call);
}

typedef struct {
  bl_compute_t *compute;
  bl_norm_shape_t shape;
  const void *x;
  const float *gain;
  const float *bias;
  void *y;
  float *stats;
} norm_forward_t;

static void do_norm_forward(void *arguments) {
  const norm_forward_t *call = arguments;
  host()->norm_forward(call->compute->inner, &call->shape, call->x, call->gain, call->bias, call->y, call->stats);
  note_failure(call->compute);
}

static void late_norm_forward(bl_compute_t *compute, const bl_norm_shape_t *shape, const void *x, const float *gain,
                              const float *bias, void *y, float *stats) {
  norm_forward_t call = {.compute = compute,
                         .shape = *shape,
                         .x = late_real(x),
                         .gain = late_real(gain),
                         .bias = late_real(bias),
                         .y = late_real(y),
                         .stats = late_real(stats)};
  late_put(compute->stream, do_norm_forward, &call, sizeof call);
}

typedef struct {
  bl_compute_t *compute;
  bl_norm_shape_t shape;
  const void *dy;
  const void *x;
  const float *gain;
  const float *stats;
  const void *residual_gradient;
  void *dx;
  float *partials;
} norm_backward_t;

static void do_norm_backward(void *arguments) {
  const norm_backward_t *call = arguments;
  host()->norm_backward(call->compute->inner, &call->shape, call->dy, call->x, call->gain, call->stats,
                        call->residual_gradient, call->dx, call->partials);
  note_failure(call->compute);
}

static void late_norm_backward(bl_compute_t *compute, const bl_norm_shape_t *shape, const void *dy, const void *x,
                               const float *gain, const float *stats, const void *residual_gradient, void *dx,
                               float *partials) {
  norm_backward_t call = {.compute = compute,
                          .shape = *shape,
                          .dy = late_real(dy),
                          .x = late_real(x),
                          .gain = late_real(gain),
                          .stats = late_real(stats),
                          .residual_gradient = late_real(residual_gradient),
                          .dx = late_real(dx),
                          .partials = late_real(partials)};
  late_put(compute->stream, do_norm_backward, &call, sizeof call);
}

typedef struct {
  bl_compute_t *compute;
  uint64_t count;
  bl_compute_dtype_t dtype;
  const void *pre;
  void *act;
} gelu_forward_t;

static void do_gelu_forward(void *arguments) {
  const gelu_forward_t *call = arguments;
  host()->gelu_forward(call->compute->inner, call->count, call->dtype, call->pre, call->act);
  note_failure(call->compute);
}

static void late_gelu_forward(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *pre,
                              void *act) {
  gelu_forward_t call = {
      .compute = compute, .count = count, .dtype = dtype, .pre = late_real(pre), .act = late_real(act)};
  late_put(compute->stream, do_gelu_forward, &call, sizeof call);
}

typedef struct {
  bl_compute_t *compute;
  uint64_t count;
  bl_compute_dtype_t dtype;
  const void *dact;
  const void *pre;
  void *dpre;
} gelu_backward_t;

static void do_gelu_backward(void *arguments) {
  const gelu_backward_t *call = arguments;
  host()->gelu_backward(call->compute->inner, call->count, call->dtype, call->dact, call->pre, call->dpre);
  note_failure(call->compute);
}

static void late_gelu_backward(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *dact,
                               const void *pre, void *dpre) {
  gelu_backward_t call = {.compute = compute,
                          .count = count,
                          .dtype = dtype,
                          .dact = late_real(dact),
                          .pre = late_real(pre),
                          .dpre = late_real(dpre)};
  late_put(compute->stream, do_gelu_backward, &call, sizeof call);
}

typedef struct {
  bl_compute_t *compute;
  uint64_t rows;
  uint64_t width;
  bl_compute_dtype_t dtype;
  const void *pre;
  void *act;
} swiglu_forward_t;

static void do_swiglu_forward(void *arguments) {
  const swiglu_forward_t *call = arguments;
  host()->swiglu_forward(call->compute->inner, call->rows, call->width, call->dtype, call->pre, call->act);
  note_failure(call->compute);
}

static void late_swiglu_forward(bl_compute_t *compute, uint64_t rows, uint64_t width, bl_compute_dtype_t dtype,
                                const void *pre, void *act) {
  swiglu_forward_t call = {
      .compute = compute, .rows = rows, .width = width, .dtype = dtype, .pre = late_real(pre), .act = late_real(act)};
  late_put(compute->stream, do_swiglu_forward, &call, sizeof call);
}

typedef struct {
  bl_compute_t *compute;
  uint64_t rows;
  uint64_t width;
  bl_compute_dtype_t dtype;
  const void *dact;
  const void *pre;
  void *dpre;
} swiglu_backward_t;

static void do_swiglu_backward(void *arguments) {
  const swiglu_backward_t *call = arguments;
  host()->swiglu_backward(call->compute->inner, call->rows, call->width, call->dtype, call->dact, call->pre,
                          call->dpre);
  note_failure(call->compute);
}

static void late_swiglu_backward(bl_compute_t *compute, uint64_t rows, uint64_t width, bl_compute_dtype_t dtype,
                                 const void *dact, const void *pre, void *dpre) {
  swiglu_backward_t call = {.compute = compute,
                            .rows = rows,
                            .width = width,
                            .dtype = dtype,
                            .dact = late_real(dact),
                            .pre = late_real(pre),
                            .dpre = late_real(dpre)};
  late_put(compute->stream, do_swiglu_backward, &call, sizeof call);
}

typedef struct {
  bl_compute_t *compute;
  void *op;
  void *qkv;
} rope_forward_t;

static void do_rope_forward(void *arguments) {
  const rope_forward_t *call = arguments;
  host()->rope_forward(call->op, call->qkv);
  note_failure(call->compute);
}

static void late_rope_forward(bl_rope_op_t *op, void *qkv) {
  const handle_t *handle = (const handle_t *)(const void *)op;
  rope_forward_t call = {.compute = handle->compute, .op = handle->inner, .qkv = late_real(qkv)};
  late_put(handle->compute->stream, do_rope_forward, &call, sizeof call);
}

typedef struct {
  bl_compute_t *compute;
  void *op;
  void *dqkv;
} rope_backward_t;

static void do_rope_backward(void *arguments) {
  const rope_backward_t *call = arguments;
  host()->rope_backward(call->op, call->dqkv);
  note_failure(call->compute);
}

static void late_rope_backward(bl_rope_op_t *op, void *dqkv) {
  const handle_t *handle = (const handle_t *)(const void *)op;
  rope_backward_t call = {.compute = handle->compute, .op = handle->inner, .dqkv = late_real(dqkv)};
  late_put(handle->compute->stream, do_rope_backward, &call, sizeof call);
}

typedef struct {
  bl_compute_t *compute;
  void *op;
  const void *qkv;
  void *att;
  void *saved;
} attention_forward_t;

static void do_attention_forward(void *arguments) {
  const attention_forward_t *call = arguments;
  host()->attention_forward(call->op, call->qkv, call->att, call->saved);
  note_failure(call->compute);
}

static void late_attention_forward(bl_attention_op_t *op, const void *qkv, void *att, void *saved) {
  const handle_t *handle = (const handle_t *)(const void *)op;
  attention_forward_t call = {.compute = handle->compute,
                              .op = handle->inner,
                              .qkv = late_real(qkv),
                              .att = late_real(att),
                              .saved = late_real(saved)};
  late_put(handle->compute->stream, do_attention_forward, &call, sizeof call);
}

typedef struct {
  bl_compute_t *compute;
  void *op;
  const void *datt;
  const void *qkv;
  const void *att;
  const void *saved;
  void *dqkv;
} attention_backward_t;

static void do_attention_backward(void *arguments) {
  const attention_backward_t *call = arguments;
  host()->attention_backward(call->op, call->datt, call->qkv, call->att, call->saved, call->dqkv);
  note_failure(call->compute);
}

static void late_attention_backward(bl_attention_op_t *op, const void *datt, const void *qkv, const void *att,
                                    const void *saved, void *dqkv) {
  const handle_t *handle = (const handle_t *)(const void *)op;
  attention_backward_t call = {.compute = handle->compute,
                               .op = handle->inner,
                               .datt = late_real(datt),
                               .qkv = late_real(qkv),
                               .att = late_real(att),
                               .saved = late_real(saved),
                               .dqkv = late_real(dqkv)};
  late_put(handle->compute->stream, do_attention_backward, &call, sizeof call);
}

typedef struct {
  bl_compute_t *compute;
  uint64_t batch;
  uint64_t seq;
  uint64_t width;
  bl_compute_dtype_t dtype;
  const int32_t *tokens;
  const float *wte;
  const float *wpe;
  void *x;
} embedding_forward_t;

static void do_embedding_forward(void *arguments) {
  const embedding_forward_t *call = arguments;
  host()->embedding_forward(call->compute->inner, call->batch, call->seq, call->width, call->dtype, call->tokens,
                            call->wte, call->wpe, call->x);
  note_failure(call->compute);
}

static void late_embedding_forward(bl_compute_t *compute, uint64_t batch, uint64_t seq, uint64_t width,
                                   bl_compute_dtype_t dtype, const int32_t *tokens, const float *wte, const float *wpe,
                                   void *x) {
  embedding_forward_t call = {.compute = compute,
                              .batch = batch,
                              .seq = seq,
                              .width = width,
                              .dtype = dtype,
                              .tokens = tokens,
                              .wte = late_real(wte),
                              .wpe = late_real(wpe),
                              .x = late_real(x)};
  late_put(compute->stream, do_embedding_forward, &call, sizeof call);
}

typedef struct {
  bl_compute_t *compute;
  uint64_t batch;
  uint64_t seq;
  uint64_t width;
  bl_compute_dtype_t dtype;
  const int32_t *tokens;
  const void *dx;
  float *dwte;
  float *dwpe;
} embedding_backward_t;

static void do_embedding_backward(void *arguments) {
  const embedding_backward_t *call = arguments;
  host()->embedding_backward(call->compute->inner, call->batch, call->seq, call->width, call->dtype, call->tokens,
                             call->dx, call->dwte, call->dwpe);
  note_failure(call->compute);
}

static void late_embedding_backward(bl_compute_t *compute, uint64_t batch, uint64_t seq, uint64_t width,
                                    bl_compute_dtype_t dtype, const int32_t *tokens, const void *dx, float *dwte,
                                    float *dwpe) {
  embedding_backward_t call = {.compute = compute,
                               .batch = batch,
                               .seq = seq,
                               .width = width,
                               .dtype = dtype,
                               .tokens = tokens,
                               .dx = late_real(dx),
                               .dwte = late_real(dwte),
                               .dwpe = late_real(dwpe)};
  late_put(compute->stream, do_embedding_backward, &call, sizeof call);
}

typedef struct {
  bl_compute_t *compute;
  uint64_t rows;
  uint64_t vocab;
  bl_compute_dtype_t dtype;
  const int32_t *labels;
  float scale;
  float *logits;
  double *row_losses;
} cross_entropy_t;

static void do_cross_entropy(void *arguments) {
  const cross_entropy_t *call = arguments;
  host()->cross_entropy(call->compute->inner, call->rows, call->vocab, call->dtype, call->labels, call->scale,
                        call->logits, call->row_losses);
  note_failure(call->compute);
}

static void late_cross_entropy(bl_compute_t *compute, uint64_t rows, uint64_t vocab, bl_compute_dtype_t dtype,
                               const int32_t *labels, float scale, float *logits, double *row_losses) {
  cross_entropy_t call = {.compute = compute,
                          .rows = rows,
                          .vocab = vocab,
                          .dtype = dtype,
                          .labels = labels,
                          .scale = scale,
                          .logits = late_real(logits),
                          .row_losses = late_real(row_losses)};
  late_put(compute->stream, do_cross_entropy, &call, sizeof call);
}

typedef struct {
  bl_compute_t *compute;
  uint64_t rows;
  const double *row_losses;
  double *loss;
  int64_t *first_bad_row;
} loss_sum_t;

static void do_loss_sum(void *arguments) {
  const loss_sum_t *call = arguments;
  host()->loss_sum(call->compute->inner, call->rows, call->row_losses, call->loss, call->first_bad_row);
  note_failure(call->compute);
}

static void late_loss_sum(bl_compute_t *compute, uint64_t rows, const double *row_losses, double *loss,
                          int64_t *first_bad_row) {
  loss_sum_t call = {.compute = compute,
                     .rows = rows,
                     .row_losses = late_real(row_losses),
                     .loss = loss,
                     .first_bad_row = first_bad_row};
  late_put(compute->stream, do_loss_sum, &call, sizeof call);
}

typedef struct {
  bl_compute_t *compute;
  uint64_t count;
  bl_adamw_t options;
  const float *dw;
  float *w;
  float *m;
  float *v;
} adamw_t;

static void do_adamw(void *arguments) {
  const adamw_t *call = arguments;
  host()->adamw(call->compute->inner, call->count, &call->options, call->dw, call->w, call->m, call->v);
  note_failure(call->compute);
}

static void late_adamw(bl_compute_t *compute, uint64_t count, const bl_adamw_t *options, const float *dw, float *w,
                       float *m, float *v) {
  adamw_t call = {.compute = compute,
                  .count = count,
                  .options = *options,
                  .dw = late_real(dw),
                  .w = late_real(w),
                  .m = late_real(m),
                  .v = late_real(v)};
  late_put(compute->stream, do_adamw, &call, sizeof call);
}

typedef struct {
  bl_compute_t *compute;
  uint64_t count;
  const float *x;
  double *sum;
} sum_squares_t;

static void do_sum_squares(void *arguments) {
  const sum_squares_t *call = arguments;
  host()->sum_squares(call->compute->inner, call->count, call->x, call->sum);
  note_failure(call->compute);
}

static void late_sum_squares(bl_compute_t *compute, uint64_t count, const float *x, double *sum) {
  sum_squares_t call = {.compute = compute, .count = count, .x = late_real(x), .sum = sum};
  late_put(compute->stream, do_sum_squares, &call, sizeof call);
}

typedef struct {
  bl_compute_t *compute;
  uint64_t count;
  const float *x;
  float *y;
} accumulate_t;

static void do_accumulate(void *arguments) {
  const accumulate_t *call = arguments;
  host()->accumulate(call->compute->inner, call->count, call->x, call->y);
  note_failure(call->compute);
}

static void late_accumulate(bl_compute_t *compute, uint64_t count, const float *x, float *y) {
  accumulate_t call = {.compute = compute, .count = count, .x = late_real(x), .y = late_real(y)};
  late_put(compute->stream, do_accumulate, &call, sizeof call);
}

typedef struct {
  bl_compute_t *compute;
  uint64_t count;
  bl_compute_dtype_t dtype;
  const void *a;
  const void *b;
  void *y;
} add_t;

static void do_add(void *arguments) {
  const add_t *call = arguments;
  host()->add(call->compute->inner, call->count, call->dtype, call->a, call->b, call->y);
  note_failure(call->compute);
}

static void late_add(bl_compute_t *compute, uint64_t count, bl_compute_dtype_t dtype, const void *a, const void *b,
                     void *y) {
  add_t call = {
      .compute = compute, .count = count, .dtype = dtype, .a = late_real(a), .b = late_real(b), .y = late_real(y)};
  late_put(compute->stream, do_add, &call, sizeof call);
}

typedef struct {
  bl_compute_t *compute;
  uint64_t count;
  float value;
  float *y;
} fill_t;

static void do_fill(void *arguments) {
  const fill_t *call = arguments;
  host()->fill(call->compute->inner, call->count, call->value, call->y);
  note_failure(call->compute);
}

static void late_fill(bl_compute_t *compute, uint64_t count, float value, float *y) {
  fill_t call = {.compute = compute, .count = count, .value = value, .y = late_real(y)};
  late_put(compute->stream, do_fill, &call, sizeof call);
}

static int32_t late_draw(bl_compute_t *compute, uint64_t vocab, const float *logits, float temperature,
                         double uniform) {
  wait_for_all(compute);
  return host()->draw(compute->inner, vocab, late_real(logits), temperature, uniform);
}

typedef struct {
  uint64_t bytes;
  const void *block;
  uint64_t *hash;
} checksum_t;

static void do_checksum(void *arguments) {
  const checksum_t *call = arguments;
  *call->hash = bl_hash64(call->block, call->bytes, 1);
}

static void late_checksum(bl_compute_t *compute, uint64_t bytes, const void *block, uint64_t *hash) {
  if (bytes % 64 != 0 || late_is_device(hash)) {
    abort();
  }
  checksum_t call = {.bytes = bytes, .block = late_real(block), .hash = late_real(hash)};
  late_put(compute->stream, do_checksum, &call, sizeof call);
}

static const bl_ops_t late_ops = {
    .name = "late",
    .create = late_create,
    .destroy = late_destroy,
    .attach = late_attach,
    .describe = late_describe,
    .workspace_bytes = late_workspace_bytes,
    .use_workspace = late_use_workspace,
    .status = late_status,
    .stream = late_stream,
    .held_bytes = late_held_bytes,
    .linear_plan = late_linear_plan,
    .linear_packed_bytes = late_linear_packed_bytes,
    .attention_plan = late_attention_plan,
    .rope_plan = late_rope_plan,
    .draw = late_draw,
    .linear_pack = late_linear_pack,
    .linear_forward = late_linear_forward,
    .linear_backward_input = late_linear_backward_input,
    .linear_backward_weight = late_linear_backward_weight,
    .norm_forward = late_norm_forward,
    .norm_backward = late_norm_backward,
    .gelu_forward = late_gelu_forward,
    .gelu_backward = late_gelu_backward,
    .swiglu_forward = late_swiglu_forward,
    .swiglu_backward = late_swiglu_backward,
    .rope_forward = late_rope_forward,
    .rope_backward = late_rope_backward,
    .attention_forward = late_attention_forward,
    .attention_backward = late_attention_backward,
    .embedding_forward = late_embedding_forward,
    .embedding_backward = late_embedding_backward,
    .cross_entropy = late_cross_entropy,
    .loss_sum = late_loss_sum,
    .adamw = late_adamw,
    .sum_squares = late_sum_squares,
    .accumulate = late_accumulate,
    .add = late_add,
    .fill = late_fill,
    .checksum = late_checksum,
};

static const void *interface(const char *name, size_t table_bytes) {
  return strcmp(name, "ops") == 0 && table_bytes == sizeof late_ops ? &late_ops : NULL;
}

extern const bl_module_info_t bl_module;
BL_MODULE_EXPORT const bl_module_info_t bl_module = {.abi = BL_MODULE_ABI,
                                                     .info_bytes = sizeof bl_module,
                                                     .name = "cuda-compute",
                                                     .version = BALLAST_VERSION,
                                                     .built_with = "threads",
                                                     .interface = interface};
