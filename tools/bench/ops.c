// SPDX-License-Identifier: Apache-2.0
// Each operation of a layer alone: its median time, and either the share of the current matmul ceiling that it reaches
// (products) or the bytes that it moves per second, compared with a plain copy (all others). Bytes are those of its
// tensors, each read or written once.
#include "bench.h"

#include "base/bytes.h"
#include "base/minmax.h"
#include "base/random.h"
#include "base/sort.h"
#include "ceiling.h"
#include "measure.h"
#include "program.h"
#include "sys/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CEILING_MS 10
#define SAMPLE_MS  10 // minimum per operation in one pair
#define PAIRS_MAX  99
#define RETRIES    4 // of a disturbed sample
#define HEAD_DIM   64
#define HEAD_ROWS  128 // rows of logits per piece
#define BLOCKS     5
#define WINDOW     256   // of attention with a window
#define SOFTCAP    50.0f // of attention with a softcap, and of logits

typedef struct settings {
  int64_t hidden, seq, micro_batch, vocab, threads, pairs, processor;
} settings_t;

static const bl_option_t rows[] = {
    BL_BENCH_INT(settings_t, hidden, "hidden", "768", HEAD_DIM, 1 << 16, "Width of the model; heads have 64 columns."),
    BL_BENCH_INT(settings_t, seq, "seq", "1024", 1, 1 << 20, "Tokens of a sequence."),
    BL_BENCH_INT(settings_t, micro_batch, "micro-batch", "1", 1, 1 << 16, "Sequences."),
    BL_BENCH_INT(settings_t, vocab, "vocab", "50257", 2, 1 << 24, "Of the head."),
    BL_BENCH_THREADS(settings_t, threads, "Compute threads."),
    BL_BENCH_PAIRS(settings_t, pairs, "7", PAIRS_MAX, "ceiling and operation"),
    BL_BENCH_PROCESSOR(settings_t, processor, "Processor to run on (with one thread); -1: any."),
};

static const bl_flags_t flags = {
    .program = "ballast-bench ops",
    .usage = "[options]",
    .about = "Times each operation alone, interleaved with the matmul ceiling. With --device: those that "
             "are bound by memory, on a device, beside a copy; see --device host --help.",
    .table = {rows, sizeof rows / sizeof rows[0], "command line"}};

// The products of a layer and of the head, with their in and out as multiples of hidden.
enum { QKV, PROJECTION, UP, DOWN, HEAD, LINEARS };
static const struct {
  const char *name;
  uint64_t in, out; // 0: the vocabulary
} linears[LINEARS] = {{"qkv", 1, 3}, {"projection", 1, 1}, {"up", 1, 4}, {"down", 4, 1}, {"head", 1, 0}};

// Kinds of attention, the number of keys that a query sees (0: all), and the softcaps of scores.
enum { NAIVE, FLASH, FLASH_WINDOW, FLASH_SOFTCAP, ATTENTIONS };
static const struct {
  bool flash;
  uint64_t window;
  float softcap;
} attentions[ATTENTIONS] = {{false, 0, 0}, {true, 0, 0}, {true, WINDOW, 0}, {true, 0, SOFTCAP}};

typedef struct bench {
  uint64_t hidden, seq, batch, tokens, vocab, heads;
  const bl_ops_t *ops;
  bl_compute_t *compute;
  bl_ceiling_t *ceiling;
  bl_linear_op_t *linear[LINEARS][2]; // plain, packed
  void *packed;                       // of the product that is running
  bl_attention_op_t *attention[ATTENTIONS];
  bl_rope_op_t *rope;
  bl_norm_shape_t norm;
  bl_head_norm_shape_t head_norm;
  float *block[BLOCKS], *scores, *weights, *gradients;
  int32_t *ids;
  double *row_losses;
  void *workspace;
} bench_t;

typedef struct operation {
  const char *name;
  void (*run)(bench_t *bench, int which);
  int which;
  double flops; // 0: rated by bytes
  double bytes;
} operation_t;

static void linear_forward(bench_t *b, int which) {
  bl_linear_op_t *op = b->linear[which / 2][which % 2];
  b->ops->linear_forward(op, b->block[0], b->weights, which % 2 ? b->packed : NULL, NULL, NULL, b->block[1]);
}

static void linear_input(bench_t *b, int which) {
  bl_linear_op_t *op = b->linear[which / 2][which % 2];
  b->ops->linear_backward_input(op, b->block[1], b->weights, which % 2 ? b->packed : NULL, false, b->block[0]);
}

static void linear_weight(bench_t *b, int which) {
  b->ops->linear_backward_weight(b->linear[which][0], b->block[0], b->block[1], true, b->gradients);
}

static void linear_pack(bench_t *b, int which) {
  b->ops->linear_pack(b->linear[which][1], b->weights, NULL, b->packed);
}

static void attention_forward(bench_t *b, int which) {
  b->ops->attention_forward(b->attention[which], b->block[0], b->block[1], b->scores);
}

static void attention_backward(bench_t *b, int which) {
  b->ops->attention_backward(b->attention[which], b->block[2], b->block[0], b->block[1], b->scores, b->block[3]);
}

static void norm_forward(bench_t *b, int which) {
  (void)which;
  b->ops->norm_forward(b->compute, &b->norm, b->block[0], b->weights, b->weights, b->block[1], b->scores);
}

static void norm_backward(bench_t *b, int which) {
  (void)which;
  b->ops->norm_backward(b->compute, &b->norm, b->block[2], b->block[0], b->weights, b->scores, b->block[1], b->block[3],
                        b->gradients);
}

static void head_norm_forward(bench_t *b, int which) {
  (void)which;
  b->ops->head_norm_forward(b->compute, &b->head_norm, b->block[0], b->weights, b->weights, b->block[1]);
}

static void head_norm_backward(bench_t *b, int which) {
  (void)which;
  b->ops->head_norm_backward(b->compute, &b->head_norm, b->block[2], b->block[0], b->weights, b->weights, b->block[3],
                             b->gradients);
}

static void gelu_forward(bench_t *b, int which) {
  (void)which;
  b->ops->gelu_forward(b->compute, b->tokens * 4 * b->hidden, BL_COMPUTE_FP32, b->block[0], b->block[1]);
}

static void gelu_backward(bench_t *b, int which) {
  (void)which;
  b->ops->gelu_backward(b->compute, b->tokens * 4 * b->hidden, BL_COMPUTE_FP32, b->block[1], b->block[0], b->block[2]);
}

static void gated_forward(bench_t *b, int gate) {
  b->ops->gated_forward(b->compute, (bl_gate_t)gate, b->tokens, 2 * b->hidden, BL_COMPUTE_FP32, b->block[0],
                        b->block[1]);
}

static void gated_backward(bench_t *b, int gate) {
  b->ops->gated_backward(b->compute, (bl_gate_t)gate, b->tokens, 2 * b->hidden, BL_COMPUTE_FP32, b->block[1],
                         b->block[0], b->block[2]);
}

static void rope_forward(bench_t *b, int which) {
  (void)which;
  b->ops->rope_forward(b->rope, b->block[0]);
}

static void embedding_forward(bench_t *b, int which) {
  (void)which;
  b->ops->embedding_forward(b->compute, b->batch, b->seq, b->hidden, 1.0f, BL_COMPUTE_FP32, b->ids, b->weights,
                            b->block[1], b->block[2]);
}

static void embedding_backward(bench_t *b, int which) {
  (void)which;
  b->ops->embedding_backward(b->compute, b->batch, b->seq, b->hidden, 1.0f, BL_COMPUTE_FP32, b->ids, b->block[2],
                             b->gradients, b->block[1]);
}

static void softcap_logits(bench_t *b, int which) {
  (void)which;
  b->ops->softcap_logits(b->compute, HEAD_ROWS, b->vocab, b->vocab, SOFTCAP, b->block[1]);
}

static void cross_entropy(bench_t *b, int softcapped) {
  b->ops->cross_entropy(b->compute, HEAD_ROWS, b->vocab, b->vocab, BL_COMPUTE_FP32, b->ids, 1e-3f,
                        softcapped ? SOFTCAP : 0.0f, b->block[1], b->row_losses);
}

static void adamw(bench_t *b, int which) {
  (void)which;
  const bl_adamw_tensor_t tensor = {.options = {1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 0.5f, 1.0f},
                                    .count = 4 * b->hidden * b->hidden,
                                    .dw = b->gradients,
                                    .w = b->weights,
                                    .m = b->block[3],
                                    .v = b->block[4]};
  b->ops->adamw(b->compute, 1, &tensor);
}

static void sum_squares(bench_t *b, int which) {
  (void)which;
  double sum;
  b->ops->sum_squares(b->compute, 1, &(bl_squares_t){4 * b->hidden * b->hidden, b->gradients, &sum});
}

static void accumulate(bench_t *b, int which) {
  (void)which;
  b->ops->accumulate(b->compute, b->tokens * b->hidden, b->block[0], b->block[1]);
}

static void copy(bench_t *b, int which) {
  (void)which;
  memcpy(b->block[1], b->block[0], b->tokens * 4 * b->hidden * sizeof(float));
}

static float *block(uint64_t elements, bool *ok) {
  const uint64_t bytes = bl_align_up(elements * sizeof(float), BL_CACHE_LINE_BYTES);
  float *made = aligned_alloc(BL_CACHE_LINE_BYTES, bytes);
  for (uint64_t i = 0; made && i < bytes / sizeof(float); i++) {
    made[i] = (float)bl_random_uniform(1, i);
  }
  *ok = *ok && made;
  return made;
}

static uint64_t linear_in(const bench_t *b, int which) {
  return linears[which].in * b->hidden;
}

static uint64_t linear_out(const bench_t *b, int which) {
  return linears[which].out ? linears[which].out * b->hidden : b->vocab;
}

static uint64_t linear_rows(const bench_t *b, int which) {
  return which == HEAD ? HEAD_ROWS : b->tokens;
}

static bl_status_t plan(bench_t *b, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (int i = 0; i < 2 * LINEARS && status == BL_OK; i++) {
    const bl_linear_shape_t shape = {.rows = linear_rows(b, i / 2),
                                     .in = linear_in(b, i / 2),
                                     .out = linear_out(b, i / 2),
                                     .order = i / 2 == HEAD ? BL_WEIGHT_OUT_IN : BL_WEIGHT_IN_OUT,
                                     .uses = BL_LINEAR_FORWARD | BL_LINEAR_INPUT | BL_LINEAR_WEIGHT,
                                     .prepack = i % 2};
    status = b->ops->linear_plan(b->compute, &shape, &b->linear[i / 2][i % 2], err);
  }
  for (int i = 0; i < ATTENTIONS && status == BL_OK; i++) {
    const bl_attention_shape_t shape = {.batch = b->batch,
                                        .seq = b->seq,
                                        .heads = b->heads,
                                        .kv_heads = b->heads,
                                        .head_dim = HEAD_DIM,
                                        .flash = attentions[i].flash,
                                        .window = attentions[i].window,
                                        .softcap = attentions[i].softcap};
    status = b->ops->attention_plan(b->compute, &shape, &b->attention[i], err);
  }
  if (status == BL_OK) {
    const bl_rope_shape_t shape = {.batch = b->batch,
                                   .seq = b->seq,
                                   .heads = b->heads,
                                   .kv_heads = b->heads,
                                   .head_dim = HEAD_DIM,
                                   .rope.theta = 10000};
    status = b->ops->rope_plan(b->compute, &shape, &b->rope, err);
  }
  b->norm = (bl_norm_shape_t){.rows = b->tokens, .width = b->hidden, .epsilon = 1e-5f};
  b->head_norm = (bl_head_norm_shape_t){
      .rows = b->tokens, .heads = b->heads, .kv_heads = b->heads, .head_dim = HEAD_DIM, .epsilon = 1e-6f};
  return status == BL_OK ? bl_ceiling_create(b->ops, b->compute, &b->ceiling, err) : status;
}

static bl_status_t prepare(const settings_t *settings, bench_t *b, bl_error_t *err) {
  b->hidden = (uint64_t)settings->hidden / HEAD_DIM * HEAD_DIM;
  b->seq = (uint64_t)settings->seq;
  b->batch = (uint64_t)settings->micro_batch;
  b->tokens = b->seq * b->batch;
  b->vocab = (uint64_t)settings->vocab;
  b->heads = b->hidden / HEAD_DIM;
  b->ops = bl_ops_host();
  bl_status_t status =
      b->ops->create(&(bl_compute_options_t){.threads = (uint32_t)settings->threads}, &b->compute, err);
  if (status != BL_OK) {
    return status;
  }
  b->ops->attach(b->compute);
  status = plan(b, err);
  if (status != BL_OK) {
    return status;
  }
  bool ok = true;
  const uint64_t layer = 4 * b->hidden * b->hidden;
  const uint64_t rows_block = bl_max_u64(bl_max_u64(b->tokens * 4 * b->hidden, HEAD_ROWS * b->vocab), layer);
  const uint64_t weight = bl_max_u64(layer, b->vocab * b->hidden);
  for (int i = 0; i < BLOCKS; i++) {
    b->block[i] = block(rows_block, &ok);
  }
  b->scores = block(bl_max_u64(b->batch * b->heads * b->seq * b->seq, 2 * b->tokens), &ok);
  b->weights = block(weight, &ok);
  b->gradients = block(weight, &ok);
  size_t packed = 64;
  for (int i = 0; i < LINEARS; i++) {
    packed = bl_max_u64(packed, b->ops->linear_packed_bytes(b->linear[i][1]));
  }
  b->packed = block(packed / sizeof(float), &ok);
  b->ids = calloc(bl_max_u64(b->tokens, HEAD_ROWS), sizeof *b->ids);
  b->row_losses = calloc(HEAD_ROWS, sizeof *b->row_losses);
  const size_t workspace = b->ops->workspace_bytes(b->compute);
  b->workspace = block(workspace / sizeof(float) + 1, &ok);
  if (!ok || !b->ids || !b->row_losses) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for tensors");
  }
  for (uint64_t i = 0; i < bl_max_u64(b->tokens, HEAD_ROWS); i++) {
    b->ids[i] = (int32_t)bl_random_below(2, i, b->vocab);
  }
  b->ops->use_workspace(b->compute, b->workspace, workspace);
  return BL_OK;
}

static void release(bench_t *b) {
  bl_ceiling_destroy(b->ceiling);
  b->ops->destroy(b->compute);
  for (int i = 0; i < BLOCKS; i++) {
    free(b->block[i]);
  }
  void *rest[] = {b->scores, b->weights, b->gradients, b->packed, b->ids, b->row_losses, b->workspace};
  for (size_t i = 0; i < sizeof rest / sizeof rest[0]; i++) {
    free(rest[i]);
  }
}

// Returns the seconds of one call, from as many calls as fill SAMPLE_MS. Repeats a sample that other load disturbed.
static double seconds_of(bench_t *b, const operation_t *operation, unsigned threads) {
  double seconds = 0;
  for (int attempt = 0; attempt < RETRIES; attempt++) {
    bl_sample_t sample;
    uint64_t calls = 0;
    operation->run(b, operation->which); // caches as in a sequence of calls
    bl_sample_start(&sample);
    const uint64_t start = bl_clock_now_ns();
    do {
      operation->run(b, operation->which);
      calls++;
    } while (bl_clock_now_ns() - start < (uint64_t)SAMPLE_MS * BL_NS_PER_MS);
    bl_sample_stop(&sample, threads);
    seconds = (double)sample.wall_ns * 1e-9 / (double)calls;
    if (bl_sample_undisturbed(&sample)) {
      break;
    }
  }
  return seconds;
}

static void measure(bench_t *b, const settings_t *settings, const operation_t *operation) {
  double seconds[PAIRS_MAX], shares[PAIRS_MAX];
  for (int64_t pair = 0; pair < settings->pairs; pair++) {
    const double ceiling = operation->flops > 0 ? bl_ceiling_measure(b->ceiling, CEILING_MS) : 1;
    seconds[pair] = seconds_of(b, operation, (unsigned)settings->threads);
    shares[pair] = operation->flops / seconds[pair] / ceiling;
  }
  const double median = bl_median(seconds, (size_t)settings->pairs);
  if (operation->flops > 0) {
    printf("%-28s %10.1f us %8.1f GFLOP/s %6.1f %% of the ceiling\n", operation->name, median * 1e6,
           operation->flops / median * 1e-9, 100 * bl_median(shares, (size_t)settings->pairs));
  } else {
    printf("%-28s %10.1f us %8.1f GB/s\n", operation->name, median * 1e6, operation->bytes / median * 1e-9);
  }
  fflush(stdout);
}

static void measure_linears(bench_t *b, const settings_t *settings) {
  for (int i = 0; i < LINEARS; i++) {
    char names[6][64];
    const double flops = 2.0 * (double)linear_rows(b, i) * (double)linear_in(b, i) * (double)linear_out(b, i);
    const double pack_bytes = 4.0 * (double)linear_in(b, i) * (double)linear_out(b, i) * 4;
    const operation_t operations[] = {
        {names[0], linear_forward, 2 * i, flops, 0},     {names[1], linear_input, 2 * i, flops, 0},
        {names[2], linear_weight, i, flops, 0},          {names[3], linear_pack, i, 0, pack_bytes},
        {names[4], linear_forward, 2 * i + 1, flops, 0}, {names[5], linear_input, 2 * i + 1, flops, 0},
    };
    static const char *const kinds[] = {"forward", "input", "weight", "pack", "forward packed", "input packed"};
    for (int k = 0; k < 6; k++) {
      snprintf(names[k], sizeof names[k], "%s %s", linears[i].name, kinds[k]);
      measure(b, settings, &operations[k]);
    }
  }
}

// Returns the pairs of a query and a key that it sees, in one sequence: half of the square without a window.
static double pairs_of(const bench_t *b, uint64_t window) {
  const double seq = (double)b->seq, seen = (double)window;
  return window == 0 || window >= b->seq ? seq * seq / 2 : seen * seen / 2 + (seq - seen) * seen;
}

static void measure_all(bench_t *b, const settings_t *settings) {
  const double rows_of = (double)b->tokens, wide = 16.0 * rows_of * (double)b->hidden; // bytes of [T, 4 hidden]
  const double layer = 16.0 * (double)b->hidden * (double)b->hidden, thin = wide / 4;
  const double pair = 4.0 * (double)b->hidden * (double)b->batch;
  const double attention = pair * pairs_of(b, 0), window = pair * pairs_of(b, WINDOW);
  const operation_t operations[] = {
      {"attention forward, naive", attention_forward, NAIVE, attention, 0},
      {"attention backward, naive", attention_backward, NAIVE, 2 * attention, 0},
      {"attention forward, flash", attention_forward, FLASH, attention, 0},
      {"attention backward, flash", attention_backward, FLASH, 2 * attention, 0}, // recomputed scores are not counted
      {"attention forward, window", attention_forward, FLASH_WINDOW, window, 0},
      {"attention backward, window", attention_backward, FLASH_WINDOW, 2 * window, 0},
      {"attention forward, softcap", attention_forward, FLASH_SOFTCAP, attention, 0},
      {"attention backward, softcap", attention_backward, FLASH_SOFTCAP, 2 * attention, 0},
      {"copy", copy, 0, 0, 2 * wide},
      {"norm forward", norm_forward, 0, 0, 2 * thin},
      {"norm backward", norm_backward, 0, 0, 4 * thin},
      {"head norm forward", head_norm_forward, 0, 0, 6 * thin},
      {"head norm backward", head_norm_backward, 0, 0, 9 * thin},
      {"gelu forward", gelu_forward, 0, 0, 2 * wide},
      {"gelu backward", gelu_backward, 0, 0, 3 * wide},
      {"swiglu forward", gated_forward, BL_GATE_SILU, 0, 1.5 * wide},
      {"swiglu backward", gated_backward, BL_GATE_SILU, 0, 2.5 * wide},
      {"geglu forward", gated_forward, BL_GATE_GELU, 0, 1.5 * wide},
      {"geglu backward", gated_backward, BL_GATE_GELU, 0, 2.5 * wide},
      {"rope", rope_forward, 0, 0, 4 * thin},
      {"embedding forward", embedding_forward, 0, 0, 3 * thin},
      {"embedding backward", embedding_backward, 0, 0, 5 * thin},
      {"softcap of logits", softcap_logits, 0, 0, 8.0 * HEAD_ROWS * (double)b->vocab},
      {"cross entropy", cross_entropy, 0, 0, 8.0 * HEAD_ROWS * (double)b->vocab},
      {"cross entropy, softcapped", cross_entropy, 1, 0, 8.0 * HEAD_ROWS * (double)b->vocab},
      {"adamw", adamw, 0, 0, 7 * layer},
      {"sum of squares", sum_squares, 0, 0, layer},
      {"accumulate", accumulate, 0, 0, 3 * thin},
  };
  printf("hidden %llu, seq %llu, micro-batch %llu, vocabulary %llu (%d rows), %lld thread(s), %s\n",
         (unsigned long long)b->hidden, (unsigned long long)b->seq, (unsigned long long)b->batch,
         (unsigned long long)b->vocab, HEAD_ROWS, (long long)settings->threads, b->ops->describe(b->compute));
  printf("ceiling %.1f GFLOP/s\n", bl_ceiling_measure(b->ceiling, 5 * CEILING_MS) * 1e-9);
  measure_linears(b, settings);
  for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
    measure(b, settings, &operations[i]);
  }
}

static bl_status_t run(const void *values, bl_error_t *err) {
  const settings_t *settings = values;
  bench_t bench = {0};
  bl_status_t status = bl_bench_pin(settings->processor, settings->threads, err);
  if (status != BL_OK) {
    return status;
  }
  status = prepare(settings, &bench, err);
  if (status == BL_OK) {
    measure_all(&bench, settings);
    status = bench.ops->status(bench.compute, err);
  }
  release(&bench);
  return status;
}

int bl_bench_ops(int argc, char **argv) {
  for (int i = 0; i < argc; i++) { // memory-bound operations, on any device, with options of their own
    if (strcmp(argv[i], "--device") == 0 || strncmp(argv[i], "--device=", 9) == 0) {
      return bl_bench_ops_device(argc, argv);
    }
  }
  settings_t settings;
  return bl_bench_program(&flags, &settings, run, argc, argv);
}
