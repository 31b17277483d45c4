// SPDX-License-Identifier: Apache-2.0
// Verifies the data of a job: streams, held-out parts, window counts, and refusals that name file, place and cause.
#include "job/dataset.h"

#include "job/job_text.h"

#include <setjmp.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#define TEXT_BYTES 1236 // tests/job/text.txt
#define GOLDEN_BIN BALLAST_SOURCE_DIR "/tests/golden/gpt2/tokens.bin"

static const bl_model_t model = {.family = BL_FAMILY_GPT2, .vocab = 256, .seq = 16};

static bl_status_t try_open(bl_dataset_t *dataset, const bl_model_t *of, const char *sets, bl_error_t *err) {
  bl_job_t job;
  if (job_text_parse(&job, sets, err) != BL_OK) {
    fail_msg("%s: %s", sets, err->text);
  }
  bl_status_t status = bl_dataset_open(dataset, &job, of, err);
  bl_job_cleanup(&job); // a dataset keeps nothing of the job
  return status;
}

static void open_or_fail(bl_dataset_t *dataset, const bl_model_t *of, const char *sets) {
  bl_error_t err = {0};
  if (try_open(dataset, of, sets, &err) != BL_OK) {
    fail_msg("%s: %s", sets, err.text);
  }
}

static void text_is_read_whole(void **state) {
  (void)state;
  bl_dataset_t dataset;
  open_or_fail(&dataset, &model, "");
  assert_int_equal(dataset.train.count, TEXT_BYTES);
  assert_int_equal(dataset.validation.count, 0);
  assert_int_equal(dataset.validation_windows, 0);
  assert_int_equal(dataset.sampler.windows, (TEXT_BYTES - 1) / 16);
  assert_int_equal(dataset.sampler.micro_batch, 2);
  assert_int_equal(dataset.sampler.micro_batches, 6);
  assert_false(dataset.sampler.shuffled);
  int32_t first[2];
  bl_tokens_read(&dataset.train, 0, 2, first);
  assert_int_equal(first[0], 'A');
  assert_int_equal(first[1], ' ');
  bl_dataset_close(&dataset);
}

static void the_end_or_files_are_held_out(void **state) {
  (void)state;
  bl_dataset_t dataset;
  open_or_fail(&dataset, &model, "data.validation=0.1\ndata.order=shuffled\ntrain.seed=5");
  assert_int_equal(dataset.validation.count, 123);
  assert_int_equal(dataset.train.count, TEXT_BYTES - 123);
  assert_int_equal(dataset.validation_windows, 122 / 16);
  assert_true(dataset.sampler.shuffled);
  assert_int_equal(dataset.sampler.seed, 5);
  bl_dataset_close(&dataset);
  open_or_fail(&dataset, &model,
               "data.format=bin\ndata.train=[" GOLDEN_BIN ", " GOLDEN_BIN "]\ndata.validation=[" GOLDEN_BIN "]");
  assert_int_equal(dataset.train.count, 4002);
  assert_int_equal(dataset.validation.count, 2001);
  assert_int_equal(dataset.file_count, 3);
  bl_dataset_close(&dataset);
}

static void refuses(const bl_model_t *of, const char *sets, bl_status_t expected, const char *message) {
  bl_error_t err = {0};
  bl_dataset_t dataset;
  bl_status_t status = try_open(&dataset, of, sets, &err);
  if (status != expected || err.status != expected || strstr(err.text, message) == NULL) {
    fail_msg("%s:\n expected %s '%s'\n got %s '%s'", sets, bl_status_name(expected), message, bl_status_name(status),
             err.text);
  }
}

static void bad_data_is_refused(void **state) {
  (void)state;
  bl_model_t other = model;
  refuses(&model, "data.train=/nonexistent/text", BL_NOT_FOUND, "data.train: /nonexistent/text: cannot open");
  refuses(&model, "data.train=/", BL_INVALID, "not a regular file");
  refuses(&model, "data.validation=[/nonexistent/text]", BL_NOT_FOUND, "data.validation: /nonexistent/text");
  refuses(&model, "data.format=megatron", BL_UNIMPLEMENTED, "data.format: megatron is not supported in this version");
  refuses(&model, "data.train=/dev/null", BL_INVALID, "not a regular file");
  refuses(&model, "data.validation=0.01", BL_INVALID, "12 held-out tokens are too few for one window of model.seq 16");
  other.seq = TEXT_BYTES;
  refuses(&other, "", BL_INVALID,
          "job.yaml:10:10: data.train: 1236 tokens are too few for one window of model.seq 1236 "
          "(needs 1237)");
  other = model;
  other.vocab = 122; // '{' and above would be too large; the text's largest byte is 'y' = 121
  bl_dataset_t dataset;
  open_or_fail(&dataset, &other, "");
  bl_dataset_close(&dataset);
  other.vocab = 121;
  refuses(&other, "", BL_INVALID, "text.txt: byte 59: token 121 is not below model.vocab, which is 121");
  other.vocab = 100;
  refuses(&other, "data.format=bin\ndata.train=" GOLDEN_BIN, BL_INVALID, "token 100 is not below model.vocab");
}

static void windows_between_samples_are_left_to_the_reader(void **state) {
  (void)state;
  char path[] = "/tmp/ballast-tokens-XXXXXX";
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  // 1000 windows of 4 uint16 tokens, of which 64 are looked at: the first, the last, and every 15th.
  static uint16_t tokens[4001];
  char sets[256];
  snprintf(sets, sizeof sets, "data.format=bin\ndata.train=%s", path);
  bl_model_t small = {.vocab = 7, .seq = 4};
  bl_dataset_t dataset;
  tokens[4 * 7 + 1] = 9; // in window 7
  assert_int_equal(pwrite(fd, tokens, sizeof tokens, 0), sizeof tokens);
  open_or_fail(&dataset, &small, sets);
  assert_int_equal(dataset.sampler.windows, 1000);
  bl_dataset_close(&dataset);
  tokens[4000] = 9; // the last label of the last window
  assert_int_equal(pwrite(fd, tokens, sizeof tokens, 0), sizeof tokens);
  refuses(&small, sets, BL_INVALID, "byte 8000: token 9 is not below model.vocab");
  close(fd);
  unlink(path);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(text_is_read_whole),
      cmocka_unit_test(the_end_or_files_are_held_out),
      cmocka_unit_test(bad_data_is_refused),
      cmocka_unit_test(windows_between_samples_are_left_to_the_reader),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
