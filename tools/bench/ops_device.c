// SPDX-License-Identifier: Apache-2.0
// Each memory-bound operation alone on a device: bytes per second, compared with a bare copy in the same run. Bytes are
// those of its tensors, each read or written once, as the comments at the top of the kernels' files count them. The
// copy is measured before and after each operation; the better result counts. Kernels that are parts of operations are
// timed by the device's profiler, if it has one.
#include "bench.h"

#include "base/random.h"
#include "base/sort.h"
#include "compute/ops/select.h"
#include "device/profiler.h"
#include "measure.h"
#include "numbers.h"
#include "ops_kernels.h"
#include "program.h"
#include "stopwatch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES_MAX 99
#define SAMPLE_S    2e-3 // minimum of one sample; shorter operations are repeated
#define REPEATS_MAX 4096
#define HEAD_DIM    64
#define HEAD_ROWS   4096 // rows of logits: a piece of 2^27 logits of a stage's head
#define BLOCKS      4    // of elements
#define VECTORS     4    // of floats: gradients, weights, moments
#define ARENAS      (BLOCKS + VECTORS + 5)

typedef struct {
  int device, dtype;
  int64_t gpu, hidden, seq, micro_batch, vocab, samples, threads;
} settings_t;

static const char *const devices[] = {"host", "cuda", NULL};
static const char *const dtypes[] = {"fp32", "bf16", NULL};

static const bl_option_t rows[] = {
    BL_BENCH_ENUM(settings_t, device, "device", devices, "cuda", "Where."),
    BL_BENCH_INT(settings_t, gpu, "gpu", "0", 0, 1023, "Which of the GPUs that this process sees."),
    BL_BENCH_INT(settings_t, hidden, "hidden", "8192", HEAD_DIM, 1 << 16, "Width of the model, a multiple of 64."),
    BL_BENCH_INT(settings_t, seq, "seq", "2048", 1, 1 << 20, "Tokens of a sequence."),
    BL_BENCH_INT(settings_t, micro_batch, "micro-batch", "4", 1, 1 << 16,
                 "Sequences; enough of them that tensors do not stay in the device's cache."),
    BL_BENCH_INT(settings_t, vocab, "vocab", "32000", 2, 1 << 24, "Of the head."),
    BL_BENCH_ENUM(settings_t, dtype, "dtype", dtypes, "bf16", "Type of activations."),
    BL_BENCH_INT(settings_t, samples, "samples", "11", 1, SAMPLES_MAX,
                 "Pairs of operation and copy to take medians of."),
    BL_BENCH_THREADS(settings_t, threads, "Compute threads of the host."),
};
static const bl_flags_t flags = {.program = "ballast-bench ops",
                                 .usage = "--device host|cuda [options]",
                                 .about = "Times operations that are bound by memory, each beside a copy.",
                                 .table = {rows, sizeof rows / sizeof rows[0], "command line"}};

typedef struct bench {
  const settings_t *settings;
  uint64_t hidden, seq, batch, tokens, vocab, stride,
      layer; // stride: floats between rows of logits; layer: floats of a weight [hidden, 4 hidden]
  bl_compute_dtype_t dtype;
  bl_device_t *device;
  const bl_ops_t *ops;
  bl_compute_t *compute;
  bl_device_stream_t *stream;
  bl_stopwatch_t watch;
  bl_arena_t arenas[ARENAS];
  size_t arena_count;
  bl_linear_op_t *linear; // for its packing
  bl_rope_op_t *rope;
  bl_ops_kernels_t parts; // ops NULL: no profiler available
  bl_error_t no_parts;    // the reason
  void *block[BLOCKS];
  float *vector[VECTORS], *stats, *logits;
  void *packed;
  int32_t *ids; // staging
  double *sums; // staging
} bench_t;

typedef struct operation {
  const char *name;
  void (*run)(bench_t *b);
  double bytes;
} operation_t;

// ---- operations

static bl_norm_shape_t norm_of(const bench_t *b, bool rms) {
  return (bl_norm_shape_t){.rows = b->tokens, .width = b->hidden, .rms = rms, .epsilon = 1e-5f, .dtype = b->dtype};
}

static void norm_forward(bench_t *b, bool rms) {
  const bl_norm_shape_t shape = norm_of(b, rms);
  b->ops->norm_forward(b->compute, &shape, b->block[0], b->vector[1], rms ? NULL : b->vector[2], b->block[1], b->stats);
}

static void norm_backward(bench_t *b, bool rms) {
  const bl_norm_shape_t shape = norm_of(b, rms);
  b->ops->norm_backward(b->compute, &shape, b->block[2], b->block[0], b->vector[1], b->stats, b->block[3], b->block[1],
                        b->vector[0]);
}

static void layer_norm_forward(bench_t *b) {
  norm_forward(b, false);
}
static void layer_norm_backward(bench_t *b) {
  norm_backward(b, false);
}
static void rms_norm_forward(bench_t *b) {
  norm_forward(b, true);
}
static void rms_norm_backward(bench_t *b) {
  norm_backward(b, true);
}

static bl_head_norm_shape_t head_norm_of(const bench_t *b) {
  const uint64_t heads = b->hidden / HEAD_DIM;
  return (bl_head_norm_shape_t){
      .rows = b->tokens, .heads = heads, .kv_heads = heads, .head_dim = HEAD_DIM, .epsilon = 1e-6f, .dtype = b->dtype};
}
static void head_norm_forward(bench_t *b) {
  const bl_head_norm_shape_t shape = head_norm_of(b);
  b->ops->head_norm_forward(b->compute, &shape, b->block[0], b->vector[1], b->vector[2], b->block[1]);
}
static void head_norm_backward(bench_t *b) {
  const bl_head_norm_shape_t shape = head_norm_of(b);
  b->ops->head_norm_backward(b->compute, &shape, b->block[2], b->block[0], b->vector[1], b->vector[2], b->block[3],
                             b->vector[0]);
}

static void gelu_forward(bench_t *b) {
  b->ops->gelu_forward(b->compute, b->tokens * 4 * b->hidden, b->dtype, b->block[0], b->block[1]);
}
static void gelu_backward(bench_t *b) {
  b->ops->gelu_backward(b->compute, b->tokens * 4 * b->hidden, b->dtype, b->block[1], b->block[0], b->block[2]);
}
static void swiglu_forward(bench_t *b) {
  b->ops->gated_forward(b->compute, BL_GATE_SILU, b->tokens, 2 * b->hidden, b->dtype, b->block[0], b->block[1]);
}
static void swiglu_backward(bench_t *b) {
  b->ops->gated_backward(b->compute, BL_GATE_SILU, b->tokens, 2 * b->hidden, b->dtype, b->block[1], b->block[0],
                         b->block[2]);
}
static void geglu_forward(bench_t *b) {
  b->ops->gated_forward(b->compute, BL_GATE_GELU, b->tokens, 2 * b->hidden, b->dtype, b->block[0], b->block[1]);
}
static void geglu_backward(bench_t *b) {
  b->ops->gated_backward(b->compute, BL_GATE_GELU, b->tokens, 2 * b->hidden, b->dtype, b->block[1], b->block[0],
                         b->block[2]);
}
static void rope(bench_t *b) {
  b->ops->rope_forward(b->rope, b->block[0]);
}
static void add(bench_t *b) {
  b->ops->add(b->compute, b->tokens * b->hidden, b->dtype, b->block[0], b->block[1], b->block[2]);
}
static void embedding_forward(bench_t *b) {
  b->ops->embedding_forward(b->compute, b->batch, b->seq, b->hidden, 1.0f, b->dtype, b->ids, b->vector[1], NULL,
                            b->block[1]);
}
static void embedding_backward(bench_t *b) {
  b->ops->embedding_backward(b->compute, b->batch, b->seq, b->hidden, 1.0f, b->dtype, b->ids, b->block[1], b->vector[0],
                             NULL);
}
static void softcap_logits(bench_t *b) {
  b->ops->softcap_logits(b->compute, HEAD_ROWS, b->vocab, b->stride, 50.0f, b->logits);
}
static void cross_entropy(bench_t *b) {
  b->ops->cross_entropy(b->compute, HEAD_ROWS, b->vocab, b->stride, b->dtype, b->ids, 1e-3f, 0.0f, b->logits, b->sums);
}
static void sum_of_parts(bench_t *b) { // four tensors that lie one after the other in a block
  const size_t bytes = b->tokens * b->hidden * (b->dtype == BL_COMPUTE_BF16 ? 2 : 4);
  const char *first = b->block[0];
  const void *const parts[] = {first, first + bytes, first + 2 * bytes, first + 3 * bytes};
  b->ops->sum_parts(b->compute, b->tokens, b->hidden, b->dtype, 4, parts, b->vector[1], b->block[1], b->block[2]);
}
static void softmax_statistics(bench_t *b) {
  b->ops->softmax_statistics(b->compute, HEAD_ROWS, b->vocab, b->stride, 0, b->ids, b->logits, b->stats);
}
static void cross_entropy_of_a_part(bench_t *b) {
  b->ops->cross_entropy_part(b->compute, HEAD_ROWS, b->vocab, b->stride, 0, b->dtype, b->ids, 1e-3f, 0.0f, 1, b->stats,
                             b->logits, NULL);
}
static void update(bench_t *b, void *packed) {
  const bl_adamw_tensor_t tensor = {.options = {1e-6f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 0.5f, 1.0f},
                                    .count = b->layer,
                                    .dw = b->vector[0],
                                    .w = b->vector[1],
                                    .m = b->vector[2],
                                    .v = b->vector[3],
                                    .packed = packed};
  b->ops->adamw(b->compute, 1, &tensor);
}
static void adamw(bench_t *b) {
  update(b, NULL);
}
static void adamw_packed(bench_t *b) {
  update(b, b->packed);
}
static void pack(bench_t *b) {
  b->ops->linear_pack(b->linear, b->vector[1], NULL, b->packed);
}
static void sum_squares(bench_t *b) {
  b->ops->sum_squares(b->compute, 1, &(bl_squares_t){b->layer, b->vector[0], b->sums});
}
static void accumulate(bench_t *b) {
  b->ops->accumulate(b->compute, b->layer, b->vector[1], b->vector[0]);
}
static void fill(bench_t *b) {
  b->ops->fill(b->compute, b->layer, 0.5f, b->vector[0]);
}
static void checksum(bench_t *b) {
  const uint64_t element = b->dtype == BL_COMPUTE_BF16 ? 2 : 4;
  b->ops->checksum(b->compute, b->tokens * 4 * b->hidden * element / 64 * 64, b->block[0], (uint64_t *)(void *)b->sums);
}

// ---- memory

static bl_status_t take(bench_t *b, bl_arena_kind_t kind, uint64_t bytes, void *place, bl_error_t *err) {
  bl_arena_t *arena = &b->arenas[b->arena_count];
  bl_status_t status = bl_arena_create(b->device, NULL, BL_MEMORY_DATA, kind, bytes, arena, err);
  if (status == BL_OK) {
    b->arena_count++;
    memcpy(place, &arena->base, sizeof arena->base);
  }
  return status;
}

static bl_status_t make_memory(bench_t *b, bl_error_t *err) {
  const bool bf16 = b->dtype == BL_COMPUTE_BF16;
  const uint64_t wide = b->tokens * 4 * b->hidden * (bf16 ? 2 : 4), table = b->vocab * b->hidden;
  const uint64_t floats = (b->layer > table ? b->layer : table) * sizeof(float);
  const uint64_t ids = b->tokens > HEAD_ROWS ? b->tokens : HEAD_ROWS;
  void *workspace = NULL;
  bl_status_t status = BL_OK;
  for (size_t i = 0; i < BLOCKS && status == BL_OK; i++) {
    status = take(b, BL_ARENA_PRIVATE, wide, &b->block[i], err);
    status = status == BL_OK ? bl_bench_spread(b->device, b->block[i], wide, bf16, err) : status;
  }
  for (size_t i = 0; i < VECTORS && status == BL_OK; i++) {
    status = take(b, BL_ARENA_PRIVATE, floats, &b->vector[i], err);
    status = status == BL_OK ? bl_bench_spread(b->device, b->vector[i], floats, false, err) : status;
  }
  const struct {
    bl_arena_kind_t kind;
    uint64_t bytes;
    void *place;
  } wanted[] = {{BL_ARENA_PRIVATE, (2 * b->tokens + 4ull * HEAD_ROWS) * sizeof(float), &b->stats},
                {BL_ARENA_PRIVATE, HEAD_ROWS * b->stride * sizeof(float), &b->logits},
                {BL_ARENA_PRIVATE, b->ops->linear_packed_bytes(b->linear) + b->layer * sizeof(uint16_t), &b->packed},
                {BL_ARENA_PRIVATE, b->ops->workspace_bytes(b->compute) + 64, &workspace},
                {BL_ARENA_STAGING, ids * sizeof(int32_t) + HEAD_ROWS * sizeof(double), &b->sums}};
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0] && status == BL_OK; i++) {
    status = take(b, wanted[i].kind, wanted[i].bytes, wanted[i].place, err);
  }
  if (status != BL_OK) {
    return status;
  }
  b->ids = (int32_t *)(void *)(b->sums + HEAD_ROWS);
  for (uint64_t i = 0; i < ids; i++) {
    b->ids[i] = (int32_t)bl_random_below(2, i, b->vocab);
  }
  b->ops->use_workspace(b->compute, workspace, b->ops->workspace_bytes(b->compute));
  return bl_bench_spread(b->device, b->logits, HEAD_ROWS * b->stride * sizeof(float), false, err);
}

static bl_status_t prepare(bench_t *b, bl_error_t *err) {
  const settings_t *s = b->settings;
  const bl_device_kind_t kind = s->device == 1 ? BL_DEVICE_CUDA : BL_DEVICE_HOST;
  b->hidden = (uint64_t)s->hidden / HEAD_DIM * HEAD_DIM;
  b->seq = (uint64_t)s->seq;
  b->batch = (uint64_t)s->micro_batch;
  b->tokens = b->seq * b->batch;
  b->vocab = (uint64_t)s->vocab;
  b->layer = 4 * b->hidden * b->hidden;
  b->dtype = s->dtype == 1 ? BL_COMPUTE_BF16 : BL_COMPUTE_FP32;
  bl_status_t status = bl_ops_select(kind, &b->ops, err);
  status = status == BL_OK ? bl_device_open(kind, (uint32_t)s->gpu, &b->device, err) : status;
  if (status != BL_OK) {
    return status;
  }
  b->stride = bl_logits_stride(b->ops->logits, b->vocab);
  status =
      b->ops->create(&(bl_compute_options_t){.threads = (uint32_t)s->threads, .device = b->device}, &b->compute, err);
  if (status != BL_OK) {
    return status;
  }
  b->ops->attach(b->compute);
  b->stream = b->ops->stream == NULL ? NULL : b->ops->stream(b->compute);
  status = bl_stopwatch_open(&b->watch, b->device, b->stream, err);
  const bl_linear_shape_t weight = {
      .rows = 64, .in = b->hidden, .out = 4 * b->hidden, .uses = BL_LINEAR_FORWARD, .dtype = b->dtype};
  status = status == BL_OK ? b->ops->linear_plan(b->compute, &weight, &b->linear, err) : status;
  const uint64_t heads = b->hidden / HEAD_DIM;
  const bl_rope_shape_t rope = {.batch = b->batch,
                                .seq = b->seq,
                                .heads = heads,
                                .kv_heads = heads,
                                .head_dim = HEAD_DIM,
                                .rope.theta = 10000,
                                .dtype = b->dtype};
  status = status == BL_OK ? b->ops->rope_plan(b->compute, &rope, &b->rope, err) : status;
  if (status == BL_OK && bl_device_profiler_of(b->device, &b->no_parts) != NULL) {
    b->parts = (bl_ops_kernels_t){
        .ops = b->ops, .compute = b->compute, .dtype = b->dtype, .batch = b->batch, .seq = b->seq, .hidden = b->hidden};
    status = bl_ops_kernels_plan(&b->parts, b->device, err);
  }
  status = status == BL_OK ? make_memory(b, err) : status;
  memcpy(b->parts.block, b->block, sizeof b->parts.block);
  b->parts.vector[0] = b->vector[0];
  b->parts.vector[1] = b->vector[1];
  return status;
}

static void release(bench_t *b) {
  bl_stopwatch_close(&b->watch);
  if (b->compute != NULL) {
    b->ops->destroy(b->compute);
  }
  bl_arena_destroy(&b->parts.saved);
  while (b->arena_count > 0) {
    bl_arena_destroy(&b->arenas[--b->arena_count]);
  }
  bl_device_close(b->device);
}

// ---- measuring

// Measures the seconds of one of `repeats` runs; NULL: a copy of a block.
static bl_status_t time_once(bench_t *b, const operation_t *operation, unsigned repeats, double *seconds,
                             bl_error_t *err) {
  bl_status_t status = bl_stopwatch_start(&b->watch, err);
  for (unsigned i = 0; i < repeats && status == BL_OK; i++) {
    if (operation != NULL) {
      operation->run(b);
    } else {
      status = bl_device_copy(b->device, b->stream, b->block[3], b->block[2], b->arenas[0].bytes, err);
    }
  }
  status = status == BL_OK ? bl_stopwatch_stop(&b->watch, seconds, err) : status;
  if (status != BL_OK) {
    return status;
  }
  *seconds /= repeats;
  return b->ops->status(b->compute, err);
}

// Returns how many runs fill a sample; the first run warms up.
static bl_status_t repeats_of(bench_t *b, const operation_t *operation, unsigned *repeats, bl_error_t *err) {
  double seconds = 0;
  bl_status_t status = time_once(b, operation, 1, &seconds, err);
  status = status == BL_OK ? time_once(b, operation, 1, &seconds, err) : status;
  *repeats = seconds >= SAMPLE_S ? 1 : seconds <= SAMPLE_S / REPEATS_MAX ? REPEATS_MAX : (unsigned)(SAMPLE_S / seconds);
  return status;
}

static void print(const char *name, double seconds, double bytes, double share) {
  printf("%-24s %10.1f us %8.1f GB/s %6.1f %% of a copy\n", name, seconds * 1e6, bytes / seconds * 1e-9, 100 * share);
  fflush(stdout);
}

static bl_status_t measure(bench_t *b, const operation_t *operation, double *share, bl_error_t *err) {
  double seconds[SAMPLES_MAX] = {0}, shares[SAMPLES_MAX];
  const double copied = 2.0 * (double)b->arenas[0].bytes;
  const size_t count = (size_t)b->settings->samples;
  unsigned repeats = 1, copies = 1;
  bl_status_t status = repeats_of(b, operation, &repeats, err);
  status = status == BL_OK ? repeats_of(b, NULL, &copies, err) : status;
  for (size_t i = 0; i < count && status == BL_OK; i++) {
    double before = 0, after = 0;
    status = time_once(b, NULL, copies, &before, err);
    status = status == BL_OK ? time_once(b, operation, repeats, &seconds[i], err) : status;
    status = status == BL_OK ? time_once(b, NULL, copies, &after, err) : status;
    shares[i] = operation->bytes / seconds[i] / (copied / (before < after ? before : after));
  }
  if (status == BL_OK) {
    *share = bl_median(shares, count);
    print(operation->name, bl_median(seconds, count), operation->bytes, *share);
  }
  return status;
}

// Measures a part of an operation with the profiler. *share is unchanged if nothing can measure it.
static bl_status_t measure_part(bench_t *b, const bl_ops_kernel_t *part, double *share, bl_error_t *err) {
  double seconds[SAMPLES_MAX] = {0}, shares[SAMPLES_MAX], unused;
  const bl_kernel_case_t one = {.kernel = part->kernel, .run = part->run, .context = &b->parts};
  const size_t count = (size_t)b->settings->samples;
  unsigned copies = 1;
  bl_status_t status = b->parts.ops == NULL ? bl_error_set(err, BL_UNIMPLEMENTED, "%s", b->no_parts.text)
                                            : bl_kernel_time(b->device, &b->watch, &one, &unused, err); // warms up
  status = status == BL_OK ? repeats_of(b, NULL, &copies, err) : status;
  for (size_t i = 0; i < count && status == BL_OK; i++) {
    double copy = 0;
    status = time_once(b, NULL, copies, &copy, err);
    status = status == BL_OK ? bl_kernel_time(b->device, &b->watch, &one, &seconds[i], err) : status;
    shares[i] = part->bytes / seconds[i] / (2.0 * (double)b->arenas[0].bytes / copy);
  }
  if (status == BL_OK) {
    *share = bl_median(shares, count);
    print(part->name, bl_median(seconds, count), part->bytes, *share);
  } else if (status == BL_UNIMPLEMENTED || status == BL_UNAVAILABLE) {
    printf("%s: none: %s\n", part->name, err->text);
    bl_error_clear(err);
    status = BL_OK;
  }
  return status == BL_OK ? b->ops->status(b->compute, err) : status;
}

// True if this back end has the operation.
static bool is_there(const bench_t *b, const operation_t *operation) {
  return (operation->run != adamw_packed || b->ops->adamw_packs) &&
         (operation->run != checksum || b->ops->checksum != NULL) &&
         (operation->run != sum_of_parts || b->ops->sum_parts != NULL) &&
         (operation->run != softmax_statistics || b->ops->softmax_statistics != NULL) &&
         (operation->run != cross_entropy_of_a_part || b->ops->cross_entropy_part != NULL) &&
         (operation->run != pack || b->ops->linear_packed_bytes(b->linear) > 0);
}

// The operation with the lowest rate compared with a copy.
typedef struct least {
  const char *name;
  double share;
} least_t;

static void note(least_t *least, const char *name, double share) {
  if (share < least->share) {
    *least = (least_t){name, share};
  }
}

static bl_status_t measure_operations(bench_t *b, least_t *least, bl_error_t *err) {
  const double element = b->dtype == BL_COMPUTE_BF16 ? 2 : 4, layer = (double)b->layer;
  const double elements = (double)b->tokens * (double)b->hidden, thin = element * elements, wide = 4 * thin;
  const operation_t operations[] = {
      {"layer norm forward", layer_norm_forward, 2 * thin},
      {"layer norm backward", layer_norm_backward, 4 * thin},
      {"rms norm forward", rms_norm_forward, 2 * thin},
      {"rms norm backward", rms_norm_backward, 4 * thin},
      {"head norm forward", head_norm_forward, 6 * thin},
      {"head norm backward", head_norm_backward, 9 * thin},
      {"gelu forward", gelu_forward, 2 * wide},
      {"gelu backward", gelu_backward, 3 * wide},
      {"swiglu forward", swiglu_forward, 1.5 * wide},
      {"swiglu backward", swiglu_backward, 2.5 * wide},
      {"geglu forward", geglu_forward, 1.5 * wide},
      {"geglu backward", geglu_backward, 2.5 * wide},
      {"rope", rope, 4 * thin},
      {"add", add, 3 * thin},
      {"embedding forward", embedding_forward, 4 * elements + thin},
      {"embedding backward", embedding_backward, 8 * elements + thin},
      {"softcap of logits", softcap_logits, 8.0 * HEAD_ROWS * (double)b->vocab},
      {"cross entropy", cross_entropy, (4 + element) * HEAD_ROWS * (double)b->vocab},
      {"sum of four parts", sum_of_parts, 6 * thin},
      {"softmax statistics", softmax_statistics, 4.0 * HEAD_ROWS * (double)b->vocab},
      {"cross entropy of a part", cross_entropy_of_a_part, (4 + element) * HEAD_ROWS * (double)b->vocab},
      {"adamw", adamw, 28 * layer},
      {"adamw, packed", adamw_packed, 30 * layer},
      {"pack", pack, 6 * layer},
      {"sum of squares", sum_squares, 4 * layer},
      {"accumulate", accumulate, 12 * layer},
      {"fill", fill, 4 * layer},
      {"checksum", checksum, wide},
  };
  for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
    if (is_there(b, &operations[i])) {
      double share;
      bl_status_t status = measure(b, &operations[i], &share, err);
      if (status != BL_OK) {
        return status;
      }
      note(least, operations[i].name, share);
    }
  }
  return BL_OK;
}

static bl_status_t measure_parts(bench_t *b, least_t *least, bl_error_t *err) {
  bl_ops_kernel_t parts[BL_OPS_KERNELS];
  bl_ops_kernels_list(&b->parts, parts);
  for (size_t i = 0; i < BL_OPS_KERNELS; i++) {
    double share = INFINITY;
    bl_status_t status = measure_part(b, &parts[i], &share, err);
    if (status != BL_OK) {
      return status;
    }
    note(least, parts[i].name, share);
  }
  return BL_OK;
}

static bl_status_t run(const void *values, bl_error_t *err) {
  bench_t bench = {.settings = values};
  least_t least = {"", INFINITY};
  bl_status_t status = prepare(&bench, err);
  if (status != BL_OK) {
    goto release_bench;
  }
  printf("hidden %llu, %llu tokens, vocabulary %llu, %s, %s; %s\n", (unsigned long long)bench.hidden,
         (unsigned long long)bench.tokens, (unsigned long long)bench.vocab, dtypes[bench.dtype == BL_COMPUTE_BF16],
         bl_device_describe(bench.device), bench.ops->describe(bench.compute));
  status = measure_operations(&bench, &least, err);
  status = status == BL_OK ? measure_parts(&bench, &least, err) : status;
  if (status == BL_OK) {
    printf("least: %s, %.1f %% of a copy\n", least.name, 100 * least.share);
  }
release_bench:
  release(&bench);
  return status;
}

int bl_bench_ops_device(int argc, char **argv) {
  settings_t settings;
  return bl_bench_program(&flags, &settings, run, argc, argv);
}
