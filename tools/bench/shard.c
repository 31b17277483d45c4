// SPDX-License-Identifier: Apache-2.0
// One tensor-parallel part of a few layers of a large model, alone on one device: how long F, I, W and R take for each
// micro-batch, how much of the device that uses, and what it says about the whole pipeline. The part is made by shape:
// heads and ffn are divided, nothing is exchanged.
//
// MFU counts products and the full square of attention (Chowdhery et al., appendix B), HFU also what is made again. Both
// are relative to --peak, or else to the rate of the stage's own products in the same run.
#include "bench.h"

#include "base/bytes.h"
#include "compute/model/chunk.h"
#include "compute/ops/select.h"
#include "config/flags.h"
#include "measure.h"
#include "model/flops.h"
#include "plan/estimator.h"
#include "plan/profile.h"
#include "sys/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES_MAX   99
#define BATCHES_MAX   8
#define ARENAS        24
#define MICRO_BATCHES 16 // of the loss scale
#define STAGES        8  // of the pipeline that gains are predicted for, and the sequences of its step
#define GLOBAL_BATCH  128

typedef struct {
  char *model, *batches, *write;
  int device, attention, recompute, dtype;
  int64_t gpu, layers, shard, seq, samples, hidden, threads;
  double peak;
} settings_t;

// The models of arXiv 2401.02088 and of the BPipe paper.
static const struct {
  const char *name;
  bl_model_t model;
} models[] = {
    {"gpt3-96b", {.family = BL_FAMILY_GPT2, .layers = 80, .hidden = 9984, .heads = 104, .kv_heads = 104, .ffn = 39936}},
    {"gpt3-175b", {.family = BL_FAMILY_GPT2, .layers = 96, .hidden = 12288, .heads = 96, .kv_heads = 96, .ffn = 49152}},
    {"llama-65b", {.family = BL_FAMILY_LLAMA, .layers = 80, .hidden = 8192, .heads = 64, .kv_heads = 64, .ffn = 22016}},
};
#define MODELS (sizeof models / sizeof models[0])

static const char *const devices[] = {"host", "cuda", NULL};
static const char *const attentions[] = {"naive", "flash", NULL};
static const char *const recomputes[] = {"none", "attention", "full", NULL};
static const char *const dtypes[] = {"fp32", "bf16", NULL};

#define ROW(member) .offset = offsetof(settings_t, member)
#define COUNT(name_, member, preset_, least, most, text)                                                               \
  {                                                                                                                    \
    .name = name_, .type = BL_OPTION_INT, ROW(member), .preset = preset_, .minimum = least, .maximum = most,           \
    .help = text                                                                                                       \
  }
static const bl_option_t rows[] = {
    {.name = "model",
     .type = BL_OPTION_TEXT,
     ROW(model),
     .argument = "NAME",
     .help = "gpt3-96b, gpt3-175b or llama-65b."},
    {.name = "device", .type = BL_OPTION_ENUM, ROW(device), .choices = devices, .preset = "cuda", .help = "Where."},
    COUNT("gpu", gpu, "0", 0, 1023, "Which of the GPUs that this process sees."),
    COUNT("layers", layers, "2", 1, 1024, "Layers of the stage."),
    COUNT("shard", shard, "4", 1, 1024, "Tensor-parallel parts of each layer; one of them is measured."),
    COUNT("seq", seq, "2048", 1, 1 << 20, "Tokens of a sequence."),
    COUNT("hidden", hidden, "0", 0, 1 << 20,
          "Shrinks the model to this width, its heads and ffn in proportion (for trying it out); 0: as it is."),
    {.name = "micro-batches",
     .type = BL_OPTION_TEXT,
     ROW(batches),
     .argument = "B,B,...",
     .preset = "1,2,4,8",
     .help = "Sequences of a micro-batch, one measurement each."},
    {.name = "attention",
     .type = BL_OPTION_ENUM,
     ROW(attention),
     .choices = attentions,
     .preset = "flash",
     .help = "Attention kind."},
    {.name = "recompute",
     .type = BL_OPTION_ENUM,
     ROW(recompute),
     .choices = recomputes,
     .preset = "none",
     .help = "What is made again in the backward."},
    {.name = "dtype", .type = BL_OPTION_ENUM, ROW(dtype), .choices = dtypes, .preset = "bf16", .help = "Type."},
    COUNT("samples", samples, "11", 1, SAMPLES_MAX, "Runs to take medians of."),
    COUNT("threads", threads, "1", 1, 1024, "Compute threads of the host."),
    {.name = "peak",
     .type = BL_OPTION_REAL,
     ROW(peak),
     .preset = "0",
     .minimum = 0,
     .maximum = 1e9,
     .unit = "TFLOP/s",
     .help = "What utilisation is relative to; 0: the rate of the stage's own products in this run."},
    {.name = "write",
     .type = BL_OPTION_PATH,
     ROW(write),
     .argument = "PREFIX",
     .help =
         "Writes PREFIX-bN.json, a profile that ballastctl plan and simulate read (of this part as a model), for each "
         "micro-batch N, and PREFIX.jsonl, a line of results for each."},
};
static const bl_flags_t flags = {.program = "ballast-bench stage --model NAME",
                                 .usage = "--model NAME [options]",
                                 .about = "Times a tensor-parallel part of a stage of a large model, alone.",
                                 .table = {rows, sizeof rows / sizeof rows[0], "command line"}};

typedef struct {
  const settings_t *settings;
  bl_model_t model; // of the part, as many layers as are measured
  bl_device_t *device;
  const bl_ops_t *ops;
  // Of one micro-batch.
  bl_compute_t *compute;
  bl_device_stream_t *stream;
  bl_device_event_t *from, *to;
  bl_chunk_t *chunk;
  bl_chunk_sizes_t sizes;
  bl_arena_t arenas[ARENAS];
  size_t arena_count;
  void *slot, *in, *out, *kept; // kept: what in and out are filled from
  uint32_t micro_batch;
  uint64_t start_ns;
} bench_t;

typedef struct {
  uint32_t micro_batch;
  double forward, input, weight, recompute, products, copy; // seconds
  double rate;                                              // of the products, FLOP/s
  double mfu, hfu;
  uint64_t slot_bytes, evict_bytes;
} result_t;

static bl_status_t find_model(const settings_t *settings, bl_model_t *model, bl_error_t *err) {
  for (size_t i = 0; i < MODELS; i++) {
    if (settings->model == NULL || strcmp(models[i].name, settings->model) != 0) {
      continue;
    }
    *model = models[i].model;
    model->head_dim = model->hidden / model->heads;
    if (settings->hidden > 0) {
      const uint32_t heads = (uint32_t)settings->hidden / model->head_dim;
      model->ffn = (uint32_t)((uint64_t)model->ffn * (uint64_t)settings->hidden / model->hidden);
      model->hidden = heads * model->head_dim;
      model->heads = model->kv_heads = heads;
    }
    const uint32_t shard = (uint32_t)settings->shard;
    if (model->heads % shard != 0 || model->ffn % shard != 0 || model->heads == 0) {
      return bl_error_set(err, BL_INVALID, "--shard %u: %u heads and an ffn of %u do not divide by it", shard,
                          model->heads, model->ffn);
    }
    model->heads /= shard;
    model->kv_heads /= shard;
    model->ffn /= shard;
    model->shard = shard;
    model->layers = (uint32_t)settings->layers;
    model->vocab = 64; // not part of what is measured
    model->seq = (uint32_t)settings->seq;
    model->norm_epsilon = BL_NORM_EPSILON_DEFAULT;
    model->rope_theta = BL_ROPE_THETA_DEFAULT;
    return BL_OK;
  }
  return bl_error_set(err, BL_INVALID, "--model %s: one of gpt3-96b, gpt3-175b, llama-65b",
                      settings->model == NULL ? "" : settings->model);
}

// ---- one micro-batch

static bl_status_t take(bench_t *bench, uint64_t bytes, void *place, bl_error_t *err) {
  bl_arena_t *arena = &bench->arenas[bench->arena_count];
  bl_status_t status = bl_arena_create(bench->device, NULL, BL_MEMORY_DATA, BL_ARENA_PRIVATE, bytes, arena, err);
  if (status == BL_OK) {
    bench->arena_count++;
    memcpy(place, &arena->base, sizeof arena->base);
  }
  return status;
}

static bl_status_t make_chunk(bench_t *bench, bl_error_t *err) {
  const settings_t *settings = bench->settings;
  bl_chunk_options_t options = {.ops = bench->ops,
                                .compute = bench->compute,
                                .device = bench->device,
                                .model = &bench->model,
                                .span = {0, bench->model.layers, false, false},
                                .layout = {.micro_batch = bench->micro_batch,
                                           .attention = (bl_attention_t)settings->attention,
                                           .backward = BL_BACKWARD_SPLIT,
                                           .recompute = (bl_recompute_t)settings->recompute,
                                           .dtype = (bl_dtype_t)settings->dtype},
                                .micro_batches = MICRO_BATCHES,
                                .prepack = true};
  return bl_chunk_create(&options, &bench->chunk, err);
}

static bl_status_t make_memory(bench_t *bench, bl_error_t *err) {
  bl_chunk_arenas_t parts = {0};
  void *workspace = NULL;
  const uint64_t ops_bytes = bench->ops->workspace_bytes(bench->compute);
  bench->sizes = bl_chunk_sizes(bench->chunk);
  const struct {
    uint64_t bytes;
    void *place;
  } wanted[] = {{bench->sizes.weight_bytes, &parts.weights},
                {bench->sizes.gradient_bytes, &parts.gradients},
                {bench->sizes.packed_bytes, &parts.packed},
                {bench->sizes.workspace_bytes, &parts.workspace},
                {ops_bytes, &workspace},
                {bench->sizes.slot_bytes, &bench->slot},
                {bench->sizes.edge_bytes, &bench->in},
                {bench->sizes.edge_bytes, &bench->out},
                {bench->sizes.edge_bytes, &bench->kept}};
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
    bl_status_t status = take(bench, wanted[i].bytes, wanted[i].place, err);
    if (status != BL_OK) {
      return status;
    }
  }
  bench->ops->use_workspace(bench->compute, workspace, ops_bytes);
  bl_chunk_use_arenas(bench->chunk, &parts);
  bl_status_t status = bl_chunk_initialize(bench->chunk, 1, err);
  if (status == BL_OK) { // never zeros: they hide mistakes and can be faster. The weights are as good as any numbers
    uint64_t bytes =
        bench->sizes.edge_bytes < bench->sizes.weight_bytes ? bench->sizes.edge_bytes : bench->sizes.weight_bytes;
    const void *numbers = parts.packed != NULL && bench->sizes.packed_bytes >= bytes ? parts.packed : parts.weights;
    status = bl_device_copy(bench->device, bench->stream, bench->kept, numbers, bytes, err);
  }
  return status;
}

static bl_status_t open_batch(bench_t *bench, uint32_t micro_batch, bl_error_t *err) {
  bl_compute_options_t options = {.threads = (uint32_t)bench->settings->threads, .device = bench->device};
  bench->micro_batch = micro_batch;
  bl_status_t status = bench->ops->create(&options, &bench->compute, err);
  if (status != BL_OK) {
    return status;
  }
  bench->ops->attach(bench->compute);
  bench->stream = bench->ops->stream == NULL ? NULL : bench->ops->stream(bench->compute);
  status = bl_device_event_create(bench->device, true, &bench->from, err);
  if (status == BL_OK) {
    status = bl_device_event_create(bench->device, true, &bench->to, err);
  }
  if (status == BL_OK) {
    status = make_chunk(bench, err);
  }
  return status == BL_OK ? make_memory(bench, err) : status;
}

static void close_batch(bench_t *bench) {
  bl_chunk_destroy(bench->chunk);
  bl_device_event_destroy(bench->device, bench->from);
  bl_device_event_destroy(bench->device, bench->to);
  bench->ops->destroy(bench->compute);
  while (bench->arena_count > 0) {
    bl_arena_destroy(&bench->arenas[--bench->arena_count]);
  }
  bench->chunk = NULL;
  bench->compute = NULL;
  bench->from = bench->to = NULL;
}

// ---- timing: by events of the device, or by the clock where everything is over on return

static bl_status_t start(bench_t *bench, bl_error_t *err) {
  bench->start_ns = bl_clock_now_ns();
  return bl_device_event_record(bench->device, bench->from, bench->stream, err);
}

static bl_status_t stop(bench_t *bench, double *seconds, bl_error_t *err) {
  uint64_t ns = bl_clock_now_ns() - bench->start_ns;
  bl_status_t status = bl_device_event_record(bench->device, bench->to, bench->stream, err);
  if (status == BL_OK) {
    status = bl_device_event_wait(bench->device, bench->to, UINT64_MAX, err);
  }
  if (status == BL_OK && bench->stream != NULL) {
    status = bl_device_event_elapsed(bench->device, bench->from, bench->to, &ns, err);
  }
  *seconds = (double)ns * 1e-9;
  return status == BL_OK ? bench->ops->status(bench->compute, err) : status;
}

enum { FORWARD, INPUT, WEIGHT, RECOMPUTE, COPY, PARTS };

static void do_part(bench_t *bench, int part) {
  const bool full = bench->settings->recompute == BL_RECOMPUTE_FULL;
  switch (part) {
  case FORWARD:
    bl_chunk_forward(bench->chunk, NULL, bench->in, full ? NULL : bench->slot, bench->out);
    break;
  case RECOMPUTE:
    bl_chunk_recompute(bench->chunk, bench->in, bench->slot);
    break;
  case INPUT:
    bl_chunk_backward_input(bench->chunk, NULL, bench->in, bench->slot, bench->out, false, NULL);
    break;
  case WEIGHT:
    bl_chunk_backward_weight(bench->chunk, NULL, bench->in, bench->slot, bench->out);
    break;
  }
}

static bl_status_t fill(bench_t *bench, void *edge, bl_error_t *err) {
  return bl_device_copy(bench->device, bench->stream, edge, bench->kept, bench->sizes.edge_bytes, err);
}

static bl_status_t sample(bench_t *bench, double seconds[PARTS], bl_error_t *err) {
  static const int order[] = {FORWARD, RECOMPUTE, INPUT, WEIGHT};
  bl_status_t status = fill(bench, bench->in, err);
  for (size_t i = 0; i < sizeof order / sizeof order[0] && status == BL_OK; i++) {
    if (order[i] == INPUT) {
      status = fill(bench, bench->out, err); // the gradient that would have come
    }
    status = status == BL_OK ? start(bench, err) : status;
    if (status == BL_OK) {
      do_part(bench, order[i]);
      status = stop(bench, &seconds[order[i]], err);
    }
  }
  status = status == BL_OK ? start(bench, err) : status; // a bare copy of an edge buffer: what memory gives
  status = status == BL_OK ? fill(bench, bench->in, err) : status;
  return status == BL_OK ? stop(bench, &seconds[COPY], err) : status;
}

// ---- the products alone

typedef struct {
  float *w, *dw;
  void *x, *dx, *y, *packed, *workspace;
} operands_t;

// Numbers of the stage's weights, over and over: what is all alike can be faster.
static bl_status_t spread(bench_t *bench, void *to, uint64_t bytes, const void *from, uint64_t from_bytes,
                          bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (uint64_t at = 0; at < bytes && status == BL_OK; at += from_bytes) {
    status = bl_device_copy(bench->device, bench->stream, (char *)to + at, from,
                            bytes - at < from_bytes ? bytes - at : from_bytes, err);
  }
  return status;
}

static bl_status_t prepare_product(bench_t *bench, const bl_linear_shape_t *shape, bl_linear_op_t *op, operands_t *o,
                                   bl_error_t *err) {
  const uint64_t element = shape->dtype == BL_COMPUTE_BF16 ? 2 : 4, weights = shape->in * shape->out * sizeof(float);
  const uint64_t ops_bytes = bench->ops->workspace_bytes(bench->compute), x_bytes = shape->rows * shape->in * element;
  const struct {
    uint64_t bytes;
    void *place;
  } wanted[] = {{weights, &o->w},
                {weights, &o->dw},
                {x_bytes, &o->x},
                {x_bytes, &o->dx},
                {shape->rows * shape->out * element, &o->y},
                {bench->ops->linear_packed_bytes(op), &o->packed},
                {ops_bytes, &o->workspace}};
  bl_status_t status = BL_OK;
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0] && status == BL_OK; i++) {
    status = take(bench, wanted[i].bytes, wanted[i].place, err);
  }
  if (status == BL_OK) {
    bench->ops->use_workspace(bench->compute, o->workspace, ops_bytes);
    status = spread(bench, o->w, weights, bl_chunk_parameter(bench->chunk, 0).weight, bench->sizes.weight_bytes, err);
  }
  if (status == BL_OK) {
    status = spread(bench, o->x, x_bytes, bench->kept, bench->sizes.edge_bytes, err);
  }
  if (status == BL_OK && o->packed != NULL) {
    bench->ops->linear_pack(op, o->w, o->packed);
  }
  return status;
}

// The least seconds of forward, input and weight together.
static bl_status_t time_product(bench_t *bench, const bl_linear_shape_t *shape, double *seconds, bl_error_t *err) {
  bl_linear_op_t *op;
  operands_t o = {0};
  double best[3] = {0};
  const size_t before = bench->arena_count;
  bl_status_t status = bench->ops->linear_plan(bench->compute, shape, &op, err);
  status = status == BL_OK ? prepare_product(bench, shape, op, &o, err) : status;
  for (int64_t run = 0; run <= bench->settings->samples && status == BL_OK; run++) {
    for (int part = 0; part < 3 && status == BL_OK; part++) {
      double took = 0;
      status = start(bench, err);
      if (status == BL_OK && part == 0) {
        bench->ops->linear_forward(op, o.x, o.w, o.packed, NULL, NULL, o.y);
      } else if (status == BL_OK && part == 1) {
        bench->ops->linear_backward_input(op, o.y, o.w, o.packed, false, o.dx);
      } else if (status == BL_OK) {
        bench->ops->linear_backward_weight(op, o.x, o.y, false, o.dw, NULL);
      }
      status = status == BL_OK ? stop(bench, &took, err) : status;
      best[part] = run <= 1 || took < best[part] ? took : best[part]; // the first one warms up
    }
  }
  while (bench->arena_count > before) {
    bl_arena_destroy(&bench->arenas[--bench->arena_count]);
  }
  *seconds = best[0] + best[1] + best[2];
  return status;
}

// Seconds of all products of the stage, forward and both backwards, one after the other and nothing else.
static bl_status_t time_products(bench_t *bench, result_t *result, bl_error_t *err) {
  const bl_model_t *m = &bench->model;
  const uint32_t query = m->heads * m->head_dim, qkv = query + 2 * m->kv_heads * m->head_dim;
  const uint32_t pre = m->family == BL_FAMILY_LLAMA ? 2 * m->ffn : m->ffn;
  const uint32_t shapes[][2] = {{m->hidden, qkv}, {query, m->hidden}, {m->hidden, pre}, {m->ffn, m->hidden}};
  double seconds = 0, flops = 0;
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    const bl_linear_shape_t shape = {
        .rows = (uint64_t)bench->micro_batch * m->seq,
        .in = shapes[i][0],
        .out = shapes[i][1],
        .order = m->family == BL_FAMILY_LLAMA ? BL_WEIGHT_OUT_IN : BL_WEIGHT_IN_OUT,
        .uses = BL_LINEAR_FORWARD | BL_LINEAR_INPUT | BL_LINEAR_WEIGHT,
        .prepack = true,
        .dtype = bench->settings->dtype == BL_DTYPE_BF16 ? BL_COMPUTE_BF16 : BL_COMPUTE_FP32,
    };
    double one = 0;
    bl_status_t status = time_product(bench, &shape, &one, err);
    if (status != BL_OK) {
      return status;
    }
    seconds += one;
    flops += 3 * 2.0 * (double)shape.rows * (double)shape.in * (double)shape.out;
  }
  result->products = seconds * m->layers;
  result->rate = flops / seconds;
  return BL_OK;
}

// ---- results

static void judge(const bench_t *bench, result_t *result) {
  const bl_chunk_span_t span = {0, bench->model.layers, false, false};
  bl_flops_t m = bl_flops_matmul(&bench->model, span, bench->micro_batch);
  bl_flops_t a = bl_flops_attention(&bench->model, span, bench->micro_batch, BL_ATTENTION_NAIVE, false);
  const double useful = bl_flops_total(m) + bl_flops_total(a);
  const double again = bench->settings->recompute == BL_RECOMPUTE_FULL        ? m.forward + a.forward
                       : bench->settings->recompute == BL_RECOMPUTE_ATTENTION ? a.forward
                                                                              : 0;
  const double peak = bench->settings->peak > 0 ? bench->settings->peak * 1e12 : result->rate;
  const double seconds = result->forward + result->input + result->weight + result->recompute;
  result->mfu = useful / seconds / peak;
  result->hfu = (useful + again) / seconds / peak;
}

static bl_status_t measure(bench_t *bench, uint32_t micro_batch, result_t *result, bl_error_t *err) {
  static double taken[PARTS][SAMPLES_MAX];
  const size_t count = (size_t)bench->settings->samples;
  double seconds[PARTS];
  bl_status_t status = open_batch(bench, micro_batch, err);
  status = status == BL_OK ? sample(bench, seconds, err) : status; // warm
  for (size_t i = 0; i < count && status == BL_OK; i++) {
    status = sample(bench, seconds, err);
    for (int part = 0; part < PARTS; part++) {
      taken[part][i] = seconds[part];
    }
  }
  if (status == BL_OK) {
    *result = (result_t){.micro_batch = micro_batch,
                         .forward = bl_median(taken[FORWARD], count),
                         .input = bl_median(taken[INPUT], count),
                         .weight = bl_median(taken[WEIGHT], count),
                         .copy = bl_median(taken[COPY], count),
                         .slot_bytes = bench->sizes.slot_bytes,
                         .evict_bytes = bench->sizes.evict_bytes};
    // R takes its time in every setting; it is part of a step where nothing else was kept.
    result->recompute = bench->settings->recompute == BL_RECOMPUTE_FULL ? bl_median(taken[RECOMPUTE], count) : 0;
    status = time_products(bench, result, err);
  }
  if (status == BL_OK) {
    judge(bench, result);
  }
  return status;
}

static void print_result(const bench_t *bench, const result_t *r) {
  char slot[BL_BYTES_TEXT], evict[BL_BYTES_TEXT];
  const double whole = r->forward + r->input + r->weight + r->recompute;
  const double token_bytes = (double)bench->model.seq * r->micro_batch * bench->model.hidden *
                             (double)bl_dtype_bytes((bl_dtype_t)bench->settings->dtype) * bench->model.layers;
  printf("b %-2u  F %9.3f ms  I %9.3f  W %9.3f  B %9.3f  R %9.3f  MFU %5.1f %%  HFU %5.1f %%\n", r->micro_batch,
         1e3 * r->forward, 1e3 * r->input, 1e3 * r->weight, 1e3 * (r->input + r->weight), 1e3 * r->recompute,
         100 * r->mfu, 100 * r->hfu);
  printf("      products alone %9.3f ms at %.1f TFLOP/s, %.1f %% of the stage's time; block %s, %.2f units of tokens x "
         "hidden a layer, evicted %s; copies %.0f GB/s\n",
         1e3 * r->products, r->rate * 1e-12, 100 * r->products / whole, bl_bytes_format(r->slot_bytes, slot),
         (double)r->slot_bytes / token_bytes, bl_bytes_format(r->evict_bytes, evict),
         2 * (double)bench->sizes.edge_bytes / r->copy * 1e-9);
}

// What larger micro-batches would bring to a pipeline, if transfers cost nothing (arXiv 2401.02088).
static void print_gains(const result_t *results, size_t count) {
  for (size_t i = 1; i < count; i++) {
    const bl_estimate_request_t request = {.batch = GLOBAL_BATCH,
                                           .stages = STAGES,
                                           .from = {results[i - 1].micro_batch, results[i - 1].mfu},
                                           .to = {results[i].micro_batch, results[i].mfu}};
    bl_estimate_t estimate;
    if (bl_estimate(&request, &estimate, NULL) == BL_OK) {
      printf("b %u to %u: at most %.3f times as fast, %d stages, %d sequences a step (utilisation %.3f, needed %.3f)\n",
             results[i - 1].micro_batch, results[i].micro_batch, estimate.speedup, STAGES, GLOBAL_BATCH,
             estimate.efficiency, estimate.break_even);
    }
  }
}

static bl_status_t write_file(const char *path, const char *mode, const char *text, bl_error_t *err) {
  FILE *file = fopen(path, mode);
  bool ok = file != NULL && fputs(text, file) >= 0;
  ok = file != NULL && fclose(file) == 0 && ok;
  return ok ? BL_OK : bl_error_set(err, BL_IO, "%s: cannot be written", path);
}

static bl_status_t write_result(const bench_t *bench, const result_t *r, bool first, bl_error_t *err) {
  const settings_t *settings = bench->settings;
  char path[4096], line[1024];
  bl_profile_stage_t stage = {.slot_bytes = r->slot_bytes};
  bl_profile_chunk_t chunk = {.span = {0, bench->model.layers, false, false},
                              .costs = {.forward = r->forward,
                                        .input = r->input,
                                        .weight = r->weight,
                                        .recompute = r->recompute > 0 ? r->recompute : r->forward},
                              .measured_input = true,
                              .measured_recompute = r->recompute > 0};
  const double micro_batch = r->forward + r->input + r->weight + r->recompute;
  bl_profile_t profile = {.model_digest = bl_profile_model_digest(&bench->model),
                          .schedule = "1f1b",
                          .options = bl_chunk_layout(bench->chunk)->options,
                          .micro_batches = 1,
                          .steps = (uint32_t)settings->samples,
                          .step = micro_batch,
                          .makespan = micro_batch,
                          .replay_makespan = micro_batch,
                          .stage_count = 1,
                          .chunk_count = 1,
                          .stages = &stage,
                          .chunks = &chunk};
  bl_profile_model_text(&bench->model, profile.model_text);
  char *text = NULL;
  bl_status_t status = bl_profile_write(&profile, &text);
  if (status != BL_OK) {
    return bl_error_set(err, status, "no memory for a profile");
  }
  snprintf(path, sizeof path, "%s-b%u.json", settings->write, r->micro_batch);
  status = write_file(path, "w", text, err);
  free(text);
  snprintf(
      line, sizeof line,
      "{\"model\":\"%s\",\"shard\":%lld,\"layers\":%u,\"seq\":%u,\"micro_batch\":%u,\"dtype\":\"%s\",\"attention\":"
      "\"%s\",\"recompute\":\"%s\",\"device\":\"%s\",\"forward\":%.9g,\"input\":%.9g,\"weight\":%.9g,\"recomputed\":"
      "%.9g,\"products\":%.9g,\"products_rate\":%.9g,\"mfu\":%.6g,\"hfu\":%.6g,\"slot_bytes\":%llu,\"evict_bytes\":"
      "%llu}\n",
      settings->model, (long long)settings->shard, bench->model.layers, bench->model.seq, r->micro_batch,
      dtypes[settings->dtype], attentions[settings->attention], recomputes[settings->recompute],
      bl_device_describe(bench->device), r->forward, r->input, r->weight, r->recompute, r->products, r->rate, r->mfu,
      r->hfu, (unsigned long long)r->slot_bytes, (unsigned long long)r->evict_bytes);
  snprintf(path, sizeof path, "%s.jsonl", settings->write);
  return status == BL_OK ? write_file(path, first ? "w" : "a", line, err) : status;
}

static bl_status_t run(const settings_t *settings, bl_error_t *err) {
  bench_t bench = {.settings = settings};
  const bl_device_kind_t kind = settings->device == 1 ? BL_DEVICE_CUDA : BL_DEVICE_HOST;
  result_t results[BATCHES_MAX];
  size_t count = 0;
  bl_status_t status = find_model(settings, &bench.model, err);
  status = status == BL_OK ? bl_ops_select(kind, &bench.ops, err) : status;
  status = status == BL_OK ? bl_device_open(kind, (uint32_t)settings->gpu, &bench.device, err) : status;
  for (const char *text = settings->batches; status == BL_OK && *text != '\0' && count < BATCHES_MAX;) {
    char *end;
    const long micro_batch = strtol(text, &end, 10);
    if (micro_batch < 1 || micro_batch > 4096 || (*end != ',' && *end != '\0')) {
      status = bl_error_set(err, BL_INVALID, "--micro-batches %s: numbers with commas between them", settings->batches);
      break;
    }
    status = measure(&bench, (uint32_t)micro_batch, &results[count], err);
    if (status == BL_OK && count == 0) {
      printf("%s, part 1 of %lld, %u layers, seq %u, %s, %s attention, recompute %s\n%s; %s\n", settings->model,
             (long long)settings->shard, bench.model.layers, bench.model.seq, dtypes[settings->dtype],
             attentions[settings->attention], recomputes[settings->recompute], bl_device_describe(bench.device),
             bench.ops->describe(bench.compute));
    }
    if (status == BL_OK) {
      print_result(&bench, &results[count]);
      status = settings->write == NULL ? BL_OK : write_result(&bench, &results[count], count == 0, err);
      count++;
    } else {
      bl_error_prefix(err, "micro-batch %ld", micro_batch);
    }
    if (bench.compute != NULL) {
      close_batch(&bench);
    }
    text = *end == ',' ? end + 1 : end;
  }
  print_gains(results, count);
  bl_device_close(bench.device);
  return status;
}

int bl_bench_shard(int argc, char **argv) {
  bl_error_t err;
  bl_error_clear(&err);
  settings_t settings;
  bl_flags_result_t result;
  bl_status_t status = bl_flags_parse(&flags, argc, argv, &settings, &result, &err);
  if (status == BL_OK && result.help) {
    bl_flags_print_help(&flags, stdout);
  } else if (status == BL_OK) {
    status = run(&settings, &err);
  }
  if (status != BL_OK) {
    fprintf(stderr, "ballast-bench stage: %s\n", err.text);
  }
  bl_options_cleanup(&flags.table, &settings);
  return bl_status_exit_code(status);
}
