// SPDX-License-Identifier: Apache-2.0
// Verifies what a stage reads for a micro-batch: the windows of the contract, labels shifted by one, held-out windows, and
// that a token beyond the vocabulary is found when its window is read.
#include "data/batch.h"

#include "job/job_text.h"

#include <setjmp.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#define SEQ  4
#define ROWS 2

static bl_dataset_t dataset;
static char path[] = "/tmp/ballast-batch-XXXXXX";
static int file;

static void write_token(uint64_t position, uint16_t token) {
  assert_int_equal(pwrite(file, &token, sizeof token, (off_t)(position * sizeof token)), sizeof token);
}

// Token i of 1000 is i; two rows per micro-batch, three micro-batches, the last tenth held out.
static int set_up(void **state) {
  (void)state;
  file = mkstemp(path);
  assert_true(file >= 0);
  for (uint16_t i = 0; i < 1000; i++) {
    write_token(i, i);
  }
  char sets[512];
  snprintf(sets, sizeof sets,
           "data.format=bin\ndata.train=%s\ndata.validation=0.1\ntrain.micro_batches=3\ntrain.seed=4", path);
  bl_job_t job;
  bl_error_t err = {0};
  bl_model_t model = {.vocab = 1000, .seq = SEQ};
  if (job_text_parse(&job, sets, &err) != BL_OK || bl_dataset_open(&dataset, &job, &model, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  bl_job_cleanup(&job);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  bl_dataset_close(&dataset);
  close(file);
  return unlink(path);
}

static void assert_row(const int32_t *inputs, const int32_t *labels, uint32_t row, uint64_t first) {
  for (uint64_t i = 0; i < SEQ; i++) {
    assert_int_equal(inputs[row * SEQ + i], first + i);
    assert_int_equal(labels[row * SEQ + i], first + i + 1);
  }
}

static void training_windows_are_those_of_the_contract(void **state) {
  (void)state;
  uint64_t windows = (900 - 1) / SEQ;
  assert_int_equal(dataset.sampler.windows, windows);
  for (uint64_t step = 1; step < 100; step++) {
    for (uint32_t i = 0; i < 3; i++) {
      int32_t inputs[ROWS * SEQ], labels[ROWS * SEQ];
      bl_batch_t batch = {.inputs = inputs, .labels = labels};
      bl_error_t err = {0};
      assert_int_equal(bl_batch_read(&dataset, step, i, &batch, &err), BL_OK);
      for (uint32_t j = 0; j < ROWS; j++) {
        assert_row(inputs, labels, j, (((step - 1) * 3 + i) * ROWS + j) % windows * SEQ);
      }
    }
  }
}

static void either_side_can_be_read_alone(void **state) {
  (void)state;
  int32_t inputs[ROWS * SEQ], labels[ROWS * SEQ];
  bl_error_t err = {0};
  bl_batch_t only_inputs = {.inputs = inputs}, only_labels = {.labels = labels};
  assert_int_equal(bl_batch_read(&dataset, 2, 1, &only_inputs, &err), BL_OK);
  assert_int_equal(bl_batch_read(&dataset, 2, 1, &only_labels, &err), BL_OK);
  assert_row(inputs, labels, 0, 8 * SEQ);
}

// Of every sequence the positions of a slice, each with the token after it.
static void slices_are_pieces_of_the_windows(void **state) {
  (void)state;
  int32_t inputs[ROWS * SEQ], labels[ROWS * SEQ];
  bl_error_t err = {0};
  for (uint32_t first = 0; first < SEQ; first += SEQ / 2) {
    bl_batch_t batch = {.inputs = inputs, .labels = labels, .first = first, .count = SEQ / 2};
    assert_int_equal(bl_batch_read(&dataset, 2, 1, &batch, &err), BL_OK);
    for (uint32_t i = 0; i < SEQ / 2; i++) {
      assert_int_equal(inputs[i], 8 * SEQ + first + i);
      assert_int_equal(labels[i], 8 * SEQ + first + i + 1);
      assert_int_equal(inputs[SEQ / 2 + i], 9 * SEQ + first + i);
    }
  }
}

static void held_out_windows_wrap(void **state) {
  (void)state;
  assert_int_equal(dataset.validation_windows, 99 / SEQ);
  int32_t inputs[ROWS * SEQ], labels[ROWS * SEQ];
  bl_batch_t batch = {.inputs = inputs, .labels = labels};
  bl_error_t err = {0};
  assert_int_equal(bl_batch_read_validation(&dataset, 21, 1, &batch, &err), BL_OK);
  assert_row(inputs, labels, 0, 900 + 23 * SEQ);
  assert_row(inputs, labels, 1, 900);
}

static void tokens_beyond_the_vocabulary_are_found_on_reading(void **state) {
  (void)state;
  int32_t inputs[ROWS * SEQ];
  bl_batch_t batch = {.inputs = inputs};
  bl_error_t err = {0};
  write_token(12, 1000); // the last label of window 2, the first input of window 3
  bl_status_t label = bl_batch_read(&dataset, 1, 1, &batch, &err);
  if (label != BL_INVALID || strstr(err.text, "byte 24: token 1000 is not below model.vocab") == NULL) {
    fail_msg("%s: %s", bl_status_name(label), err.text);
  }
  assert_non_null(strstr(err.text, path));
  assert_int_equal(bl_batch_read(&dataset, 1, 0, &batch, &err), BL_OK);
  write_token(12, 12);
  assert_int_equal(bl_batch_read(&dataset, 1, 1, &batch, &err), BL_OK);
}

static void without_held_out_data_there_is_nothing_to_read(void **state) {
  (void)state;
  bl_dataset_t none = dataset;
  none.validation_windows = 0;
  bl_batch_t batch = {0};
  bl_error_t err = {0};
  assert_int_equal(bl_batch_read_validation(&none, 0, 0, &batch, &err), BL_PRECONDITION);
}

// Inputs keep every token.
static void labels_that_do_not_count_are_not_read(void **state) {
  (void)state;
  int32_t inputs[ROWS * SEQ], labels[ROWS * SEQ];
  uint8_t mask[900] = {0};
  bl_error_t err = {0};
  bl_batch_t batch = {.inputs = inputs, .labels = labels};
  mask[2] = mask[SEQ] = mask[SEQ + 1] = 1;
  dataset.parts[0].mask = mask;
  assert_int_equal(bl_batch_read(&dataset, 1, 0, &batch, &err), BL_OK);
  dataset.parts[0].mask = NULL;
  for (uint64_t i = 0; i < ROWS * SEQ; i++) {
    assert_int_equal(inputs[i], i);
    assert_int_equal(labels[i], mask[i + 1] ? (int32_t)i + 1 : BL_LABEL_NONE);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(training_windows_are_those_of_the_contract),
      cmocka_unit_test(either_side_can_be_read_alone),
      cmocka_unit_test(slices_are_pieces_of_the_windows),
      cmocka_unit_test(held_out_windows_wrap),
      cmocka_unit_test(tokens_beyond_the_vocabulary_are_found_on_reading),
      cmocka_unit_test(without_held_out_data_there_is_nothing_to_read),
      cmocka_unit_test(labels_that_do_not_count_are_not_read),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
