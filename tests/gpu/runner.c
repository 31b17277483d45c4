// SPDX-License-Identifier: Apache-2.0
// What can be checked of a back end without services and without a test library: a program of its own for machines that
// have a GPU, CUDA and CMake, and not much else (tests/gpu/run.sh).
//
//   gpu-runner operations [cuda|host|reference]      every case against the fp64 reference, and the host where it is built; a
//                                                    GPU against the reference with larger ones too
//   gpu-runner trajectories [cuda|host|reference] [run]    20 steps of small models, beside the reference and golden.txt
//   gpu-runner devices                               the GPUs of this machine
//   gpu-runner names | runs                          what can be named as an operation, as a run
//   gpu-runner golden > tests/gpu/golden.txt         writes the host's losses
//
// golden.txt is that of the sources it was built from, or what BALLAST_GOLDEN names.
// Exit code 77 and the reason where there is no such back end here.
#include "base/error.h"
#include "compute/ops/select.h"
#include "compute/trainer.h"
#include "device/libraries.h"
#include "ops/cases/op_case.h"
#include "ops/reference/backend.h"
#include "stop.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS         20
#define MICRO_BATCHES 2
#define MICRO_BATCH   2
#define TOLERANCE     1e-3 // of a loss, relative
#define SKIPPED       77

typedef struct {
  const bl_ops_t *ops;
  bl_device_t *device;
} back_end_t;

static int skip_because(const char *reason) {
  printf("SKIPPED: %s\n", reason);
  return SKIPPED;
}

static bl_status_t open_back_end(const char *name, back_end_t *back_end, bl_error_t *err) {
  if (strcmp(name, "reference") == 0) {
    *back_end = (back_end_t){bl_ops_reference(), bl_device_host()};
    return BL_OK;
  }
  const bl_device_kind_t kind = strcmp(name, "host") == 0 ? BL_DEVICE_HOST : BL_DEVICE_CUDA;
  bl_status_t status = bl_ops_select(kind, &back_end->ops, err);
  return status == BL_OK ? bl_device_open(kind, 0, &back_end->device, err) : status;
}

// ---- operations

static bl_status_t start_back_end(const back_end_t *back_end, op_host_t *host, bl_error_t *err) {
  const bl_compute_options_t options = {.threads = 1, .device = back_end->device};
  *host = (op_host_t){.ops = back_end->ops, .device = back_end->device};
  bl_status_t status = host->ops->create(&options, &host->compute, err);
  if (status == BL_OK) {
    host->ops->attach(host->compute);
  }
  return status;
}

// `only`: the name of an operation; NULL: all.
static bool is_wanted(const op_case_t *one, const char *only) {
  return only == NULL || strcmp(one->kind->name, only) == 0;
}

// A line for each operation that has cases.
static int list_operations(void) {
  for (size_t i = 0; i < op_cases_count; i++) {
    bool said = false;
    for (size_t k = 0; k < i && !said; k++) {
      said = op_cases[k].kind == op_cases[i].kind;
    }
    if (!said) {
      printf("%s\n", op_cases[i].kind->name);
    }
  }
  return 0;
}

typedef struct {
  const op_case_t *cases;
  size_t count;
} table_t;

// Those of a back end. A GPU is shown larger ones too.
static size_t tables_of(const op_host_t *host, table_t tables[3]) {
  tables[0] = (table_t){op_cases, op_cases_count};
  tables[1] = (table_t){op_wide_cases, op_wide_cases_count};
  tables[2] = (table_t){op_gpu_cases, op_gpu_cases_count};
  return host->device->host_memory ? 1 : 3;
}

// Every case on both, one beside the other.
static size_t check_beside_host(const op_host_t *host, const char *only) {
  back_end_t beside = {0};
  op_host_t other;
  bl_error_t err = {0};
  op_errors_t worst = {0};
  size_t failed = 0;
  if (open_back_end("host", &beside, &err) != BL_OK || start_back_end(&beside, &other, &err) != BL_OK) {
    printf("not compared with the host's: %s\n", err.text);
    return 0;
  }
  size_t count = 0;
  for (size_t i = 0; i < op_cases_count; i++) {
    if (is_wanted(&op_cases[i], only)) {
      count++;
      failed += !op_case_agree(host, &other, &op_cases[i], &worst);
    }
  }
  printf("%zu of %zu cases agree with the host's; largest normalised mean square error %.2g in fp32, %.2g in bf16\n",
         count - failed, count, worst.fp32, worst.bf16);
  other.ops->destroy(other.compute);
  bl_device_close(beside.device);
  return failed;
}

static int check_operations(const back_end_t *back_end, const char *only) {
  bl_error_t err = {0};
  op_host_t host;
  if (start_back_end(back_end, &host, &err) != BL_OK) {
    return skip_because(err.text);
  }
  printf("%s; %s\n", bl_device_describe(back_end->device), host.ops->describe(host.compute));
  size_t failed = 0;
  op_errors_t worst = {0};
  size_t count = 0;
  table_t tables[3];
  const size_t table_count = tables_of(&host, tables);
  for (size_t n = 0; n < table_count; n++) {
    for (size_t i = 0; i < tables[n].count; i++) {
      if (is_wanted(&tables[n].cases[i], only)) {
        count++;
        failed += !op_case_within(&host, &tables[n].cases[i], &worst);
      }
    }
  }
  printf("%zu of %zu cases agree; largest normalised mean square error %.2g in fp32, %.2g in bf16\n", count - failed,
         count, worst.fp32, worst.bf16);
  if (count == 0) {
    printf("no operation is called %s: gpu-runner names\n", only);
    failed = 1;
  }
  if (failed < count) {
    failed += check_beside_host(&host, only);
  } else {
    printf("not compared with the host's: no case agrees\n");
  }
  host.ops->destroy(host.compute);
  op_release(&host);
  return failed > 0;
}

// ---- trajectories

typedef struct {
  const char *name;
  bl_family_t family;
  bl_variant_t variant; // llama: the model has what models of this name have beside
  bl_dtype_t dtype;
  bl_attention_t attention;
  bool lean;
  uint32_t chunks;
  uint32_t parts;  // of a layer
  uint32_t slices; // of sequences
} run_t;

static const run_t runs[] = {
    {"gpt2-fp32-naive", BL_FAMILY_GPT2, 0, BL_DTYPE_FP32, BL_ATTENTION_NAIVE, false, 1, 1, 1},
    {"gpt2-fp32-flash", BL_FAMILY_GPT2, 0, BL_DTYPE_FP32, BL_ATTENTION_FLASH, true, 2, 1, 1},
    {"llama-fp32-flash", BL_FAMILY_LLAMA, 0, BL_DTYPE_FP32, BL_ATTENTION_FLASH, false, 2, 1, 1},
    {"gpt2-bf16-naive", BL_FAMILY_GPT2, 0, BL_DTYPE_BF16, BL_ATTENTION_NAIVE, true, 1, 1, 1},
    {"llama-bf16-flash", BL_FAMILY_LLAMA, 0, BL_DTYPE_BF16, BL_ATTENTION_FLASH, true, 2, 1, 1},
    {"gemma2-fp32-naive", BL_FAMILY_LLAMA, BL_VARIANT_GEMMA2, BL_DTYPE_FP32, BL_ATTENTION_NAIVE, false, 2, 1, 1},
    {"gemma2-bf16-naive", BL_FAMILY_LLAMA, BL_VARIANT_GEMMA2, BL_DTYPE_BF16, BL_ATTENTION_NAIVE, true, 2, 1, 1},
    {"gemma2-bf16-flash", BL_FAMILY_LLAMA, BL_VARIANT_GEMMA2, BL_DTYPE_BF16, BL_ATTENTION_FLASH, false, 1, 1, 1},
    {"gemma3-fp32-flash", BL_FAMILY_LLAMA, BL_VARIANT_GEMMA3, BL_DTYPE_FP32, BL_ATTENTION_FLASH, false, 1, 1, 1},
    {"gemma3-bf16-flash", BL_FAMILY_LLAMA, BL_VARIANT_GEMMA3, BL_DTYPE_BF16, BL_ATTENTION_FLASH, false, 1, 1, 1},
    {"qwen2-bf16-flash", BL_FAMILY_LLAMA, BL_VARIANT_QWEN2, BL_DTYPE_BF16, BL_ATTENTION_FLASH, true, 2, 1, 1},
    {"qwen3-bf16-flash", BL_FAMILY_LLAMA, BL_VARIANT_QWEN3, BL_DTYPE_BF16, BL_ATTENTION_FLASH, true, 2, 1, 1},
    {"phi3-bf16-flash", BL_FAMILY_LLAMA, BL_VARIANT_PHI3, BL_DTYPE_BF16, BL_ATTENTION_FLASH, true, 2, 1, 1},
    {"gpt2-fp32-parts", BL_FAMILY_GPT2, 0, BL_DTYPE_FP32, BL_ATTENTION_NAIVE, false, 2, 2, 1},
    {"gpt2-bf16-parts", BL_FAMILY_GPT2, 0, BL_DTYPE_BF16, BL_ATTENTION_FLASH, false, 1, 2, 1},
    {"gemma2-bf16-parts", BL_FAMILY_LLAMA, BL_VARIANT_GEMMA2, BL_DTYPE_BF16, BL_ATTENTION_NAIVE, true, 2, 2, 1},
    {"gpt2-fp32-naive-slices", BL_FAMILY_GPT2, 0, BL_DTYPE_FP32, BL_ATTENTION_NAIVE, false, 2, 1, 4},
    {"llama-bf16-flash-slices", BL_FAMILY_LLAMA, 0, BL_DTYPE_BF16, BL_ATTENTION_FLASH, true, 2, 1, 2},
    {"gemma2-bf16-flash-slices", BL_FAMILY_LLAMA, BL_VARIANT_GEMMA2, BL_DTYPE_BF16, BL_ATTENTION_FLASH, false, 2, 1, 4},
};
#define RUNS (sizeof runs / sizeof runs[0])

// Windows are shorter than sequences, and the first of the two layers has one; softcaps are small enough to matter.
// Norms of what projections make are left to fp32: they turn roundings of bf16 into 2e-3 of a loss within 20 steps.
static void add_properties(bl_model_t *model, bool fp32) {
  switch (model->variant) {
  case BL_VARIANT_GEMMA2:
    model->score_scale = 2;
    model->score_softcap = 0.5;
    model->logit_softcap = 6;
    break;
  case BL_VARIANT_GEMMA3:
    model->head_norm = true;
    model->score_scale = 0.15;
    model->window_rope.theta = 500;
    break;
  case BL_VARIANT_QWEN2:
    model->qkv_bias = true;
    return;
  case BL_VARIANT_QWEN3:
    model->head_norm = true;
    return;
  case BL_VARIANT_PHI3:
    model->fused = true;
    model->rope.dims = 24;
    model->window = 11;
    return;
  default:
    return;
  }
  model->gate = BL_GATE_GELU;
  model->gains_from_one = model->tied = true;
  model->post_norm = fp32;
  model->embedding_scale = 2;
  model->window = 9;
  model->window_period = 2;
}

static bl_model_t model_of(const run_t *run) {
  const bool llama = run->family == BL_FAMILY_LLAMA;
  bl_model_t model = {.family = run->family,
                      .variant = run->variant,
                      .layers = 2,
                      .hidden = 64,
                      .heads = 2,
                      .kv_heads = llama && run->parts == 1 ? 1 : 2,
                      .head_dim = 32,
                      .ffn = llama ? 128 : 256,
                      .vocab = run->parts == 1 ? 128 : 131, // the last part has 3
                      .seq = 32,
                      .positions = llama ? 0 : 32,
                      .tied = !llama,
                      .norm_epsilon = BL_NORM_EPSILON_DEFAULT,
                      .rope.theta = BL_ROPE_THETA_DEFAULT};
  add_properties(&model, run->dtype == BL_DTYPE_FP32);
  return model;
}

// A text to learn: each token follows from the one before, most of the time.
static void write_tokens(uint64_t step, const bl_model_t *model, int32_t *tokens, int32_t *labels) {
  const uint64_t count = (uint64_t)MICRO_BATCHES * MICRO_BATCH * model->seq;
  uint64_t state = step * 7919 + 1;
  for (uint64_t i = 0; i <= count; i++) {
    if (i < count) {
      tokens[i] = (int32_t)(state % model->vocab);
    }
    if (i > 0) {
      labels[i - 1] = (int32_t)(state % model->vocab);
    }
    state = i % 7 == 6 ? state * 6364136223846793005ull + step : state * 5 + 3;
    state &= 0xffffffffull;
  }
}

static void train(const run_t *run, const back_end_t *back_end, double losses[STEPS]) {
  trainer_options_t options = {.model = model_of(run),
                               .chunks = run->chunks,
                               .micro_batches = MICRO_BATCHES,
                               .layout = {.micro_batch = MICRO_BATCH,
                                          .attention = run->attention,
                                          .backward = run->lean ? BL_BACKWARD_FUSED : BL_BACKWARD_SPLIT,
                                          .lean = run->lean,
                                          .slices = run->slices,
                                          .dtype = run->dtype,
                                          .layer_parts.count = run->parts},
                               .seed = 1,
                               .ops = back_end->ops,
                               .device = back_end->device};
  trainer_t *trainer = trainer_create(&options);
  const uint64_t count = (uint64_t)MICRO_BATCHES * MICRO_BATCH * options.model.seq;
  int32_t *tokens = malloc(count * sizeof *tokens), *labels = malloc(count * sizeof *labels);
  MUST(tokens != NULL && labels != NULL);
  trainer_op_t ops[TRAINER_OPS_MAX];
  const size_t op_count = trainer_make_order((trainer_order_t){.one_forward_one_backward = true, .slices = run->slices},
                                             run->chunks, MICRO_BATCHES, ops);
  const bl_adamw_settings_t settings = {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  for (uint64_t step = 1; step <= STEPS; step++) {
    double parts[MICRO_BATCHES];
    write_tokens(step, &options.model, tokens, labels);
    trainer_run(trainer, tokens, labels, ops, op_count, parts);
    losses[step - 1] = (parts[0] + parts[1]) / MICRO_BATCHES;
    const double norm = trainer_gradient_norm(trainer);
    trainer_update(trainer, &settings, step, 2e-3, 1, norm);
  }
  free(tokens);
  free(labels);
  trainer_destroy(trainer);
}

static bool follows(const run_t *run, const double found[STEPS], const double wanted[STEPS], const char *whose) {
  double worst = 0;
  for (int step = 0; step < STEPS; step++) {
    const double error = fabs(found[step] - wanted[step]) / fabs(wanted[step]);
    worst = error > worst || isnan(error) ? error : worst;
  }
  const bool ok = worst <= TOLERANCE;
  printf("%s %-18s loss %.6f -> %.6f, at most %.2g from %s\n", ok ? "ok" : "FAILED", run->name, found[0],
         found[STEPS - 1], worst, whose);
  return ok;
}

// The losses of a run in golden.txt; false when there are none.
static bool read_golden(const char *path, const char *name, double losses[STEPS]) {
  FILE *file = fopen(path, "r");
  char line[256];
  int seen = 0;
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    char run[64];
    int step;
    double loss;
    if (sscanf(line, "%63s %d %lf", run, &step, &loss) == 3 && strcmp(run, name) == 0 && step >= 1 && step <= STEPS) {
      losses[step - 1] = loss;
      seen++;
    }
  }
  if (file != NULL) {
    fclose(file);
  }
  return seen == STEPS;
}

static int list_runs(void) {
  for (size_t i = 0; i < RUNS; i++) {
    printf("%s\n", runs[i].name);
  }
  return 0;
}

static int check_trajectories(const back_end_t *back_end, const char *only) {
  const back_end_t reference = {bl_ops_reference(), bl_device_host()};
  const char *golden = getenv("BALLAST_GOLDEN");
  golden = golden != NULL ? golden : BALLAST_SOURCE_DIR "/tests/gpu/golden.txt";
  bool ok = true;
  printf("%s\n", bl_device_describe(back_end->device));
  for (size_t i = 0; i < RUNS; i++) {
    double found[STEPS], wanted[STEPS];
    if (only != NULL && strcmp(only, runs[i].name) != 0) {
      continue;
    }
    train(&runs[i], back_end, found);
    MUST(found[STEPS - 1] < found[0]);
    if (back_end->ops != reference.ops) {
      train(&runs[i], &reference, wanted);
      ok = follows(&runs[i], found, wanted, "the fp64 reference") && ok;
    }
    if (!read_golden(golden, runs[i].name, wanted)) {
      STOP("%s has no losses of %s", golden, runs[i].name);
    }
    ok = follows(&runs[i], found, wanted, "golden.txt (the host's)") && ok;
  }
  return !ok;
}

static int write_golden(const back_end_t *back_end) {
  printf("# Losses of the runs of runner.c on the host back end (oneDNN): run, step, loss.\n");
  for (size_t i = 0; i < RUNS; i++) {
    double losses[STEPS];
    train(&runs[i], back_end, losses);
    for (int step = 0; step < STEPS; step++) {
      printf("%s %d %.17g\n", runs[i].name, step + 1, losses[step]);
    }
  }
  return 0;
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "", *name = argc > 2 ? argv[2] : "cuda";
  if (strcmp(what, "devices") == 0) {
    char text[1024];
    uint32_t count;
    bl_device_survey(BL_DEVICE_CUDA, text, sizeof text);
    printf("%s\n", text);
    if (bl_device_list(BL_DEVICE_CUDA, NULL, 0, &count, NULL) != BL_OK || count == 0) {
      return SKIPPED;
    }
    bl_device_libraries_print(BL_DEVICE_CUDA, stdout);
    return 0;
  }
  if (strcmp(what, "names") == 0) {
    return list_operations();
  }
  if (strcmp(what, "runs") == 0) {
    return list_runs();
  }
  const bool golden = strcmp(what, "golden") == 0, operations = strcmp(what, "operations") == 0;
  if (!golden && !operations && strcmp(what, "trajectories") != 0) {
    fprintf(stderr, "usage: gpu-runner operations [cuda|host|reference] [operation], gpu-runner trajectories "
                    "[cuda|host|reference] [run],\n"
                    "       gpu-runner devices, gpu-runner names, gpu-runner runs, gpu-runner golden\n");
    return 2;
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  back_end_t back_end = {0};
  bl_error_t err = {0};
  if (open_back_end(golden ? "host" : name, &back_end, &err) != BL_OK) {
    return skip_because(err.text);
  }
  int result = golden       ? write_golden(&back_end)
               : operations ? check_operations(&back_end, argc > 3 ? argv[3] : NULL)
                            : check_trajectories(&back_end, argc > 3 ? argv[3] : NULL);
  bl_device_close(back_end.device);
  return result;
}
