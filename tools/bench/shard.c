// SPDX-License-Identifier: Apache-2.0
// One tensor-parallel part of a few layers of a large model, alone on one device: how long F, I, W and R take for each
// micro-batch, how much of the device they use, and what this predicts for the whole pipeline. Only shapes make it a
// part: heads and ffn are divided, and nothing is exchanged.
//
// MFU counts products and the full square of attention (Chowdhery et al., appendix B). HFU also counts what is
// recomputed. Both are relative to --peak, or without it to the best rate of the stage's own products at any
// micro-batch of the run.
#include "bench.h"

#include "base/sort.h"
#include "base/words.h"
#include "measure.h"
#include "model/flops.h"
#include "program.h"
#include "shard.h"
#include "timed_ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCHES_MAX 8

typedef bl_shard_settings_t settings_t;

// The models of arXiv 2401.02088 and of the BPipe paper, and two models that fit on one GPU (--shard 1).
static const struct {
  const char *name;
  uint32_t vocab;
  bl_model_t model;
} models[] = {
    {"gpt3-96b",
     50257,
     {.family = BL_FAMILY_GPT2, .layers = 80, .hidden = 9984, .heads = 104, .kv_heads = 104, .ffn = 39936}},
    {"gpt3-175b",
     50257,
     {.family = BL_FAMILY_GPT2, .layers = 96, .hidden = 12288, .heads = 96, .kv_heads = 96, .ffn = 49152}},
    {"llama-65b",
     32000,
     {.family = BL_FAMILY_LLAMA, .layers = 80, .hidden = 8192, .heads = 64, .kv_heads = 64, .ffn = 22016}},
    {"gpt2-1.5b",
     50257,
     {.family = BL_FAMILY_GPT2, .layers = 48, .hidden = 1600, .heads = 25, .kv_heads = 25, .ffn = 6400}},
    {"llama-7b",
     32000,
     {.family = BL_FAMILY_LLAMA, .layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 32, .ffn = 11008}},
};
#define MODELS (sizeof models / sizeof models[0])

static const char *const devices[] = {"host", "cuda", NULL};
const char *const bl_shard_attentions[] = {"naive", "flash", NULL};
const char *const bl_shard_recomputes[] = {"none", "attention", "full", NULL};
const char *const bl_shard_dtypes[] = {"fp32", "bf16", NULL};

static const bl_option_t rows[] = {
    {.name = "model",
     .type = BL_OPTION_TEXT,
     .offset = offsetof(settings_t, model),
     .argument = "NAME",
     .help = "gpt3-96b, gpt3-175b, llama-65b, gpt2-1.5b or llama-7b."},
    BL_BENCH_ENUM(settings_t, device, "device", devices, "cuda", "Where."),
    BL_BENCH_INT(settings_t, gpu, "gpu", "0", 0, 1023, "Which of the GPUs that this process sees."),
    BL_BENCH_INT(settings_t, layers, "layers", "2", 1, 1024, "Layers of the stage."),
    BL_BENCH_INT(settings_t, shard, "shard", "4", 1, 1024,
                 "Tensor-parallel parts of each layer; one of them is measured."),
    BL_BENCH_SWITCH(
        settings_t, head, "head",
        "The last stage: with the final norm, the head over this part of the model's vocabulary, and the loss."),
    BL_BENCH_INT(settings_t, seq, "seq", "2048", 1, 1 << 20, "Tokens of a sequence."),
    BL_BENCH_INT(settings_t, hidden, "hidden", "0", 0, 1 << 20,
                 "Shrinks the model to this width, its heads and ffn in proportion (for trying it out); 0: as it is."),
    {.name = "micro-batches",
     .type = BL_OPTION_TEXT,
     .offset = offsetof(settings_t, batches),
     .argument = "B,B,...",
     .preset = "1,2,4,8",
     .help = "Sequences of a micro-batch, one measurement each."},
    BL_BENCH_ENUM(settings_t, attention, "attention", bl_shard_attentions, "flash", "Attention kind."),
    BL_BENCH_ENUM(settings_t, recompute, "recompute", bl_shard_recomputes, "none",
                  "What is made again in the backward."),
    BL_BENCH_ENUM(settings_t, dtype, "dtype", bl_shard_dtypes, "bf16", "Type."),
    BL_BENCH_INT(settings_t, samples, "samples", "11", 1, BL_SHARD_SAMPLES_MAX, "Runs to take medians of."),
    BL_BENCH_THREADS(settings_t, threads, "Compute threads of the host."),
    {.name = "peak",
     .type = BL_OPTION_REAL,
     .offset = offsetof(settings_t, peak),
     .preset = "0",
     .minimum = 0,
     .maximum = 1e9,
     .unit = "TFLOP/s",
     .help = "What utilisation is relative to; 0: the best rate of the stage's own products in this run."},
    {.name = "write",
     .type = BL_OPTION_PATH,
     .offset = offsetof(settings_t, write),
     .argument = "PREFIX",
     .help = "Writes PREFIX-bN.json, a profile of this part as a model of its own, which ballastctl estimate reads, "
             "for each micro-batch N, and PREFIX.jsonl, a line of results for each."},
};
static const bl_flags_t flags = {.program = "ballast-bench stage",
                                 .usage = "--model NAME [options]",
                                 .about = "Times a tensor-parallel part of a stage of a large model, alone.",
                                 .table = {rows, sizeof rows / sizeof rows[0], "command line"}};

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
    model->vocab = settings->head ? bl_layer_part_rows(models[i].vocab, shard, 0).count : 64; // 64: not measured
    model->seq = (uint32_t)settings->seq;
    model->norm_epsilon = BL_NORM_EPSILON_DEFAULT;
    model->rope.theta = BL_ROPE_THETA_DEFAULT;
    return BL_OK;
  }
  return bl_error_set(err, BL_INVALID, "--model %s: one of gpt3-96b, gpt3-175b, llama-65b, gpt2-1.5b, llama-7b",
                      settings->model == NULL ? "" : settings->model);
}

// ---- one micro-batch

// Uses one peak for all micro-batches, so that their utilisation can be compared.
static void judge(const bl_shard_t *bench, bl_shard_result_t *results, size_t count) {
  const bl_chunk_span_t span = bl_shard_span(bench);
  double peak = bench->settings->peak * 1e12;
  for (size_t i = 0; i < count && bench->settings->peak <= 0; i++) {
    peak = results[i].rate > peak ? results[i].rate : peak;
  }
  for (size_t i = 0; i < count; i++) {
    bl_shard_result_t *result = &results[i];
    const uint32_t micro_batch = result->layout.micro_batch;
    bl_flops_t m = bl_flops_matmul(&bench->model, span, micro_batch);
    bl_flops_t a = bl_flops_attention_published(&bench->model, span, micro_batch);
    const double useful = bl_flops_total(m) + bl_flops_total(a);
    const double again = bench->settings->recompute == BL_RECOMPUTE_FULL        ? m.forward + a.forward
                         : bench->settings->recompute == BL_RECOMPUTE_ATTENTION ? a.forward
                                                                                : 0;
    result->peak = peak;
    result->mfu = useful / bl_shard_seconds(result) / peak;
    result->hfu = (useful + again) / bl_shard_seconds(result) / peak;
  }
}

static bl_status_t measure(bl_shard_t *bench, uint32_t micro_batch, bl_shard_result_t *result, bl_error_t *err) {
  static double taken[BL_SHARD_PARTS][BL_SHARD_SAMPLES_MAX];
  const size_t count = (size_t)bench->settings->samples;
  double seconds[BL_SHARD_PARTS];
  bl_status_t status = bl_shard_open(bench, micro_batch, err);
  status = status == BL_OK ? bl_shard_sample(bench, seconds, err) : status; // warms up
  for (size_t i = 0; i < count && status == BL_OK; i++) {
    status = bl_shard_sample(bench, seconds, err);
    for (int part = 0; part < BL_SHARD_PARTS; part++) {
      taken[part][i] = seconds[part];
    }
  }
  if (status == BL_OK) {
    *result = (bl_shard_result_t){.layout = bl_chunk_layout(bench->chunk)->options,
                                  .forward = bl_median(taken[BL_SHARD_FORWARD], count),
                                  .input = bl_median(taken[BL_SHARD_INPUT], count),
                                  .weight = bl_median(taken[BL_SHARD_WEIGHT], count),
                                  .copy = bl_median(taken[BL_SHARD_COPY], count),
                                  .update = bl_median(taken[BL_SHARD_UPDATE], count),
                                  .slot_bytes = bench->sizes.slot_bytes,
                                  .evict_bytes = bench->sizes.evict_bytes,
                                  .edge_bytes = bench->sizes.edge_bytes};
    // R is measured in every setting, but is part of a step only with full recomputation.
    result->recompute =
        bench->settings->recompute == BL_RECOMPUTE_FULL ? bl_median(taken[BL_SHARD_RECOMPUTE], count) : 0;
    status = bl_shard_find_kernels(bench, &result->kernels, err);
    status = status == BL_OK ? bl_shard_time_products(bench, result, err) : status;
  }
  if (status == BL_OK) {
    result->block = bl_shard_block(&bench->model, result);
  }
  return status;
}

// Reports the micro-batches that were measured, even if a later one failed.
static bl_status_t report(const bl_shard_t *bench, bl_shard_result_t *results, size_t count, bl_error_t *err) {
  bl_status_t status = BL_OK;
  judge(bench, results, count);
  for (size_t i = 0; i < count; i++) {
    bl_shard_print(bench, &results[i]);
    if (bench->settings->write != NULL && status == BL_OK) {
      status = bl_shard_write(bench, &results[i], i == 0, err);
    }
  }
  bl_shard_print_gains(results, count);
  return status;
}

static bl_status_t run(const void *values, bl_error_t *err) {
  const settings_t *settings = values;
  bl_shard_t bench = {.settings = settings};
  const bl_device_kind_t kind = settings->device == 1 ? BL_DEVICE_CUDA : BL_DEVICE_HOST;
  static bl_shard_result_t results[BATCHES_MAX];
  size_t count = 0;
  bl_status_t status = find_model(settings, &bench.model, err);
  status = status == BL_OK ? bl_ops_select(kind, &bench.ops, err) : status;
  if (status == BL_OK) {
    bench.ops = bl_timed_ops(bench.ops);
    bl_timed_pause(true); // until kernels are measured
  }
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
      char head[64] = "";
      if (settings->head) {
        snprintf(head, sizeof head, ", head of %u columns", bench.model.vocab);
      }
      printf("%s, part 1 of %lld, %u layer%s%s, seq %u, %s, %s attention, recompute %s\n%s; %s\n", settings->model,
             (long long)settings->shard, bench.model.layers, bl_plural(bench.model.layers), head, bench.model.seq,
             bl_shard_dtypes[settings->dtype], bl_shard_attentions[settings->attention],
             bl_shard_recomputes[settings->recompute], bl_device_describe(bench.device),
             bench.ops->describe(bench.compute));
    }
    if (status == BL_OK) {
      count++;
    } else {
      bl_error_prefix(err, "micro-batch %ld", micro_batch);
    }
    if (bench.compute != NULL) {
      bl_shard_close(&bench);
    }
    text = *end == ',' ? end + 1 : end;
  }
  bl_error_t unwritten;
  const bl_status_t written = report(&bench, results, count, &unwritten);
  if (status == BL_OK && written != BL_OK) {
    *err = unwritten;
    status = written;
  }
  if (bench.device != NULL) {
    bl_shard_drop_weights(&bench);
  }
  bl_device_close(bench.device);
  return status;
}

int bl_bench_shard(int argc, char **argv) {
  bl_shard_settings_t settings;
  return bl_bench_program(&flags, &settings, run, argc, argv);
}
