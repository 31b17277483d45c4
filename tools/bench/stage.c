// SPDX-License-Identifier: Apache-2.0
// One stage alone on one thread: how long F, I, W, B and the update take, and the share of the current matmul ceiling
// that they reach. Work is counted as products with weights plus causal attention. The share of F and B together is the
// figure of docs/performance.md.
#include "bench.h"

#include "base/bytes.h"
#include "base/random.h"
#include "base/sort.h"
#include "base/words.h"
#include "ceiling.h"
#include "compute/model/chunk.h"
#include "measure.h"
#include "model/flops.h"
#include "program.h"
#include "timed_ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CEILING_MS    15
#define PAIRS_MAX     99
#define RETRIES       2   // disturbed pairs count after this many times the wanted number of pairs
#define LARGE_HIDDEN  768 // the large preset applies from this size on
#define SEED          1
#define HUGE_PAGE     (2u << 20)
#define MICRO_BATCHES 16 // divisor of the loss scale; a sample runs one

typedef struct {
  int family, attention, dtype;
  int64_t hidden, layers, seq, micro_batch, vocab, threads, pairs, processor;
  bool lean, prepack, ends, split;
} settings_t;

static const char *const families[] = {"gpt2", "llama", NULL};
static const char *const dtypes[] = {"fp32", "bf16", NULL};
static const char *const attentions[] = {"naive", "flash", NULL};

static const bl_option_t rows[] = {
    BL_BENCH_INT(
        settings_t, hidden, "hidden", "768", 64, 65536,
        "A multiple of 64, the head size. From 768: 12 layers, seq 1024, micro-batch 1; below: 8 layers, seq 256, "
        "micro-batch 4."),
    BL_BENCH_ENUM(settings_t, family, "family", families, "gpt2", "Architecture."),
    BL_BENCH_ENUM(settings_t, attention, "attention", attentions, "flash", "Attention kind."),
    BL_BENCH_ENUM(settings_t, dtype, "dtype", dtypes, "fp32",
                  "Type of activations and of the weights in products. The ceiling is that of fp32 always."),
    {.name = "layers", .type = BL_OPTION_INT, .offset = offsetof(settings_t, layers), .help = "0: as the preset."},
    {.name = "seq", .type = BL_OPTION_INT, .offset = offsetof(settings_t, seq), .help = "0: as the preset."},
    {.name = "micro-batch",
     .type = BL_OPTION_INT,
     .offset = offsetof(settings_t, micro_batch),
     .help = "0: as the preset."},
    BL_BENCH_INT(settings_t, vocab, "vocab", "50257", 2, 1 << 24, "With --ends."),
    BL_BENCH_SWITCH(settings_t, ends, "ends", "The whole model, with embedding and head; else layers alone."),
    BL_BENCH_SWITCH(settings_t, lean, "lean", "Lean blocks."),
    BL_BENCH_SWITCH(settings_t, prepack, "prepack", "Packed weights."),
    BL_BENCH_SWITCH(settings_t, split, "split", "I and W instead of B."),
    BL_BENCH_THREADS(settings_t, threads, "Compute threads."),
    BL_BENCH_PAIRS(settings_t, pairs, "7", PAIRS_MAX, "ceiling and stage"),
    BL_BENCH_PROCESSOR(settings_t, processor, "Processor to run on (with one thread); -1: any."),
};

static const bl_flags_t flags = {
    .program = "ballast-bench stage",
    .usage = "[options]",
    .about = "Times one stage alone, interleaved with the matmul ceiling. With --model NAME: a stage "
             "of a large model on any device; see --model x --help.",
    .table = {rows, sizeof rows / sizeof rows[0], "command line"}};

// The parts of a sample. UPDATE is begin_step, all squares and AdamW.
enum { FORWARD, BACKWARD, INPUT, WEIGHT, UPDATE, PARTS };
static const char *const part_names[PARTS] = {"F", "B", "I", "W", "update"};

typedef struct {
  bl_model_t model;
  bl_chunk_span_t span;
  const bl_ops_t *ops;
  bl_compute_t *compute;
  bl_chunk_t *chunk;
  bl_ceiling_t *ceiling;
  bl_chunk_sizes_t sizes;
  bl_chunk_arenas_t arenas;
  void *slot, *ops_workspace;
  void *in, *out, *input, *gradient; // input and gradient: contents that are copied to in and out
  int32_t *tokens, *labels;
  uint64_t step;
} bench_t;

// Allocates huge pages if the kernel has them, as for the arenas of stages (lib/device/host.c).
static void *block(uint64_t bytes, bool *ok) {
  const uint64_t room = bl_align_up(bytes + 1, HUGE_PAGE);
  void *made = aligned_alloc(HUGE_PAGE, room);
  if (made != NULL) {
    (void)madvise(made, room, MADV_HUGEPAGE);
    memset(made, 0, room); // touches the pages now
  }
  *ok = *ok && made != NULL;
  return made;
}

static bl_model_t model_of(const settings_t *settings, uint32_t *micro_batch) {
  const bool large = settings->hidden >= LARGE_HIDDEN;
  const bool llama = settings->family == BL_FAMILY_LLAMA;
  const uint32_t hidden = (uint32_t)settings->hidden;
  bl_model_t model = {.family = llama ? BL_FAMILY_LLAMA : BL_FAMILY_GPT2,
                      .layers = large ? 12 : 8,
                      .hidden = hidden,
                      .heads = hidden / 64,
                      .kv_heads = hidden / 64,
                      .head_dim = 64,
                      .ffn = llama ? hidden * 8 / 3 : 4 * hidden,
                      .vocab = (uint32_t)settings->vocab,
                      .seq = large ? 1024 : 256,
                      .tied = true,
                      .norm_epsilon = BL_NORM_EPSILON_DEFAULT,
                      .rope.theta = BL_ROPE_THETA_DEFAULT};
  model.layers = settings->layers > 0 ? (uint32_t)settings->layers : model.layers;
  model.seq = settings->seq > 0 ? (uint32_t)settings->seq : model.seq;
  *micro_batch = settings->micro_batch > 0 ? (uint32_t)settings->micro_batch : large ? 1 : 4;
  return model;
}

static void put(const bench_t *bench, void *edge, uint64_t i, float value) {
  if (bl_chunk_layout(bench->chunk)->options.dtype == BL_DTYPE_FP32) {
    ((float *)edge)[i] = value;
    return;
  }
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  ((uint16_t *)edge)[i] = (uint16_t)(bits >> 16);
}

static void fill_inputs(bench_t *bench, uint64_t rows_count) {
  const uint64_t elements = rows_count * bench->model.hidden;
  for (uint64_t i = 0; i < elements; i++) {
    put(bench, bench->input, i, (float)bl_random_normal(2, i));
    put(bench, bench->gradient, i, 1e-3f * (float)bl_random_normal(3, i));
  }
  for (uint64_t i = 0; i < rows_count; i++) {
    bench->tokens[i] = (int32_t)bl_random_below(4, i, bench->model.vocab);
    bench->labels[i] = (int32_t)bl_random_below(4, i + 1, bench->model.vocab);
  }
}

static bl_status_t allocate(bench_t *bench, uint64_t rows_count, uint32_t threads, bl_error_t *err) {
  bool ok = true;
  bench->sizes = bl_chunk_sizes(bench->chunk);
  const uint64_t ops_bytes = bench->ops->workspace_bytes(bench->compute);
  bench->arenas = (bl_chunk_arenas_t){.weights = block(bench->sizes.weight_bytes, &ok),
                                      .gradients = block(bench->sizes.gradient_bytes, &ok),
                                      .first_moments = block(bench->sizes.moment_bytes, &ok),
                                      .second_moments = block(bench->sizes.moment_bytes, &ok),
                                      .packed = block(bench->sizes.packed_bytes, &ok),
                                      .workspace = block(bench->sizes.workspace_bytes, &ok)};
  bench->slot = block(bench->sizes.slot_bytes, &ok);
  bench->ops_workspace = block(ops_bytes, &ok);
  bench->in = block(bench->sizes.edge_bytes, &ok);
  bench->out = block(bench->sizes.edge_bytes, &ok);
  bench->input = block(bench->sizes.edge_bytes, &ok);
  bench->gradient = block(bench->sizes.edge_bytes, &ok);
  bench->tokens = block(rows_count * sizeof(int32_t), &ok);
  bench->labels = block(rows_count * sizeof(int32_t), &ok);
  if (!ok) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the stage");
  }
  bench->ops->use_workspace(bench->compute, bench->ops_workspace, ops_bytes);
  bl_chunk_use_arenas(bench->chunk, &bench->arenas);
  bl_status_t status = bl_chunk_initialize(bench->chunk, SEED, threads, err);
  if (status != BL_OK) {
    return status;
  }
  fill_inputs(bench, rows_count);
  return BL_OK;
}

static bl_status_t prepare(const settings_t *settings, bench_t *bench, bl_error_t *err) {
  uint32_t micro_batch;
  bench->model = model_of(settings, &micro_batch);
  bench->span = (bl_chunk_span_t){0, bench->model.layers, settings->ends, settings->ends};
  bench->ops = bl_timed_ops(bl_ops_host());
  bl_status_t status =
      bench->ops->create(&(bl_compute_options_t){.threads = (uint32_t)settings->threads}, &bench->compute, err);
  if (status != BL_OK) {
    return status;
  }
  bench->ops->attach(bench->compute);
  status = bl_ceiling_create(bench->ops, bench->compute, &bench->ceiling, err);
  if (status != BL_OK) {
    return status;
  }
  bl_chunk_options_t options = {
      .ops = bench->ops,
      .compute = bench->compute,
      .model = &bench->model,
      .span = bench->span,
      .layout = {.micro_batch = micro_batch,
                 .attention = settings->attention == 0 ? BL_ATTENTION_NAIVE : BL_ATTENTION_FLASH,
                 .backward = settings->split ? BL_BACKWARD_SPLIT : BL_BACKWARD_FUSED,
                 .lean = settings->lean,
                 .dtype = (bl_dtype_t)settings->dtype},
      .micro_batches = MICRO_BATCHES,
      .prepack = settings->prepack,
  };
  status = bl_chunk_create(&options, &bench->chunk, err);
  const uint64_t rows_count = (uint64_t)micro_batch * bench->model.seq;
  return status == BL_OK ? allocate(bench, rows_count, (uint32_t)settings->threads, err) : status;
}

static void release(bench_t *bench) {
  bl_chunk_destroy(bench->chunk);
  bl_ceiling_destroy(bench->ceiling);
  if (bench->ops != NULL) {
    bench->ops->destroy(bench->compute);
  }
  void *blocks[] = {bench->arenas.weights,
                    bench->arenas.gradients,
                    bench->arenas.first_moments,
                    bench->arenas.second_moments,
                    bench->arenas.packed,
                    bench->arenas.workspace,
                    bench->slot,
                    bench->ops_workspace,
                    bench->in,
                    bench->out,
                    bench->input,
                    bench->gradient,
                    bench->tokens,
                    bench->labels};
  for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
    free(blocks[i]);
  }
}

static void run_part(bench_t *bench, int part) {
  bl_chunk_t *chunk = bench->chunk;
  bl_chunk_loss_t loss;
  double squares; // result is not used
  switch (part) {
  case FORWARD:
    bl_chunk_forward(chunk, bench->tokens, bench->in, bench->slot, bench->out);
    break;
  case BACKWARD:
    bl_chunk_backward(chunk, bench->tokens, bench->labels, bench->in, bench->slot, bench->out, true, &loss);
    break;
  case INPUT:
    bl_chunk_backward_input(chunk, bench->labels, bench->in, bench->slot, bench->out, true, &loss);
    break;
  case WEIGHT:
    bl_chunk_backward_weight(chunk, bench->tokens, bench->in, bench->slot, bench->out);
    break;
  case UPDATE:
    for (uint32_t i = 0; i < bl_chunk_parameter_count(chunk); i++) {
      bl_chunk_ask_squares(chunk, i, &squares);
    }
    bl_chunk_make_squares(chunk);
    bl_chunk_update(chunk, &(bl_adamw_settings_t){0.9, 0.95, 1e-8, 0.1, BL_DECAY_MATRICES},
                    &(bl_adamw_step_t){.step = ++bench->step, .rate = 1e-4, .gradient_scale = 1});
    bl_chunk_begin_step(chunk);
    break;
  }
}

// Runs one micro-batch and one update; sets the seconds of each part. Returns false if any part was disturbed.
static bool sample(bench_t *bench, const settings_t *settings, double seconds[PARTS]) {
  const int parts[] = {FORWARD, settings->split ? INPUT : BACKWARD, WEIGHT, UPDATE};
  bool undisturbed = true;
  memcpy(bench->in, bench->input, bench->sizes.edge_bytes);
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    if (parts[i] == WEIGHT && !settings->split) {
      continue;
    }
    if (parts[i] != FORWARD && parts[i] != WEIGHT && parts[i] != UPDATE && !bench->span.head) {
      memcpy(bench->out, bench->gradient, bench->sizes.edge_bytes);
    }
    bl_sample_t taken;
    bl_sample_start(&taken);
    run_part(bench, parts[i]);
    bl_sample_stop(&taken, (unsigned)settings->threads);
    undisturbed = undisturbed && bl_sample_undisturbed(&taken);
    seconds[parts[i]] = (double)taken.wall_ns * 1e-9;
  }
  return undisturbed;
}

typedef struct {
  double seconds[PARTS][PAIRS_MAX];
  double ceilings[PAIRS_MAX], shares[PAIRS_MAX];
  size_t pairs, disturbed; // disturbed: how many of the pairs
  size_t repeated;
  double total_seconds; // of the operations in the breakdown
  size_t samples;       // in the breakdown
} results_t;

static double work_of(const bench_t *bench, const bl_layout_t *layout, double work[PARTS]) {
  bl_flops_t m = bl_flops_matmul(&bench->model, bench->span, layout->options.micro_batch);
  bl_flops_t a = bl_flops_attention(&bench->model, bench->span, layout->options.micro_batch, BL_ATTENTION_NAIVE, true);
  work[FORWARD] = m.forward + a.forward;
  work[INPUT] = m.backward_input + a.backward_input + m.head;
  work[WEIGHT] = m.backward_weight;
  work[BACKWARD] = work[INPUT] + work[WEIGHT];
  work[UPDATE] = 0;
  return work[FORWARD] + work[BACKWARD];
}

static void take_pairs(bench_t *bench, const settings_t *settings, double work, results_t *results) {
  double seconds[PARTS] = {0};
  run_part(bench, UPDATE);
  sample(bench, settings, seconds); // warms up
  bl_timed_reset();
  const size_t wanted = (size_t)settings->pairs;
  for (size_t tries = 0; results->pairs < wanted; tries++) {
    double before = bl_ceiling_measure(bench->ceiling, CEILING_MS);
    bool undisturbed = sample(bench, settings, seconds);
    double after = bl_ceiling_measure(bench->ceiling, CEILING_MS);
    if (!undisturbed && tries < RETRIES * wanted) {
      results->repeated++;
      continue;
    }
    results->disturbed += !undisturbed;
    double ceiling = before > after ? before : after;
    double compute = seconds[FORWARD] + (settings->split ? seconds[INPUT] + seconds[WEIGHT] : seconds[BACKWARD]);
    for (int part = 0; part < PARTS; part++) {
      results->seconds[part][results->pairs] = seconds[part];
    }
    results->ceilings[results->pairs] = ceiling;
    results->shares[results->pairs] = work / compute / ceiling;
    results->pairs++;
  }
  // The breakdown has separate runs, because the ceiling uses the same operations.
  bl_timed_reset();
  for (results->samples = 0; results->samples < 3; results->samples++) {
    sample(bench, settings, seconds);
    for (int part = 0; part < PARTS; part++) {
      results->total_seconds += seconds[part];
    }
  }
}

static void print_results(const bench_t *bench, const settings_t *settings, results_t *results,
                          const double work[PARTS]) {
  char slot[BL_BYTES_TEXT], evict[BL_BYTES_TEXT], workspace[BL_BYTES_TEXT], packed[BL_BYTES_TEXT];
  const double ceiling = bl_median(results->ceilings, results->pairs);
  printf("stage %s %s, hidden %u, %u layer%s, seq %u, micro-batch %u, %s attention%s%s%s, %lld thread(s), %s\n",
         bl_family_name(bench->model.family), dtypes[settings->dtype], bench->model.hidden, bench->span.layer_count,
         bl_plural(bench->span.layer_count), bench->model.seq, bl_chunk_layout(bench->chunk)->options.micro_batch,
         bl_attention_name(bl_chunk_layout(bench->chunk)->options.attention), settings->lean ? ", lean" : "",
         settings->prepack ? ", packed weights" : "", settings->ends ? ", embedding and head" : "",
         (long long)settings->threads, bench->ops->describe(bench->compute));
  printf("slot %s, evicted %s, workspace %s, packed weights %s\n", bl_bytes_format(bench->sizes.slot_bytes, slot),
         bl_bytes_format(bench->sizes.evict_bytes, evict), bl_bytes_format(bench->sizes.workspace_bytes, workspace),
         bl_bytes_format(bench->sizes.packed_bytes, packed));
  printf("ceiling %.1f GFLOP/s; %zu pairs, %zu of them disturbed by others, %zu taken again\n", ceiling * 1e-9,
         results->pairs, results->disturbed, results->repeated);
  for (int part = 0; part < PARTS; part++) {
    double seconds = bl_median(results->seconds[part], results->pairs);
    if (seconds > 0 && work[part] > 0) {
      printf("  %-7s %9.2f ms  %6.1f GFLOP/s  %5.1f %% of the ceiling\n", part_names[part], seconds * 1e3,
             work[part] / seconds * 1e-9, 100 * work[part] / seconds / ceiling);
    } else if (seconds > 0) {
      printf("  %-7s %9.2f ms\n", part_names[part], seconds * 1e3);
    }
  }
  printf("share of the ceiling %.1f %%\n", 100 * bl_median(results->shares, results->pairs));
  size_t count;
  const bl_timed_kind_t *kinds = bl_timed_kinds(&count);
  for (size_t i = 0; i < count; i++) {
    if (kinds[i].calls > 0) {
      printf("  %-24s %6.1f calls %9.2f ms  %5.1f %%\n", kinds[i].name,
             (double)kinds[i].calls / (double)results->samples, (double)kinds[i].ns * 1e-6 / (double)results->samples,
             100 * (double)kinds[i].ns * 1e-9 / results->total_seconds);
    }
  }
}

static bl_status_t run(const void *values, bl_error_t *err) {
  const settings_t *settings = values;
  bench_t bench = {0};
  static results_t results;
  double work[PARTS];
  bl_status_t status = bl_bench_pin(settings->processor, settings->threads, err);
  if (status != BL_OK) {
    return status;
  }
  status = prepare(settings, &bench, err);
  if (status == BL_OK) {
    double total = work_of(&bench, bl_chunk_layout(bench.chunk), work);
    take_pairs(&bench, settings, total, &results);
    status = bench.ops->status(bench.compute, err);
  }
  if (status == BL_OK) {
    print_results(&bench, settings, &results, work);
  }
  release(&bench);
  return status;
}

int bl_bench_stage(int argc, char **argv) {
  for (int i = 0; i < argc; i++) { // a large model, on any device, with options of its own
    if (strcmp(argv[i], "--model") == 0 || strncmp(argv[i], "--model=", 8) == 0) {
      return bl_bench_shard(argc, argv);
    }
  }
  settings_t settings;
  return bl_bench_program(&flags, &settings, run, argc, argv);
}
