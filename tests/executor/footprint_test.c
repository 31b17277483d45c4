// SPDX-License-Identifier: Apache-2.0
// Verifies that what the planner counts for the executor is what a stage holds, to the byte and tag by tag, the operations of
// the back end, the second copy where stages go on ahead of commits and the image of a checkpoint among them: for both
// families and the norms, windows and fused tensors of others (tests/golden), both dtypes, both kinds of attention, every
// recomputation, heads with and without a weight of their own, with fused and with split backwards, with several chunks a
// stage and with two copies of each; and on a device that runs operations later and needs the tokens of all micro-batches
// (tests/late). The pod of a stage has room for it (job/pods.h).
#include "plan/evaluate/footprint.h"

#include "compute/model/operations.h"
#include "executor/executor.h"
#include "job/checkpoint_image.h"
#include "job/pods.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define STAGES 2

typedef struct setting {
  const char *family, *dtype, *attention, *recompute, *schedule;
  bool ahead, saves, other; // of commits; checkpoints; a head that is not what the family has by itself
  bool late;                // on a device
  uint32_t data;            // replicas, of four parts
  uint32_t tensor;          // ranks that share layers of four parts; 0: whole layers
  uint32_t slices;          // of sequences; 0: one
} setting_t;

// Shapes that leave padding in blocks and between tensors.
static void write_model(const setting_t *s, char *model, size_t bytes) {
  const bool gpt2 = strcmp(s->family, "gpt2") == 0;
  if (!gpt2 && strcmp(s->family, "llama") != 0) {
    snprintf(model, bytes, "{config: '%s/tests/golden/%s/config.json', seq: 15}", BALLAST_SOURCE_DIR, s->family);
    return;
  }
  const uint32_t heads = s->tensor > 0 ? 4 : 2; // micro_batch x seq, heads and ffn must divide by the parts
  snprintf(model, bytes, "{family: %s, layers: 8, hidden: %u, heads: %u, vocab: 101, seq: %u, tied: %s%s}", s->family,
           s->tensor > 0 ? 40 : 36, heads, s->tensor > 0 ? 12 : 15, gpt2 != s->other ? "true" : "false",
           gpt2            ? ""
           : s->tensor > 0 ? ", ffn: 100, kv_heads: 4"
                           : ", ffn: 100, kv_heads: 2");
}

// Two pipes, each with a copy of the model.
static bool is_of_both(const setting_t *s) {
  return strcmp(s->schedule, "chimera") == 0 || strcmp(s->schedule, "dualpipe") == 0;
}

static void write_job(const setting_t *s, char *job, size_t bytes) {
  char model[512];
  write_model(s, model, sizeof model);
  snprintf(job, bytes,
           "model: %s\n"
           "data: {train: '%s/tests/golden/gpt2/tokens.bin', format: bin, order: sequential}\n"
           "train: {steps: 3, micro_batch: 3, micro_batches: 4, dtype: %s, post_validation: %s}\n"
           "pipeline: {stages: %u, schedule: %s, attention: %s, recompute: %s, threads: %u, slices: %u%s}\n"
           "parallel: {data: %u, data_parts: %u, tensor: %u, tensor_parts: %u}\n%s",
           model, BALLAST_SOURCE_DIR, s->dtype, s->ahead ? "true" : "false", STAGES, s->schedule, s->attention,
           s->recompute, s->ahead ? 2 : 1, s->slices > 0 ? s->slices : 1, s->late ? ", device: cuda" : "", s->data,
           s->data > 1 || is_of_both(s) ? 4 : 1, s->tensor > 0 ? s->tensor : 1, s->tensor > 0 ? 4 : 1,
           s->saves ? "checkpoint: {folder: /nowhere, every: 1}\n" : "");
}

static void expect(const setting_t *s, uint32_t stage, const char *what, double planned, uint64_t held) {
  if (planned != (double)held) {
    fail_msg("%s, %s, %s attention, recompute %s, %s, stage %u: %s: planned %.0f bytes, held %llu", s->family, s->dtype,
             s->attention, s->recompute, s->schedule, stage, what, planned, (unsigned long long)held);
  }
}

// The overhead is for what is not planned.
static void expect_room_in_a_pod(const setting_t *setting, const bl_engine_t *engine) {
  const bl_policy_t policy = bl_policy_of_job(&engine->job);
  bl_balance_plan_t plan;
  bl_pods_t pods;
  bl_error_t err;
  assert_int_equal(bl_balance_plan_init(&plan, &engine->training, &policy, &err), BL_OK);
  assert_int_equal(bl_pods_of(&engine->training, &plan, &engine->job, 1e6, &pods, &err), BL_OK);
  bl_balance_plan_cleanup(&plan);
  const uint64_t room = pods.stage_bytes - BL_PODS_STAGE_OVERHEAD_BYTES,
                 held = bl_memory_usage_total(&engine->account).current_bytes;
  if (room < held) {
    fail_msg("%s, %s, %s attention, %s, stage %u: a pod has %llu bytes, held are %llu", setting->family, setting->dtype,
             setting->attention, setting->schedule, engine->coords.stage, (unsigned long long)room,
             (unsigned long long)held);
  }
}

static void compare(const setting_t *setting, const bl_engine_t *engine) {
  const bl_training_t *training = &engine->training;
  bl_chunk_span_t spans[16];
  bl_footprint_request_t request = {.stage = {.model = &training->model,
                                              .spans = spans,
                                              .options = training->layout,
                                              .micro_batches = training->schedule->micro_batches,
                                              .asynchronous = setting->late,
                                              .post_validation = setting->ahead,
                                              .copies = bl_grid_copies(&training->grid)},
                                    .slots = engine->slots.count,
                                    .edges = engine->edge_count,
                                    .pages = engine->page_count,
                                    .page_gradients = engine->page_gradient_count,
                                    .image = setting->saves ? bl_checkpoint_image_bytes : NULL};
  bl_operation_memory_t operations;
  bl_error_t err;
  if (bl_operations_measure(engine->ops, engine->device, (uint32_t)engine->job.pipeline.threads, &training->model,
                            training->layout, &operations, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  request.stage.operations = &operations;
  for (uint32_t v = 0; v < training->schedule->virtual_stages; v++) {
    if (training->schedule->stage_of[v] == engine->coords.stage) {
      spans[request.stage.span_count++] = training->partition.spans[v];
    }
  }
  bl_footprint_t planned;
  assert_int_equal(bl_footprint_of_executor(&request, &planned), BL_OK);
  assert_true(planned.slot_bytes > 0 && request.slots > 0 && request.edges > 0 &&
              (planned.shadow > 0) == setting->ahead);
  expect(setting, engine->coords.stage, "a slot", planned.slot_bytes, engine->slot_bytes);
  expect(setting, engine->coords.stage, "all slots", planned.activations, engine->slots.count * engine->slots.bytes);
  expect(setting, engine->coords.stage, "what moves of a block", planned.evict_bytes,
         training->stages[engine->coords.stage].evict_bytes);
  expect(setting, engine->coords.stage, "the KV cache of the job",
         (double)training->stages[engine->coords.stage].kv_cache_bytes,
         bl_memory_usage(&engine->account, BL_MEMORY_KV_CACHE).current_bytes);
  expect(setting, engine->coords.stage, "all of it", bl_footprint_total(&planned),
         bl_memory_usage_total(&engine->account).current_bytes);
  static const struct {
    bl_memory_tag_t tag;
    size_t offset;
  } tags[] = {{BL_MEMORY_SLOTS, offsetof(bl_footprint_t, activations)},
              {BL_MEMORY_EDGES, offsetof(bl_footprint_t, edges)},
              {BL_MEMORY_KV_CACHE, offsetof(bl_footprint_t, kv_cache)},
              {BL_MEMORY_GRADIENTS, offsetof(bl_footprint_t, gradients)},
              {BL_MEMORY_OPTIMIZER, offsetof(bl_footprint_t, optimizer)},
              {BL_MEMORY_WEIGHTS, offsetof(bl_footprint_t, weights)},
              {BL_MEMORY_WORKSPACE, offsetof(bl_footprint_t, workspace)},
              {BL_MEMORY_DATA, offsetof(bl_footprint_t, data)},
              {BL_MEMORY_CHECKPOINT, offsetof(bl_footprint_t, checkpoint)},
              {BL_MEMORY_SHADOW, offsetof(bl_footprint_t, shadow)}};
  for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++) {
    double value;
    memcpy(&value, (const char *)&planned + tags[i].offset, sizeof value);
    expect(setting, engine->coords.stage, bl_memory_tag_name(tags[i].tag), value,
           bl_memory_usage(&engine->account, tags[i].tag).current_bytes);
  }
}

static bl_engine_t *make(const char *job, uint32_t rank, const char *path) {
  bl_engine_options_t options = {.job = job,
                                 .job_bytes = strlen(job),
                                 .rank = rank,
                                 .gpu = -1,
                                 .first_core = -1,
                                 .unix_path = path,
                                 .tcp_host = "127.0.0.1"};
  bl_engine_t *engine;
  bl_error_t err;
  if (bl_engine_create(&options, &engine, &err) != BL_OK) {
    fail_msg("%s\n%s", job, err.text);
  }
  return engine;
}

// What is planned of a stage is what the replica that takes most holds.
static void check(const setting_t *setting) {
  char job[1024], folder[64] = "/tmp/ballast-footprint-test-XXXXXX", path[96];
  write_job(setting, job, sizeof job);
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/data", folder);
  for (uint32_t stage = 0; stage < STAGES; stage++) {
    const uint32_t tensor = setting->tensor > 0 ? setting->tensor : 1;
    uint32_t fullest = stage * tensor;
    uint64_t most = 0;
    for (uint32_t rank = stage * tensor; rank < setting->data * STAGES * tensor && setting->data > 1;
         rank += STAGES * tensor) {
      bl_engine_t *engine = make(job, rank, path);
      const uint64_t bytes = bl_memory_usage_total(&engine->account).current_bytes;
      fullest = bytes > most ? rank : fullest;
      most = bytes > most ? bytes : most;
      bl_engine_destroy(engine);
    }
    bl_engine_t *engine = make(job, fullest, path);
    compare(setting, engine);
    if (!setting->late) {
      expect_room_in_a_pod(setting, engine);
    }
    bl_engine_destroy(engine);
  }
  assert_int_equal(rmdir(folder), 0);
}

static void planned_bytes_are_held(void **state) {
  (void)state;
  static const char *const families[] = {"gpt2", "llama"}, *const dtypes[] = {"fp32", "bf16"},
                           *const attentions[] = {"naive", "flash"},
                           *const recomputes[] = {"none", "attention", "full"},
                           *const schedules[] = {"1f1b", "zb-h1", "interleaved", "v-half"};
  uint32_t seen = 0;
  for (size_t i = 0; i < 2 * 2 * 2 * 3; i++) {
    const setting_t setting = {.family = families[i % 2],
                               .dtype = dtypes[i / 2 % 2],
                               .attention = attentions[i / 4 % 2],
                               .recompute = recomputes[i / 8 % 3],
                               .schedule = schedules[(i + i / 4) % 4],
                               .ahead = i / 2 % 3 == 1,
                               .saves = i / 3 % 2 == 1,
                               .other = i / 2 % 2 == 1,
                               .data = i % 5 == 2   ? 2
                                       : i % 5 == 4 ? 4
                                                    : 1};
    check(&setting);
    seen++;
  }
  assert_int_equal(seen, 24);
}

static void planned_bytes_of_other_models_are_held(void **state) {
  (void)state;
  static const char *const families[] = {"gemma3", "gemma2", "phi3", "qwen3", "qwen2"}, *const recomputes[] = {
                                                                                            "none", "attention",
                                                                                            "full"};
  for (size_t i = 0; i < 5 * 3; i++) {
    const setting_t setting = {.family = families[i % 5],
                               .dtype = i / 2 % 2 == 0 ? "fp32" : "bf16",
                               .attention = i % 3 == 0 ? "naive" : "flash",
                               .recompute = recomputes[i / 5],
                               .schedule = i % 4 == 1 ? "zb-h1" : "1f1b",
                               .saves = i % 3 == 1,
                               .data = i % 5 == 3 ? 2 : 1};
    check(&setting);
  }
}

// With the pages that a job counts against memory.activation_bytes, and a planner by the schedule.
static void planned_bytes_of_slices_are_held(void **state) {
  (void)state;
  static const char *const schedules[] = {"seq1f1b", "zb-h1", "interleaved"},
                           *const recomputes[] = {"none", "attention", "full"}, *const families[] = {"gpt2", "gemma2"};
  for (size_t i = 0; i < 2 * 3; i++) {
    const setting_t setting = {.family = families[i % 2],
                               .dtype = i / 2 % 2 == 0 ? "fp32" : "bf16",
                               .attention = i % 3 == 0 ? "naive" : "flash",
                               .recompute = recomputes[i / 2],
                               .schedule = schedules[i % 3],
                               .slices = i % 2 == 0 ? 3 : 5,
                               .data = i == 4 ? 2 : 1};
    check(&setting);
  }
}

// Of four parts, of which each copy has two: both copies of the weights, half of the moments, room for what the other sends.
static void planned_bytes_of_two_copies_are_held(void **state) {
  (void)state;
  static const char *const schedules[] = {"chimera", "dualpipe"}, *const recomputes[] = {"none", "attention", "full"},
                           *const families[] = {"gpt2", "llama", "gemma2"};
  for (size_t i = 0; i < 2 * 3; i++) {
    const setting_t setting = {.family = families[i % 3],
                               .dtype = i % 4 < 2 ? "fp32" : "bf16",
                               .attention = i % 3 == 0 ? "naive" : "flash",
                               .recompute = recomputes[i / 2],
                               .schedule = schedules[i % 2],
                               .ahead = i % 3 == 1,
                               .saves = i % 4 != 1,
                               .other = i >= 3,
                               .data = 1};
    check(&setting);
  }
}

// With the buffers in which tensor ranks exchange their parts. Four parts on one rank have none.
static void planned_bytes_of_tensor_ranks_are_held(void **state) {
  (void)state;
  static const char *const schedules[] = {"1f1b", "zb-h1", "interleaved"},
                           *const recomputes[] = {"none", "attention", "full"}, *const families[] = {"gpt2", "llama"};
  static const uint32_t ranks[] = {1, 2, 4};
  for (size_t i = 0; i < 2 * 3; i++) {
    const setting_t setting = {.family = families[i % 2],
                               .dtype = i / 2 % 2 == 0 ? "fp32" : "bf16",
                               .attention = i % 3 == 0 ? "naive" : "flash",
                               .recompute = recomputes[i / 2],
                               .schedule = schedules[i % 3],
                               .saves = i % 3 == 1,
                               .other = i >= 3,
                               .data = i == 5 ? 2 : 1,
                               .tensor = ranks[i % 3]};
    check(&setting);
  }
}

static void planned_bytes_of_a_device_are_held(void **state) {
  (void)state;
  static const char *const schedules[] = {"1f1b", "zb-h1", "v-half"}, *const recomputes[] = {"none", "attention",
                                                                                             "full"};
  for (size_t i = 0; i < 2 * 3; i++) {
    const setting_t setting = {.family = i % 2 == 0 ? "gpt2" : "llama",
                               .dtype = i / 2 % 2 == 0 ? "fp32" : "bf16",
                               .attention = i % 3 == 0 ? "naive" : "flash",
                               .recompute = recomputes[i % 3],
                               .schedule = schedules[i / 2],
                               .ahead = i % 3 == 1,
                               .late = true,
                               .data = 1};
    check(&setting);
  }
}

int main(void) {
  if (setenv("BALLAST_MODULES", BALLAST_BINARY_DIR "/tests/late", 1) != 0 || setenv("LATE_DEVICES", "1", 1) != 0) {
    return 1;
  }
  const struct CMUnitTest tests[] = {cmocka_unit_test(planned_bytes_are_held),
                                     cmocka_unit_test(planned_bytes_of_other_models_are_held),
                                     cmocka_unit_test(planned_bytes_of_slices_are_held),
                                     cmocka_unit_test(planned_bytes_of_two_copies_are_held),
                                     cmocka_unit_test(planned_bytes_of_tensor_ranks_are_held),
                                     cmocka_unit_test(planned_bytes_of_a_device_are_held)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
