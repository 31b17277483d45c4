// SPDX-License-Identifier: Apache-2.0
// Verifies what a job resolves to, and that every bad job is refused with a message that names key or file, its place and
// the cause, before anything is started.
#include "job/training.h"

#include "job/architecture.h"
#include "job/job_text.h"
#include "same_order.h"

#include <setjmp.h>
#include <stdlib.h>

#include <cmocka.h>

#define GOLDEN BALLAST_SOURCE_DIR "/tests/golden/"

// A job on the golden models, whose model section names only a folder.
#define GOLDEN_JOB(name, more)                                                                                         \
  "model:\n  init: " GOLDEN name "\n" more "data:\n  train: " GOLDEN name "/tokens.bin\n  format: bin\n"               \
  "train:\n  steps: 20\n  micro_batch: 2\n  micro_batches: 3\n  lr: 0.004\n"                                           \
  "pipeline:\n  stages: 3\n  schedule: gpipe\n"

static bl_training_t resolve(const char *text, const char *sets) {
  bl_job_t job;
  bl_error_t err = {0};
  bl_training_t training;
  if (job_text_parse_text(&job, text, sets, &err) != BL_OK || bl_training_init(&training, &job, &err) != BL_OK) {
    fail_msg("%s: %s", sets, err.text);
  }
  bl_job_cleanup(&job);
  return training;
}

static void an_inline_job_resolves(void **state) {
  (void)state;
  bl_training_t training = resolve(JOB_TEXT, "");
  assert_int_equal(training.model.layers, 4);
  assert_int_equal(training.model.head_dim, 8);
  assert_int_equal(training.model.ffn, 128);
  assert_true(training.model.tied);
  assert_int_equal(training.partition.count, 4);
  assert_int_equal(training.stage_count, 4);
  for (uint32_t i = 0; i < 4; i++) { // 1F1B keeps p - i blocks
    assert_int_equal(training.stages[i].slots_needed, 4 - i);
    assert_int_equal(training.stages[i].slots, 4 - i);
    bl_layout_t layout;
    assert_int_equal(bl_layout_init(&layout, &training.model, training.partition.spans[i], training.layout), BL_OK);
    assert_int_equal(training.stages[i].slot_bytes, layout.slot_bytes);
  }
  assert_int_equal(training.layout.micro_batch, 2);
  assert_int_equal(training.layout.attention, BL_ATTENTION_NAIVE);
  assert_int_equal(training.schedule->micro_batches, 6);
  assert_int_equal(training.dataset.seq, 16);
  bl_training_cleanup(&training);
}

static void memory_becomes_slots(void **state) {
  (void)state;
  bl_training_t training = resolve(JOB_TEXT, "memory.slots=5");
  assert_int_equal(training.stages[3].slots, 5);
  uint64_t slot_bytes = training.stages[0].slot_bytes;
  bl_training_cleanup(&training);
  char sets[64];
  snprintf(sets, sizeof sets, "memory.activation_bytes=%llu", (unsigned long long)(5 * slot_bytes - 1));
  training = resolve(JOB_TEXT, sets);
  assert_int_equal(training.stages[0].slots, 4);
  bl_training_cleanup(&training);
}

// What a job says of costs is what its order is searched with, and nothing else is changed by it.
static void costs_decide_orders_that_are_searched(void **state) {
  (void)state;
#define COSTS(forward, input, weight)                                                                                  \
  "\npipeline.costs.forward=" forward "\npipeline.costs.input=" input "\npipeline.costs.weight=" weight
  static const struct {
    const char *schedule, *same, *uneven, *doubled;
  } cases[] = {{"adaptive", COSTS("1", "[1]", "[1, 1, 1, 1]"),
                COSTS("[15, 10, 10, 12]", "[20, 14, 14, 16]", "[8, 6, 6, 7]"),
                COSTS("[30, 20, 20, 24]", "[40, 28, 28, 32]", "[16, 12, 12, 14]") "\npipeline.costs.boundary=0"},
               {"zb-h1", COSTS("[1, 1]", "1", "1"), COSTS("[15, 10]", "[20, 14]", "[8, 6]"),
                COSTS("[30, 20]", "[40, 28]", "[16, 12]") "\npipeline.costs.recompute=[30, 20]"}};
  for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
    const char *said[] = {"", cases[k].same, cases[k].uneven, cases[k].doubled};
    bl_training_t made[4];
    for (size_t i = 0; i < 4; i++) {
      char sets[400];
      snprintf(sets, sizeof sets, "pipeline.stages=2\npipeline.schedule=%s%s", cases[k].schedule, said[i]);
      made[i] = resolve(JOB_TEXT, sets);
    }
    assert_true(same_order(made[0].schedule, made[1].schedule)); // nothing said: all the same
    assert_false(same_order(made[0].schedule, made[2].schedule));
    assert_true(same_order(made[2].schedule, made[3].schedule)); // in any unit
    for (size_t i = 0; i < 4; i++) {
      bl_training_cleanup(&made[i]);
    }
  }
  bl_training_t plain = resolve(JOB_TEXT, "");
  bl_training_t said = resolve(JOB_TEXT, "pipeline.schedule=1f1b" COSTS("[5, 1, 1, 2]", "1", "1"));
  assert_true(same_order(plain.schedule, said.schedule)); // published orders know no costs
  bl_training_cleanup(&plain);
  bl_training_cleanup(&said);
}

static bl_layout_t layout_of(const bl_training_t *training) {
  bl_layout_t layout;
  assert_int_equal(bl_layout_init(&layout, &training->model, training->partition.spans[0], training->layout), BL_OK);
  return layout;
}

// What a stage keeps under each kind of recomputation, and that full runs in one slot.
static void recomputation_shrinks_slots_or_their_number(void **state) {
  (void)state;
  bl_training_t none = resolve(JOB_TEXT, ""), attention = resolve(JOB_TEXT, "pipeline.recompute=attention");
  bl_training_t full = resolve(JOB_TEXT, "pipeline.recompute=full\nmemory.slots=1");
  const uint64_t scores = layout_of(&none).rows[BL_SEGMENT_SCORES].bytes, unit = layout_of(&none).edge_bytes;
  assert_int_equal(none.stages[0].slot_bytes - attention.stages[0].slot_bytes, scores + unit);
  assert_int_equal(attention.layout.recompute, BL_RECOMPUTE_ATTENTION);
  assert_int_equal(full.layout.recompute, BL_RECOMPUTE_FULL);
  for (uint32_t i = 0; i < 4; i++) {
    assert_int_equal(attention.stages[i].slots_needed, 4 - i);
    assert_int_equal(full.stages[i].slots_needed, 1);
    assert_int_equal(full.stages[i].slots, 1);
  }
  bl_training_cleanup(&none);
  bl_training_cleanup(&attention);
  bl_training_cleanup(&full);
  full = resolve(JOB_TEXT, "pipeline.recompute=full\npipeline.schedule=zb-h1"); // slots live from R to W
  assert_int_equal(full.layout.backward, BL_BACKWARD_SPLIT);
  assert_true(full.stages[0].slots_needed < 4);
  bl_training_cleanup(&full);
  static const char *const split[] = {"zb-h1", "zb-h2"};
  for (size_t k = 0; k < 2; k++) { // the order is made for the slots that are there
    for (uint32_t slots = 1; slots <= 2; slots++) {
      char sets[100];
      snprintf(sets, sizeof sets, "pipeline.recompute=full\npipeline.schedule=%s\nmemory.slots=%u", split[k], slots);
      full = resolve(JOB_TEXT, sets);
      for (uint32_t i = 0; i < 4; i++) {
        assert_in_range(full.stages[i].slots_needed, 1, slots);
      }
      bl_training_cleanup(&full);
    }
  }
}

// Lean blocks are chosen where they save memory: a fused backward and several blocks at once.
static void blocks_are_lean_where_that_saves_memory(void **state) {
  (void)state;
  const struct {
    const char *sets;
    bool lean;
  } cases[] = {
      {"", true},
      {"pipeline.schedule=gpipe\npipeline.stages=1", true},
      {"pipeline.stages=1", false},       // one block at a time
      {"pipeline.schedule=zb-h1", false}, // I would write them into the slot
      {"pipeline.recompute=full", false}, // one block at a time
      {"pipeline.recompute=attention", true},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bl_training_t training = resolve(JOB_TEXT, cases[i].sets);
    if (training.layout.lean != cases[i].lean) {
      fail_msg("'%s': lean is %d, expected %d", cases[i].sets, training.layout.lean, cases[i].lean);
    }
    bl_training_cleanup(&training);
  }
}

static void hugging_face_folders_resolve(void **state) {
  (void)state;
  bl_training_t training = resolve(GOLDEN_JOB("gpt2", ""), "");
  assert_int_equal(training.model.family, BL_FAMILY_GPT2);
  assert_int_equal(training.model.seq, 32);
  assert_int_equal(training.dataset.sampler.windows, 62);
  bl_training_cleanup(&training);
  training = resolve(GOLDEN_JOB("llama", ""), "model.seq=48\npipeline.stages=2");
  assert_int_equal(training.model.family, BL_FAMILY_LLAMA);
  assert_int_equal(training.model.kv_heads, 2);
  assert_int_equal(training.model.seq, 48);
  bl_training_cleanup(&training);
  training = resolve(GOLDEN_JOB("gpt2", ""), "model.seq=20");
  assert_int_equal(training.model.seq, 20);
  assert_int_equal(bl_model_positions(&training.model), 32);
  bl_training_cleanup(&training);
  training = resolve(JOB_TEXT, "");
  bl_training_cleanup(&training);
}

static void a_config_alone_gives_the_architecture(void **state) {
  (void)state;
  const char *text = "model:\n  config: " GOLDEN "llama/config.json\n  seq: 16\n"
                     "data:\n  train: " GOLDEN "llama/tokens.bin\n  format: bin\n"
                     "train:\n  steps: 1\n  micro_batch: 1\n  micro_batches: 1\n  lr: 1\npipeline:\n  stages: 1\n";
  bl_training_t training = resolve(text, "");
  assert_int_equal(training.model.heads, 6);
  assert_int_equal(training.model.seq, 16);
  assert_false(training.model.tied);
  bl_training_cleanup(&training);
}

static void refuses_text(const char *text, const char *sets, bl_status_t expected, const char *message) {
  bl_job_t job;
  bl_error_t err = {0};
  bl_training_t training;
  bl_status_t status = job_text_parse_text(&job, text, sets, &err);
  if (status == BL_OK) {
    status = bl_training_init(&training, &job, &err);
    bl_job_cleanup(&job);
  }
  if (status != expected || err.status != expected || strstr(err.text, message) == NULL) {
    fail_msg("%s:\n expected %s '%s'\n got %s '%s'", sets, bl_status_name(expected), message, bl_status_name(status),
             err.text);
  }
  assert_int_equal(bl_status_exit_code(status), 2);
}

static void refuses(const char *sets, bl_status_t expected, const char *message) {
  refuses_text(JOB_TEXT, sets, expected, message);
}

static void what_this_version_does_not_do_is_refused(void **state) {
  (void)state;
  refuses("balance.data_path=nccl", BL_UNIMPLEMENTED, "balance.data_path: nccl moves memory of GPUs");
  refuses("balance.data_path=cuda-ipc", BL_UNIMPLEMENTED, "balance.data_path: cuda-ipc moves memory of GPUs");
  refuses("balance.require=cuda-ipc", BL_UNIMPLEMENTED, "balance.require: ");
  refuses("balance.require=nccl", BL_UNIMPLEMENTED, "balance.require: ");
  refuses("train.optimizer_memory=host", BL_UNIMPLEMENTED,
          "train.optimizer_memory: host saves nothing where the device");
}

static void bad_jobs_are_refused(void **state) {
  (void)state;
  refuses("model.heads=5", BL_INVALID, "model.heads: ");
  refuses("model.family=llama\nmodel.ffn=64\nmodel.kv_heads=3", BL_INVALID, "model.kv_heads: ");
  refuses("pipeline.stages=5", BL_INVALID, "pipeline.stages: ");
  refuses("pipeline.layers_per_stage=[1, 1, 1]", BL_INVALID, "pipeline.layers_per_stage: ");
  refuses("pipeline.layers_per_stage=[1, 1, 1, 2]", BL_INVALID, "pipeline.layers_per_stage: ");
  refuses("model.vocab=121", BL_INVALID, "text.txt: byte 59: token 121 is not below model.vocab");
  refuses("model.seq=2000", BL_INVALID, "data.train: 1236 tokens are too few");
  refuses("data.train=/nonexistent", BL_INVALID, "data.train: /nonexistent");
  refuses("memory.slots=3", BL_INVALID,
          "--set memory.slots: stage 0, operation 3 (0F3): needs one slot more than the 3 available");
  refuses("memory.slots=3", BL_INVALID,
          "; the smallest that works is 4; it fits with balance.policy: bpipe or pipeline.recompute: full");
  refuses("memory.slots=3\npipeline.schedule=1f1b-v\nmodel.layers=8\ntrain.micro_batches=3", BL_INVALID,
          "; the smallest that works is 6"); // of stage 1
  refuses("memory.slots=4\npipeline.schedule=1f1b-v\nmodel.layers=8\ntrain.micro_batches=3", BL_INVALID,
          "; the smallest that works is 6");
  refuses("memory.slots=1\npipeline.schedule=zb-v\nmodel.layers=8", BL_INVALID,
          "--set memory.slots: 1 is below 2, the smallest that works with schedule zb-v");
  refuses("pipeline.recompute=full\nbalance.policy=bpipe", BL_INVALID,
          "--set balance.policy: with pipeline.recompute: full only the input of a block is kept");
  refuses("memory.activation_bytes=1000", BL_INVALID, "memory.activation_bytes: stage 0: not one slot of ");
  refuses("memory.activation_bytes=1000", BL_INVALID, " fits; the smallest that works with schedule 1f1b is ");
  refuses("memory.activation_bytes=150KiB\npipeline.schedule=zb-h1", BL_INVALID, "; it fits with memory.slots: ");
  refuses("memory.activation_bytes=300KiB\npipeline.schedule=v-half\nmodel.layers=8", BL_INVALID,
          " bytes; it fits with balance.policy: drop"); // v-half takes no limit
}

static void bad_folders_are_refused(void **state) {
  (void)state;
  const char *gpt2 = GOLDEN_JOB("gpt2", "");
  refuses_text(gpt2, "model.init=/nonexistent", BL_INVALID, "model.init: /nonexistent/config.json: cannot open");
  refuses_text(gpt2, "model.config=" GOLDEN "llama/config.json", BL_INVALID,
               "tensor 'model.embed_tokens.weight' of shape [101, 48] is missing");
  refuses_text(gpt2, "model.seq=33", BL_INVALID, "--set model.seq: 33 is more than the 32 positions of the weights");
  refuses_text(GOLDEN_JOB("gpt2", "  hidden: 64\n"), "", BL_INVALID, "job.yaml:3:11: model.hidden: 64 contradicts");
  refuses_text(GOLDEN_JOB("gpt2", "  tied: false\n"), "", BL_INVALID, "model.tied: false contradicts");
  refuses_text(GOLDEN_JOB("gpt2", "  family: llama\n"), "", BL_INVALID, "model.family: llama contradicts");
  refuses_text(gpt2, "model.config=" GOLDEN "gpt2/golden.json", BL_INVALID, "golden.json: model_type: missing");
  refuses_text(gpt2, "pipeline.stages=4", BL_INVALID, "pipeline.stages: 4 stages are more than the model's 3 layers");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_inline_job_resolves),
      cmocka_unit_test(memory_becomes_slots),
      cmocka_unit_test(costs_decide_orders_that_are_searched),
      cmocka_unit_test(recomputation_shrinks_slots_or_their_number),
      cmocka_unit_test(blocks_are_lean_where_that_saves_memory),
      cmocka_unit_test(hugging_face_folders_resolve),
      cmocka_unit_test(a_config_alone_gives_the_architecture),
      cmocka_unit_test(what_this_version_does_not_do_is_refused),
      cmocka_unit_test(bad_jobs_are_refused),
      cmocka_unit_test(bad_folders_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
