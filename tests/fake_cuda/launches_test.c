// SPDX-License-Identifier: Apache-2.0
// Verifies how many kernels and products a layer takes, which the CPU has to launch one by one: in forward and backward of a
// micro-batch; bf16, naive and flash attention, whose plans are one launch each here: cuDNN is reported to make three or four
// kernels of a backward one. Counted on a CUDA that is none, as the difference between models of three layers and of two. For
// none of them does the CPU wait. In the update all tensors share launches, whose number is that of the whole model. A slice
// takes as many as a micro-batch, one to keep its page, from the second slice on two to gather pages, and in flash's backward
// one to take gradients of keys apart, which naive attention has anyway. The numbers are today's, and must not grow; fewer
// belong into the table.
#include "fake_cuda/fake_cuda.h"

#include "compute/ops/select.h"
#include "compute/trainer.h"
#include "device/open.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NAMES 4096

typedef struct {
  uint64_t run, update;
  uint64_t waits; // of the CPU for the device, in the run
} launches_t;

static bl_device_t *device;
static fake_cuda_launched_fn launched;
static fake_cuda_figures_fn figures;

static uint64_t waits_so_far(void) {
  fake_cuda_figures_t now;
  figures(&now);
  return now.host_waits;
}

static void find(const char *name, void *function, size_t bytes) {
  void *found = dlsym(dlopen("libfake-cuda.so", RTLD_NOW | RTLD_NOLOAD), name);
  memcpy(function, &found, bytes);
}

static int open_device(void **state) {
  (void)state;
  bl_error_t err = {0};
  if (bl_device_open(BL_DEVICE_CUDA, 0, &device, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  find("fake_cuda_launched", &launched, sizeof launched);
  find("fake_cuda_figures", &figures, sizeof figures);
  return 0;
}

// Of count's model, whose head is not tied; in layers of several parts all but norms and the biases that are added once count
// several times.
static uint64_t parameters_of(const char *family, uint32_t parts, uint32_t layers) {
  return strcmp(family, "llama") == 0 ? 1 + 2 * parts + (2 + 7 * parts) * layers
                                      : 2 + 3 * parts + (6 + 6 * parts) * layers;
}

static launches_t count(const char *family, bl_attention_t attention, uint32_t parts, uint32_t slices, uint32_t layers,
                        bool prints) {
  bl_error_t err = {0};
  const bl_ops_t *ops;
  if (bl_ops_select(BL_DEVICE_CUDA, &ops, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  const bool llama = strcmp(family, "llama") == 0;
  const bl_model_t model = {.family = llama ? BL_FAMILY_LLAMA : BL_FAMILY_GPT2,
                            .layers = layers,
                            .hidden = 128,
                            .heads = 2,
                            .kv_heads = 2,
                            .head_dim = 64,
                            .ffn = llama ? 256 : 512,
                            .vocab = 256,
                            .seq = 64,
                            .positions = llama ? 0 : 64,
                            .norm_epsilon = BL_NORM_EPSILON_DEFAULT,
                            .rope.theta = BL_ROPE_THETA_DEFAULT};
  trainer_options_t options = {.model = model,
                               .chunks = 1,
                               .micro_batches = 1,
                               .layout = {.micro_batch = 1,
                                          .slices = slices,
                                          .dtype = BL_DTYPE_BF16,
                                          .attention = attention,
                                          .layer_parts.count = parts},
                               .prepack = true,
                               .seed = 1,
                               .ops = ops,
                               .device = device};
  trainer_t *trainer = trainer_create(&options);
  static int32_t tokens[64];
  static const char *names[NAMES];
  double loss;
  launches_t launches;
  trainer_op_t order[TRAINER_OPS_MAX];
  const size_t op_count = trainer_make_order((trainer_order_t){.slices = slices}, 1, 1, order);
  (void)launched(names, NAMES);
  launches.waits = waits_so_far();
  trainer_run(trainer, tokens, tokens, order, op_count, &loss);
  launches.run = launched(names, NAMES);
  launches.waits = waits_so_far() - launches.waits;
  for (uint64_t i = 0; i < launches.run && prints; i++) {
    printf("%s %s\n", family, names[i]);
  }
  const bl_adamw_settings_t settings = {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8};
  trainer_update(trainer, &settings, 1, 1e-3, 0, 1);
  launches.update = launched(names, NAMES);
  trainer_destroy(trainer);
  return launches;
}

static void of_a_layer(void **state) {
  (void)state;
  static const struct {
    const char *family;
    bl_attention_t attention;
    uint32_t parts, slices;
    uint64_t run;
  } most[] = {{"gpt2", BL_ATTENTION_NAIVE, 1, 1, 31},  {"gpt2", BL_ATTENTION_FLASH, 1, 1, 25},
              {"llama", BL_ATTENTION_NAIVE, 1, 1, 32}, {"llama", BL_ATTENTION_FLASH, 1, 1, 26},
              {"gpt2", BL_ATTENTION_FLASH, 2, 1, 52},  {"llama", BL_ATTENTION_FLASH, 2, 1, 55},
              {"llama", BL_ATTENTION_NAIVE, 1, 2, 68}, {"llama", BL_ATTENTION_FLASH, 1, 2, 58}};
  for (size_t i = 0; i < sizeof most / sizeof most[0]; i++) {
    const bool prints = getenv("BALLAST_TEST_PRINT") != NULL;
    const launches_t two = count(most[i].family, most[i].attention, most[i].parts, most[i].slices, 2, false);
    const launches_t three = count(most[i].family, most[i].attention, most[i].parts, most[i].slices, 3, prints);
    const uint64_t run = three.run - two.run;
    printf("%s, %s, parts %u, slices %u: %llu a layer and micro-batch, %llu in the update of three layers\n",
           most[i].family, most[i].attention == BL_ATTENTION_FLASH ? "flash" : "naive", most[i].parts, most[i].slices,
           (unsigned long long)run, (unsigned long long)three.update);
    assert_int_equal(run, most[i].run);
    assert_int_equal(three.waits, two.waits); // no layer makes the CPU wait
    assert_int_equal(three.update, (parameters_of(most[i].family, most[i].parts, 3) + 31) / 32);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(of_a_layer)};
  return cmocka_run_group_tests(tests, open_device, NULL);
}
