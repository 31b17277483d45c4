// SPDX-License-Identifier: Apache-2.0
// libballast-cuda-compute.so of the device that is not there: every operation is the host's, done later on the stream's
// thread (operations.h).
#include "base/hash.h"
#include "compute/ops/ops.h"
#include "device/module.h"
#include "late/operations.h"
#include "late/queued.h"

#include <stdlib.h>
#include <string.h>

#define HANDLES 1024
#define PAGES   255 // slices of a sequence at most

struct bl_compute {
  bl_compute_t *inner;
  bl_device_t *device;
  bl_device_stream_t *stream;
  bl_device_event_t *event;
  pthread_mutex_t mutex;
  bl_error_t failure; // of the inner context, by the stream's thread
  void *handles[HANDLES];
  size_t handle_count;
  void *pages[PAGES]; // of the next operation on a slice; written and read by the stream's thread
  float *gradients[PAGES];
};

// Every planned operation there has been, and what it was asked for: bit 0 a forward, bit 1 a backward.
#define PLANS 4096
static const void *plans[PLANS];
static uint8_t asked[PLANS];
static size_t plan_count;

static void late_note(const void *on, const char *operation) {
  for (size_t i = plan_count; i > 0; i--) {
    if (plans[i - 1] == on) {
      asked[i - 1] |= (uint8_t)((strstr(operation, "forward") != NULL) | (strstr(operation, "backward") != NULL) << 1);
      return;
    }
  }
}

// What test_executor_warm asks: planned operations, and how many of them were asked for a forward, and for a backward.
void late_plans(size_t counts[3]);
BL_MODULE_EXPORT void late_plans(size_t counts[3]) {
  memset(counts, 0, 3 * sizeof *counts);
  for (size_t i = 0; i < plan_count; i++) {
    counts[0]++;
    counts[1] += asked[i] & 1;
    counts[2] += asked[i] >> 1;
  }
}

static const bl_ops_t *host(void) {
  return bl_ops_host();
}

static target_t of_compute(bl_compute_t *compute) {
  return (target_t){.compute = compute, .inner = compute->inner};
}

// What stands for a planned operation, of all three kinds, is a target.
static target_t of_plan(const void *op) {
  return *(const target_t *)op;
}

static target_t *wrap(bl_compute_t *compute, void *inner) {
  for (size_t i = 0; i < compute->handle_count; i++) {
    target_t *known = compute->handles[i];
    if (known->inner == inner) {
      return known;
    }
  }
  target_t *made = calloc(1, sizeof *made);
  *made = (target_t){.compute = compute, .inner = inner};
  if (compute->handle_count == HANDLES) {
    abort();
  }
  compute->handles[compute->handle_count++] = made;
  if (plan_count < PLANS) {
    plans[plan_count++] = made;
  }
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
  late_put(compute->stream, NULL, do_attach, &compute, sizeof compute);
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
    target_t *made = wrap(compute, inner);
    made->pages = shape->count == 0 ? 0 : (uint32_t)(shape->first / shape->count + 1);
    *op = (bl_attention_op_t *)(void *)made;
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
  return host()->linear_packed_bytes(of_plan(op).inner);
}

static int32_t late_draw(bl_compute_t *compute, uint64_t vocab, const float *logits, float temperature,
                         double uniform) {
  wait_for_all(compute);
  return host()->draw(compute->inner, vocab, late_real(logits), temperature, uniform);
}

// The host has none: its memory is hashed by whoever reads it.
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
  late_put(compute->stream, "checksum", do_checksum, &call, sizeof call);
}

LATE_OPERATIONS(QUEUED_CALL)

// The caller's array of parts ends with the call; what it points to is read later.
typedef struct {
  bl_compute_t *compute;
  uint64_t rows, width;
  bl_compute_dtype_t dtype;
  uint32_t count;
  const float *bias;
  const void *residual;
  void *y;
  const void *parts[BL_LAYER_PARTS_MAX];
} sum_parts_call_t;
_Static_assert(sizeof(sum_parts_call_t) <= LATE_TASK_BYTES, "late.h");

static void do_sum_parts(void *arguments) {
  const sum_parts_call_t *call = arguments;
  host()->sum_parts(call->compute->inner, call->rows, call->width, call->dtype, call->count, call->parts, call->bias,
                    call->residual, call->y);
  note_failure(call->compute);
}

static void late_sum_parts(bl_compute_t *compute, uint64_t rows, uint64_t width, bl_compute_dtype_t dtype,
                           uint32_t count, const void *const *parts, const float *bias, const void *residual, void *y) {
  if (count < 2 || count > BL_LAYER_PARTS_MAX || (count & (count - 1)) != 0) {
    abort();
  }
  sum_parts_call_t call = {.compute = compute, .rows = rows, .width = width, .dtype = dtype, .count = count};
  call.bias = late_real(bias);
  call.residual = late_real(residual);
  call.y = late_real(y);
  for (uint32_t i = 0; i < count; i++) {
    call.parts[i] = late_real(parts[i]);
  }
  late_put(compute->stream, "sum_parts", do_sum_parts, &call, sizeof call);
}

// ---- slices: the pages that a call names are read during the call and go ahead of it, some at a time

#define PAGES_A_TASK 16

typedef struct {
  void **to; // of the context
  uint32_t count;
  void *pages[PAGES_A_TASK];
} put_pages_t;
_Static_assert(sizeof(put_pages_t) <= LATE_TASK_BYTES, "late.h");

static void do_put_pages(void *arguments) {
  const put_pages_t *call = arguments;
  memcpy(call->to, call->pages, call->count * sizeof *call->to);
}

static void put_pages(bl_compute_t *compute, uint32_t count, void *const *pages, void **to) {
  for (uint32_t first = 0; first < count; first += PAGES_A_TASK) {
    put_pages_t call = {.to = to + first, .count = count - first < PAGES_A_TASK ? count - first : PAGES_A_TASK};
    for (uint32_t i = 0; i < call.count; i++) {
      call.pages[i] = late_real(pages[first + i]);
    }
    late_put(compute->stream, NULL, do_put_pages, &call, sizeof call);
  }
}

typedef struct {
  target_t target;
  const void *datt, *qkv, *att, *saved;
  void *dqkv;
} slice_backward_t;

typedef struct {
  target_t target;
  const void *qkv;
  void *att, *saved;
} slice_forward_t;

static void do_attention_slice_forward(void *arguments) {
  const slice_forward_t *call = arguments;
  bl_compute_t *compute = call->target.compute;
  host()->attention_slice_forward(call->target.inner, call->qkv, compute->pages, call->att, call->saved);
  note_failure(compute);
}

static void late_attention_slice_forward(bl_attention_op_t *op, const void *qkv, void *const *pages, void *att,
                                         void *saved) {
  const slice_forward_t call = {of_plan(op), late_real(qkv), late_real(att), late_real(saved)};
  late_note(op, "attention_slice_forward");
  put_pages(call.target.compute, call.target.pages, pages, call.target.compute->pages);
  late_put(call.target.compute->stream, "attention_slice_forward", do_attention_slice_forward, &call, sizeof call);
}

static void do_attention_slice_backward(void *arguments) {
  const slice_backward_t *call = arguments;
  bl_compute_t *compute = call->target.compute;
  host()->attention_slice_backward(call->target.inner, call->datt, call->qkv, compute->pages, compute->gradients,
                                   call->att, call->saved, call->dqkv);
  note_failure(compute);
}

static void late_attention_slice_backward(bl_attention_op_t *op, const void *datt, const void *qkv, void *const *pages,
                                          float *const *gradients, const void *att, const void *saved, void *dqkv) {
  const slice_backward_t call = {of_plan(op),    late_real(datt),  late_real(qkv),
                                 late_real(att), late_real(saved), late_real(dqkv)};
  late_note(op, "attention_slice_backward");
  put_pages(call.target.compute, call.target.pages, pages, call.target.compute->pages);
  put_pages(call.target.compute, call.target.pages, (void *const *)gradients, (void **)call.target.compute->gradients);
  late_put(call.target.compute->stream, "attention_slice_backward", do_attention_slice_backward, &call, sizeof call);
}

// Those that take many tensors: each by itself.
#define QUEUED_EACH(operation, type)                                                                                   \
  typedef struct {                                                                                                     \
    bl_compute_t *compute;                                                                                             \
    type tensor;                                                                                                       \
  } operation##_each_t;                                                                                                \
  static void do_##operation(void *arguments) {                                                                        \
    const operation##_each_t *call = arguments;                                                                        \
    host()->operation(call->compute->inner, 1, &call->tensor);                                                         \
    note_failure(call->compute);                                                                                       \
  }                                                                                                                    \
  static void late_##operation(bl_compute_t *compute, uint32_t count, const type *tensors) {                           \
    for (uint32_t i = 0; i < count; i++) {                                                                             \
      const operation##_each_t call = {compute, real_##operation(tensors[i])};                                         \
      late_put(compute->stream, #operation, do_##operation, &call, sizeof call);                                       \
    }                                                                                                                  \
  }

static bl_adamw_tensor_t real_adamw(bl_adamw_tensor_t tensor) {
  tensor.dw = late_real(tensor.dw);
  tensor.w = late_real(tensor.w);
  tensor.m = late_real(tensor.m);
  tensor.v = late_real(tensor.v);
  return tensor;
}

static bl_squares_t real_sum_squares(bl_squares_t tensor) {
  tensor.x = late_real(tensor.x);
  return tensor;
}

static bl_column_sum_t real_add_columns(bl_column_sum_t sum) {
  sum.x = late_real(sum.x);
  sum.sums = late_real(sum.sums);
  return sum;
}

QUEUED_EACH(adamw, bl_adamw_tensor_t)
QUEUED_EACH(sum_squares, bl_squares_t)
QUEUED_EACH(add_columns, bl_column_sum_t)

static const bl_ops_t late_ops = {.name = "late",
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
                                  .attention_slice_forward = late_attention_slice_forward,
                                  .attention_slice_backward = late_attention_slice_backward,
                                  .rope_plan = late_rope_plan,
                                  .draw = late_draw,
                                  .checksum = late_checksum,
                                  .adamw = late_adamw,
                                  .sum_squares = late_sum_squares,
                                  .add_columns = late_add_columns,
                                  .sum_parts = late_sum_parts,
                                  LATE_OPERATIONS(QUEUED_MEMBER)};

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
