// SPDX-License-Identifier: Apache-2.0
// Verifies what a good job file means: values of every type, defaults, derived defaults, paths, --set, and that the
// canonical text reads back to the same job.
#include "config/job_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bl_job_t good_with(const char *text, const char *const *sets, size_t set_count) {
  bl_job_t job;
  bl_error_t err;
  if (parse_with(&job, text, sets, set_count, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  return job;
}

static bl_job_t good(const char *text) {
  return good_with(text, NULL, 0);
}

static void defaults_fill_what_is_not_given(void **state) {
  (void)state;
  bl_job_t job = good(small_job);
  assert_int_equal(job.model.family, BL_JOB_FAMILY_GPT2);
  assert_int_equal(job.model.kv_heads.value, 4);
  assert_int_equal(job.model.ffn.value, 256);
  assert_true(job.model.tied.set && job.model.tied.value);
  assert_int_equal(job.data.train.count, 1);
  assert_string_equal(job.data.train.items[0], "/jobs/text.txt");
  assert_int_equal(job.data.order, BL_JOB_ORDER_SHUFFLED);
  assert_int_equal(job.train.steps, 10);
  assert_int_equal(job.train.micro_batches, 8);
  assert_true(job.train.lr == 3e-4 && job.train.eps == 1e-8 && job.train.clip == 0);
  assert_true(job.train.min_lr.set && job.train.min_lr.value == 3e-4 / 10);
  assert_int_equal(job.pipeline.schedule, BL_SCHEDULE_1F1B);
  assert_int_equal(job.pipeline.chunks.value, 1);
  assert_false(job.memory.slots.set || job.memory.activation_bytes.set || job.balance.cap.set);
  assert_int_equal(job.balance.policy, BL_POLICY_NONE);
  assert_true(bl_job_given(&job, "train.steps"));
  assert_false(bl_job_given(&job, "train.lr"));
  bl_job_cleanup(&job);
}

static void every_type_is_read(void **state) {
  (void)state;
  bl_job_t job =
      good("name: 'run 7'\n"
           "model: {family: llama, layers: 6, hidden: 64, heads: 4, kv_heads: 2, ffn: 96, vocab: 512,\n"
           "        seq: 32, tied: true}\n"
           "data:\n"
           "  train: [a.bin, /data/b.bin]\n"
           "  validation: 0.1\n"
           "  format: bin\n"
           "  order: sequential\n"
           "train: {steps: 5, lr: 1e-3, lr_schedule: cosine, min_lr: .5e-4, beta2: 0.95, decay: all, clip: 1,\n"
           "        optimizer_memory: host}\n"
           "pipeline:\n"
           "  stages: 3\n"
           "  schedule: interleaved\n"
           "  layers_per_stage: [1, 1, 1, 1, 1, 1]\n"
           "memory: {activation_bytes: 64 MiB}\n"
           "balance: {policy: bpipe, data_path: tcp}\n"
           "checkpoint:\n" // everything below is commented out
           "  # folder: x\n"
           "services:\n"
           "  stages: ['h:1', 'h:2', 'unix:/run/x']\n");
  assert_string_equal(job.name, "run 7");
  assert_true(job.model.tied.value);
  assert_int_equal(job.model.ffn.value, 96);
  assert_int_equal(job.data.train.count, 2);
  assert_string_equal(job.data.train.items[0], "/jobs/a.bin");
  assert_string_equal(job.data.train.items[1], "/data/b.bin");
  assert_true(job.data.validation.fraction == 0.1);
  assert_int_equal(job.data.validation.files.count, 0);
  assert_int_equal(job.data.format, BL_JOB_FORMAT_BIN);
  assert_int_equal(job.train.decay, BL_JOB_DECAY_ALL);
  assert_int_equal(job.train.optimizer_memory, BL_JOB_OPTIMIZER_ON_HOST);
  assert_true(job.train.lr == 1e-3 && job.train.min_lr.value == 5e-5 && job.train.beta2 == 0.95);
  assert_int_equal(job.pipeline.chunks.value, 2);
  assert_int_equal(job.pipeline.layers_per_stage.count, 6);
  assert_int_equal(job.memory.activation_bytes.value, 64 << 20);
  assert_false(job.balance.cap.set); // bpipe's own depends on the order
  assert_int_equal(job.balance.data_path, BL_JOB_DATA_PATH_TCP);
  assert_string_equal(job.services.stages.items[2], "unix:/run/x");
  bl_job_cleanup(&job);
}

static void a_section_may_hold_a_section(void **state) {
  (void)state;
  char text[2048];
  snprintf(
      text, sizeof text, "%s%s", small_job,
      "services:\n  plaintext: true\n  tls:\n    ca: ca.pem\n    certificate: /x/driver.pem\n    key: driver.key\n");
  bl_job_t job = good(text);
  assert_string_equal(job.services.tls.ca, "/jobs/ca.pem");
  assert_string_equal(job.services.tls.certificate, "/x/driver.pem");
  assert_true(job.services.plaintext);
  bl_job_cleanup(&job);
  snprintf(text, sizeof text, "%s%s", small_job, "services:\n  tls: {ca: a, certificat: b}\n");
  bl_error_t err;
  assert_int_equal(parse_with(&job, text, NULL, 0, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "unknown key 'services.tls.certificat'; did you mean 'services.tls.certificate'?"));
  snprintf(text, sizeof text, "%s%s", small_job, "services:\n  tls: {ca: a, key: b}\n");
  assert_int_equal(parse_with(&job, text, NULL, 0, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "services.tls.certificate: is missing; ca, certificate and key go together"));
}

static void validation_may_be_files(void **state) {
  (void)state;
  const char *const list[] = {"data.validation=[v.txt, '0.5']"};
  bl_job_t job = good_with(small_job, list, 1);
  assert_int_equal(job.data.validation.files.count, 2);
  assert_string_equal(job.data.validation.files.items[1], "/here/0.5"); // quoted: a file of that name
  assert_true(job.data.validation.fraction == 0);
  bl_job_cleanup(&job);
}

static void sets_win_in_order(void **state) {
  (void)state;
  const char *const sets[] = {"train.steps=20", "train.lr=1",         "train.steps=30",  "memory.slots=4",
                              "train.lr=null",  "data.train=own.txt", "model.tied=false"};
  bl_job_t job = good_with(small_job, sets, sizeof sets / sizeof sets[0]);
  assert_int_equal(job.train.steps, 30);
  assert_true(job.train.lr == 3e-4);
  assert_int_equal(job.memory.slots.value, 4);
  assert_string_equal(job.data.train.items[0], "/here/own.txt");
  assert_false(job.model.tied.value);
  bl_job_cleanup(&job);
}

static void a_config_leaves_the_model_open(void **state) {
  (void)state;
  bl_job_t job = good("model: {config: m/config.json, seq: 64}\ndata: {train: t}\ntrain: {steps: 1}\n");
  assert_string_equal(job.model.config, "/jobs/m/config.json");
  assert_int_equal(job.model.family, BL_JOB_FAMILY_NONE);
  assert_int_equal(job.model.seq.value, 64);
  assert_false(job.model.layers.set || job.model.kv_heads.set || job.model.tied.set || job.model.ffn.set);
  bl_job_cleanup(&job);
}

static void assert_dump_is_a_fixed_point(const bl_job_t *job) {
  char *text, *again;
  size_t text_bytes, again_bytes;
  assert_int_equal(bl_job_dump(job, &text, &text_bytes), BL_OK);
  assert_int_equal(strlen(text), text_bytes);
  bl_job_t copy = good(text);
  assert_int_equal(bl_job_dump(&copy, &again, &again_bytes), BL_OK);
  assert_string_equal(again, text);
  bl_job_cleanup(&copy);
  free(text);
  free(again);
}

static void a_dumped_job_reads_back_equal(void **state) {
  (void)state;
  bl_job_t job = good(small_job);
  assert_dump_is_a_fixed_point(&job);
  bl_job_cleanup(&job);

  const char *const sets[] = {"train.lr=0.1000000000000000055511151231257827",
                              "train.eps=1.1754944e-38",
                              "train.weight_decay=4.9e-324",
                              "train.seed=9223372036854775807",
                              "name=\"a \\\"quoted\\\" \\\\ n\\u00e4me \\U0001F600\"",
                              "data.train=[\"sp ace#\", \"x: y\", \"- z\", \"\\u2028\"]",
                              "data.validation=[v]",
                              "memory.slots=3",
                              "pipeline.stages=2",
                              "pipeline.layers_per_stage=[3, 1]",
                              "pipeline.costs.forward=[1.5e-05, 2]",
                              "pipeline.costs.input=0.1",
                              "pipeline.costs.weight=[1]",
                              "pipeline.costs.boundary=0",
                              "services.stages=[\"h:1\", \"[::1]:2\"]",
                              "services.driver=\"unix:/d\""};
  job = good_with(small_job, sets, sizeof sets / sizeof sets[0]);
  assert_true(job.train.lr == 0.1);
  assert_int_equal(job.pipeline.costs.forward.count, 2);
  assert_true(job.pipeline.costs.forward.items[0] == 1.5e-05 && job.pipeline.costs.input.items[0] == 0.1);
  assert_true(job.pipeline.costs.boundary.set && job.pipeline.costs.recompute.count == 0);
  assert_int_equal(job.train.seed, INT64_MAX);
  assert_string_equal(job.name, "a \"quoted\" \\ n\xC3\xA4me \xF0\x9F\x98\x80");
  assert_dump_is_a_fixed_point(&job);
  bl_job_cleanup(&job);
}

static void the_dump_carries_exact_values(void **state) {
  (void)state;
  const char *const sets[] = {"train.lr=0.30000000000000004"};
  bl_job_t job = good_with(small_job, sets, 1);
  char *text;
  size_t text_bytes;
  assert_int_equal(bl_job_dump(&job, &text, &text_bytes), BL_OK);
  bl_job_t copy = good(text);
  assert_true(copy.train.lr == 0.30000000000000004);
  assert_true(copy.train.min_lr.value == job.train.min_lr.value);
  bl_job_cleanup(&copy);
  bl_job_cleanup(&job);
  free(text);
}

static void a_value_is_shown_in_one_line(void **state) {
  (void)state;
  const char *const sets[] = {"data.train=[/a, \"/b \\\"c\"]", "data.weights=[1, 0.5]", "train.lr=0.25"};
  bl_job_t job = good_with(small_job, sets, 3);
  static const char *const shown[][2] = {
      {"data.train", "\"/a\", \"/b \\\"c\""},
      {"data.weights", "[1, 0.5]"},
      {"data.validation", "none"},
      {"train.lr", "0.25"},
      {"train.lr_schedule", "constant"},
      {"checkpoint.folder", "none"},
      {"train.post_validation", "false"},
  };
  for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++) {
    char *text = bl_option_text(bl_options_find(bl_job_options(), shown[i][0]), &job);
    assert_string_equal(text, shown[i][1]);
    free(text);
  }
  bl_job_cleanup(&job);
}

static void a_folder_that_is_not_utf8_cannot_be_dumped(void **state) {
  (void)state;
  bl_job_source_t source = {.file = {"job.yaml", small_job, strlen(small_job), "/caf\xE9"}};
  bl_job_t job;
  bl_error_t err;
  assert_int_equal(bl_job_parse(&job, &source, &err), BL_OK);
  char *text = NULL;
  size_t text_bytes;
  assert_int_equal(bl_job_dump(&job, &text, &text_bytes), BL_INVALID);
  assert_null(text);
  bl_job_cleanup(&job);
}

static void schedules_have_their_names(void **state) {
  (void)state;
  for (int i = 0; i <= BL_SCHEDULE_DUALPIPE_V; i++) {
    char set[64];
    snprintf(set, sizeof set, "pipeline.schedule=%s", bl_job_schedule_name((bl_schedule_kind_t)i));
    const char *const sets[] = {set};
    bl_job_t job = good_with(small_job, sets, 1);
    assert_int_equal(job.pipeline.schedule, i);
    bl_job_cleanup(&job);
  }
  assert_string_equal(bl_job_schedule_name(BL_SCHEDULE_ZB_V), "zb-v");
  assert_string_equal(bl_policy_kind_name(BL_POLICY_BPIPE), "bpipe");
  assert_string_equal(bl_job_data_path_name(BL_JOB_DATA_PATH_CUDA_IPC), "cuda-ipc");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(defaults_fill_what_is_not_given),
      cmocka_unit_test(every_type_is_read),
      cmocka_unit_test(validation_may_be_files),
      cmocka_unit_test(sets_win_in_order),
      cmocka_unit_test(a_config_leaves_the_model_open),
      cmocka_unit_test(a_dumped_job_reads_back_equal),
      cmocka_unit_test(the_dump_carries_exact_values),
      cmocka_unit_test(a_value_is_shown_in_one_line),
      cmocka_unit_test(a_folder_that_is_not_utf8_cannot_be_dumped),
      cmocka_unit_test(schedules_have_their_names),
      cmocka_unit_test(a_section_may_hold_a_section),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
