// SPDX-License-Identifier: Apache-2.0
// Verifies that a stage on a device that is told ahead runs everything it has planned, forward and backward, before it exists, and
// that gradients, moments and what is counted are as if it had not. On the device that is not there (tests/late).
#include "executor/engine.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define FOLDER BALLAST_BINARY_DIR "/tests/late"

static const char module[] = FOLDER "/libballast-cuda-compute.so";

static void zeros(const bl_engine_t *engine, const bl_arena_t *arena) {
  uint8_t *bytes = malloc(arena->bytes);
  bl_error_t err;
  assert_non_null(bytes);
  assert_int_equal(bl_device_copy(engine->device, NULL, bytes, arena->base, arena->bytes, &err), BL_OK);
  for (uint64_t i = 0; i < arena->bytes; i++) {
    assert_int_equal(bytes[i], 0);
  }
  free(bytes);
}

static void check(const char *recompute, const char *schedule, uint32_t slices, uint32_t stage) {
  char job[1024], folder[64] = "/tmp/ballast-warm-test-XXXXXX", path[96];
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/data", folder);
  snprintf(job, sizeof job,
           "model: {family: gpt2, layers: 4, hidden: 32, heads: 2, vocab: 101, seq: 16, tied: true}\n"
           "data: {train: '%s/tests/golden/gpt2/tokens.bin', format: bin, order: sequential}\n"
           "train: {steps: 3, micro_batch: 2, micro_batches: 4}\n"
           "pipeline: {stages: 2, schedule: %s, recompute: %s, slices: %u, device: cuda}\n",
           BALLAST_SOURCE_DIR, schedule, recompute, slices);
  bl_engine_options_t options = {.job = job,
                                 .job_bytes = strlen(job),
                                 .rank = stage,
                                 .gpu = 0,
                                 .first_core = -1,
                                 .unix_path = path,
                                 .tcp_host = "127.0.0.1"};
  size_t before[3] = {0}, after[3];
  void (*plans)(size_t counts[3]) = NULL;
  void *handle = dlopen(module, RTLD_NOW | RTLD_NOLOAD), *found = handle == NULL ? NULL : dlsym(handle, "late_plans");
  memcpy(&plans, &found, sizeof plans);
  if (plans != NULL) {
    plans(before);
  }
  bl_engine_t *engine;
  bl_error_t err;
  if (bl_engine_create(&options, &engine, &err) != BL_OK) {
    fail_msg("%s\n%s", job, err.text);
  }
  handle = dlopen(module, RTLD_NOW | RTLD_NOLOAD);
  found = dlsym(handle, "late_plans");
  memcpy(&plans, &found, sizeof plans);
  plans(after);
  const size_t planned = after[0] - before[0];
  assert_true(planned >= 5);
  assert_int_equal(after[1] - before[1], planned - (stage == 1)); // all but a row of logits to draw from
  assert_int_equal(after[2] - before[2], planned - (stage == 1));
  zeros(engine, &engine->gradients);
  zeros(engine, &engine->optimizer);
  zeros(engine, &engine->edges);
  const bl_arena_t slot = {.base = bl_engine_slot(engine, 0), .bytes = engine->slot_bytes};
  zeros(engine, &slot);
  if (slices > 1) {
    zeros(engine, &engine->kv_cache);
  }
  assert_int_equal(engine->losses[0].first_bad_row, 0);
  bl_engine_destroy(engine);
  assert_int_equal(rmdir(folder), 0);
}

static void all_that_is_planned_runs_first(void **state) {
  (void)state;
  for (uint32_t stage = 0; stage < 2; stage++) {
    check("none", "1f1b", 1, stage);
    check("full", "1f1b", 1, stage);
    check("attention", "zb-h1", 1, stage);
    check("none", "seq1f1b", 4, stage);
    check("full", "zb-h1", 2, stage);
  }
}

int main(void) {
  if (access(module, R_OK) != 0) {
    printf("SKIPPED: tests/late is not built\n");
    return 77;
  }
  setenv("BALLAST_MODULES", FOLDER, 1);
  const struct CMUnitTest tests[] = {cmocka_unit_test(all_that_is_planned_runs_first)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
