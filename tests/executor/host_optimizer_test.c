// SPDX-License-Identifier: Apache-2.0
// Verifies that a device of its own memory trains with the same bits whether its optimizer's state lies there or in memory
// of the host (train.optimizer_memory): both families and dtypes, tied heads and others, schedules with split backwards
// and several chunks a stage, clipped gradients, steps that were given up and begun again; that the device then holds no
// optimizer, in bf16 no masters of what products read, and the host what is planned; and what is refused. The device is the
// one that is not there (tests/late).
#include "executor/rig.h"

#include "compute/model/chunk.h"
#include "device/open.h"
#include "instrumented.h"
#include "model/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#define LATE BALLAST_BINARY_DIR "/tests/late"

static rig_setting_t on_device(const char *model, uint32_t stages, const char *schedule, const char *train) {
  return (rig_setting_t){.model = model,
                         .stages = stages,
                         .schedule = schedule,
                         .path = BL_PATH_SHM,
                         .attention = "flash",
                         .recompute = "none",
                         .train = train,
                         .pipeline = ", device: cuda",
                         .more = "balance: {data_path: shm}\n"};
}

// The same run with the state on the device and on its host, and on a CPU.
static void compare(rig_setting_t setting, const char *dtype, rig_outcome_t *device, rig_outcome_t *host) {
  char train[96];
  snprintf(train, sizeof train, ", dtype: %s", dtype);
  setting.train = train;
  rig_setting_t cpu = setting;
  cpu.pipeline = cpu.more = NULL;
  const rig_outcome_t expected = rig_train(cpu);
  *device = rig_train(setting);
  rig_expect_same(&setting, &expected, device);
  snprintf(train, sizeof train, ", dtype: %s, optimizer_memory: host", dtype);
  *host = rig_train(setting);
  rig_expect_same(&setting, &expected, host);
  assert_true(expected.norms[0] > 0.5); // all steps are clipped
}

static uint64_t held(const rig_outcome_t *outcome, bl_memory_tag_t tag) {
  assert_int_equal(outcome->memory[tag].current_bytes, outcome->memory[tag].planned_bytes);
  return outcome->memory[tag].current_bytes;
}

// What leaves the device and what comes to the host.
static void check_memory(const rig_outcome_t *device, const rig_outcome_t *host, bool mixed) {
  const uint64_t moments = held(device, BL_MEMORY_OPTIMIZER), masters = moments / 2; // laid out alike
  assert_int_equal(held(device, BL_MEMORY_OPTIMIZER_HOST), 0);
  assert_int_equal(held(host, BL_MEMORY_OPTIMIZER), 0);
  assert_int_equal(held(host, BL_MEMORY_OPTIMIZER_HOST), moments + 2 * masters);
  assert_int_equal(held(host, BL_MEMORY_GRADIENTS), held(device, BL_MEMORY_GRADIENTS));
  if (mixed) { // gains, biases and what is looked up stay
    assert_true(held(host, BL_MEMORY_WEIGHTS) < held(device, BL_MEMORY_WEIGHTS));
    assert_true(held(host, BL_MEMORY_WEIGHTS) > held(device, BL_MEMORY_WEIGHTS) - masters);
  } else {
    assert_int_equal(held(host, BL_MEMORY_WEIGHTS), held(device, BL_MEMORY_WEIGHTS));
  }
  for (int tag = 0; tag < BL_MEMORY_TAGS; tag++) {
    if (tag != BL_MEMORY_OPTIMIZER && tag != BL_MEMORY_OPTIMIZER_HOST && tag != BL_MEMORY_WEIGHTS) {
      assert_int_equal(held(host, (bl_memory_tag_t)tag), held(device, (bl_memory_tag_t)tag));
    }
  }
}

static void same_bits(void **state) {
  (void)state;
  static const char *const dtypes[] = {"fp32", "bf16"};
  const rig_setting_t settings[] = {
      on_device(NULL, 1, "1f1b", NULL), // GPT-2, whose tied head is with the embedding
      on_device(NULL, 2, "zb-h1", NULL),    on_device(NULL, 2, "interleaved", NULL),
      on_device("llama", 1, "gpipe", NULL), on_device("llama", 2, "1f1b", NULL),
      on_device("gemma3", 2, "1f1b", NULL),
  };
  for (size_t i = 0; i < 2 * sizeof settings / sizeof settings[0]; i += FEW_OR_ALL(3, 1)) {
    rig_outcome_t device, host;
    compare(settings[i / 2], dtypes[i % 2], &device, &host);
    check_memory(&device, &host, i % 2 == 1);
  }
}

static void steps_that_are_given_up(void **state) {
  (void)state;
  rig_setting_t setting = on_device(NULL, 2, "1f1b", NULL);
  setting.fault = RIG_CANCEL_FIRST;
  rig_outcome_t device, host;
  compare(setting, "fp32", &device, &host);
  compare(setting, "bf16", &device, &host);
}

// Gradients that are still on their way when the votes have been counted are waited for.
static void copies_that_take_long(void **state) {
  (void)state;
  assert_int_equal(setenv("LATE_COPY_US", "5000", 1), 0);
  rig_outcome_t device, host;
  compare(on_device(NULL, 1, "1f1b", NULL), "fp32", &device, &host);
  compare(on_device("llama", 2, "1f1b", NULL), "bf16", &device, &host);
  assert_int_equal(unsetenv("LATE_COPY_US"), 0);
}

// ---- the bytes that are planned

static void planned(uint64_t expected, uint64_t held_bytes) {
  assert_int_equal(expected, held_bytes);
}

static bl_engine_t *make(const char *job, bl_status_t *status, bl_error_t *err) {
  const bl_engine_options_t options = {
      .job = job, .job_bytes = strlen(job), .gpu = -1, .first_core = -1, .tcp_host = "127.0.0.1"};
  bl_engine_t *engine = NULL;
  *status = bl_engine_create(&options, &engine, err);
  return engine;
}

static const char *write_job(char job[1024], const char *train, const char *pipeline, const char *more) {
  snprintf(job, 1024,
           "model: {family: llama, layers: 4, hidden: 36, heads: 2, ffn: 100, vocab: 101, seq: 15}\n"
           "data: {train: '%s/tests/golden/gpt2/tokens.bin', format: bin, order: sequential}\n"
           "train: {steps: 3, micro_batch: 3, micro_batches: 4%s}\n"
           "pipeline: {stages: 2, threads: 1%s}\n%s",
           BALLAST_SOURCE_DIR, train, pipeline, more);
  return job;
}

// As lib/model counts them; the second copy of a run that goes ahead of its commits is on the host, too.
static void planned_bytes_are_held(void **state) {
  (void)state;
  for (int i = 0; i < 4; i++) {
    const bool mixed = i % 2 == 1, ahead = i / 2 == 1;
    char job[1024], train[128];
    snprintf(train, sizeof train, ", dtype: %s, post_validation: %s, optimizer_memory: host", mixed ? "bf16" : "fp32",
             ahead ? "true" : "false");
    bl_error_t err = {0};
    bl_status_t status;
    bl_engine_t *engine = make(write_job(job, train, ", device: cuda", "balance: {data_path: shm}\n"), &status, &err);
    if (status != BL_OK) {
      fail_msg("%s", err.text);
    }
    const bl_chunk_sizes_t sizes = bl_chunk_sizes(engine->chunks[0].chunk);
    const bl_operation_memory_t operations = {.packed_layer_bytes = sizes.packed_layer_bytes,
                                              .packed_head_bytes = sizes.packed_head_bytes};
    const bl_stage_memory_request_t request = {.model = &engine->training.model,
                                               .spans =
                                                   &engine->training.partition.spans[engine->chunks[0].virtual_stage],
                                               .span_count = 1,
                                               .options = engine->training.layout,
                                               .operations = &operations,
                                               .micro_batches = 4,
                                               .asynchronous = true,
                                               .optimizer_on_host = true,
                                               .post_validation = ahead};
    bl_stage_memory_t memory;
    assert_int_equal(bl_stage_memory(&request, &memory), BL_OK);
    planned(memory.weight_bytes, bl_memory_usage(&engine->account, BL_MEMORY_WEIGHTS).current_bytes);
    planned(memory.host_bytes, bl_memory_usage(&engine->account, BL_MEMORY_OPTIMIZER_HOST).current_bytes);
    planned(memory.shadow_bytes, bl_memory_usage(&engine->account, BL_MEMORY_SHADOW).current_bytes);
    planned(0, bl_memory_usage(&engine->account, BL_MEMORY_OPTIMIZER).current_bytes);
    assert_true((memory.shadow_bytes > 0) == ahead);
    const volatile uint8_t *on_host[] = {engine->optimizer.base, engine->shadow.base}; // of the device: the test ends
    for (size_t k = 0; k < (ahead ? 2 : 1); k++) {
      (void)*on_host[k];
    }
    bl_engine_destroy(engine);
  }
}

static void refused(const char *pipeline, const char *more, bl_status_t expected, const char *words) {
  char job[1024];
  bl_error_t err = {0};
  bl_status_t status;
  bl_engine_t *engine = make(write_job(job, ", optimizer_memory: host", pipeline, more), &status, &err);
  assert_null(engine);
  assert_int_equal(status, expected);
  if (strstr(err.text, words) == NULL) {
    fail_msg("'%s' is not in '%s'", words, err.text);
  }
}

// A host without so much memory is found out before anything is made.
static void too_little_memory_of_the_host(void **state) {
  (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  skip(); // their shadow takes more address space than any limit leaves
#endif
  struct rlimit before;
  long pages = 0;
  FILE *used = fopen("/proc/self/statm", "r");
  assert_true(used != NULL && fscanf(used, "%ld", &pages) == 1 && getrlimit(RLIMIT_AS, &before) == 0);
  fclose(used);
  char job[1024];
  snprintf(job, sizeof job,
           "model: {family: gpt2, layers: 4, hidden: 1024, heads: 8, vocab: 101, seq: 15}\n"
           "data: {train: '%s/tests/golden/gpt2/tokens.bin', format: bin}\n"
           "train: {steps: 1, micro_batch: 1, micro_batches: 1, optimizer_memory: host}\n"
           "pipeline: {stages: 1, device: cuda}\nbalance: {data_path: shm}\n",
           BALLAST_SOURCE_DIR);
  struct rlimit little = before;
  little.rlim_cur = (rlim_t)pages * 4096 + (512u << 20); // of 770 MiB, and some for whatever starts
  assert_int_equal(setrlimit(RLIMIT_AS, &little), 0);
  bl_error_t err = {0};
  bl_status_t status;
  bl_engine_t *engine = make(job, &status, &err);
  assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
  assert_null(engine);
  assert_int_equal(status, BL_EXHAUSTED);
  if (strstr(err.text, "train.optimizer_memory: host: stage 0 needs 7") == NULL) {
    fail_msg("%s", err.text);
  }
}

static void what_is_refused(void **state) {
  (void)state;
  refused("", "", BL_UNIMPLEMENTED, "train.optimizer_memory: host saves nothing where the device is the host itself");
  refused(", device: cuda", "parallel: {data: 2}\n", BL_UNIMPLEMENTED,
          "train.optimizer_memory: host takes gradients that are one sum");
}

int main(void) {
  if (setenv("BALLAST_MODULES", LATE, 1) != 0 || setenv("LATE_DEVICES", "1", 1) != 0) {
    return 1;
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_refused),         cmocka_unit_test(too_little_memory_of_the_host),
      cmocka_unit_test(planned_bytes_are_held),  cmocka_unit_test(same_bits),
      cmocka_unit_test(steps_that_are_given_up), cmocka_unit_test(copies_that_take_long),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
