// SPDX-License-Identifier: Apache-2.0
// Verifies the data of a job: streams, held-out parts, window counts, and refusals that name file, place and cause.
#include "job/dataset.h"

#include "formats/megatron_file.h"
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

static void write_file(const char *path, const void *bytes, size_t size) {
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, size, file), size);
  fclose(file);
}

// Two files of text in a folder of their own: 80 times 'a', 240 times 'b'.
static char folder[] = "/tmp/ballast-dataset-XXXXXX";

static int make_folder(void **state) {
  (void)state;
  char path[64], text[240];
  assert_non_null(mkdtemp(folder));
  memset(text, 'a', 80);
  snprintf(path, sizeof path, "%s/a", folder);
  write_file(path, text, 80);
  memset(text, 'b', 240);
  snprintf(path, sizeof path, "%s/b", folder);
  write_file(path, text, 240);
  return 0;
}

static int remove_folder(void **state) {
  (void)state;
  static const char *const names[] = {"a", "b", "m.bin", "m.idx", "empty", "a.mask", "b.mask", "m.bin.mask"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    char path[64];
    snprintf(path, sizeof path, "%s/%s", folder, names[i]);
    unlink(path);
  }
  return rmdir(folder);
}

__attribute__((format(printf, 1, 2))) static const char *sets_of(const char *format, ...) {
  static char sets[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(sets, sizeof sets, format, arguments);
  va_end(arguments);
  return sets;
}

static void weights_mix_files(void **state) {
  (void)state;
  bl_dataset_t dataset;
  open_or_fail(&dataset, &model,
               sets_of("data.train=[%s/a, %s/b]\ndata.weights=[3, 1]\ndata.validation=0.25", folder, folder));
  assert_int_equal(dataset.source_count, 2);
  assert_int_equal(dataset.train.count, 60 + 180);
  assert_int_equal(dataset.validation.count, 20 + 60); // the end of each
  assert_int_equal(dataset.sources[0].windows, 59 / 16);
  uint64_t taken[2] = {0}, seen[2][16] = {{0}};
  for (uint64_t step = 0; step < 100; step++) {
    for (uint32_t i = 0; i < 6; i++) {
      for (uint32_t j = 0; j < 2; j++) {
        bl_dataset_window_t at = bl_dataset_window(&dataset, step, i, j);
        const size_t source = at.tokens == &dataset.sources[0].tokens ? 0 : 1;
        assert_int_equal(at.window,
                         taken[source]++ % dataset.sources[source].windows); // sequential, then from the start
        seen[source][at.window]++;
        int32_t token;
        bl_tokens_read(at.tokens, at.window * 16 + 16, 1, &token);
        assert_int_equal(token, source == 0 ? 'a' : 'b');
      }
    }
  }
  assert_in_range(taken[0], 900 - 3, 900 + 3);
  assert_int_equal(taken[0] + taken[1], 1200);
  bl_dataset_close(&dataset);
}

static void mixed_files_are_shuffled_by_epochs(void **state) {
  (void)state;
  bl_dataset_t dataset, again;
  const char *sets =
      sets_of("data.train=[%s/a, %s/b]\ndata.weights=[1, 2]\ndata.order=shuffled\ntrain.seed=9", folder, folder);
  open_or_fail(&dataset, &model, sets);
  open_or_fail(&again, &model, sets);
  uint64_t seen[2][16] = {{0}}, taken[2] = {0}, moved = 0;
  for (uint64_t step = 0; step < 50; step++) {
    for (uint32_t i = 0; i < 6; i++) {
      for (uint32_t j = 0; j < 2; j++) {
        bl_dataset_window_t at = bl_dataset_window(&dataset, step, i, j), same = bl_dataset_window(&again, step, i, j);
        const size_t source = at.tokens == &dataset.sources[0].tokens ? 0 : 1;
        assert_int_equal(at.window, same.window);
        assert_ptr_equal(same.tokens, &again.sources[source].tokens);
        moved += at.window != taken[source] % dataset.sources[source].windows;
        // Within an epoch every window comes once.
        assert_int_equal(seen[source][at.window]++, taken[source]++ / dataset.sources[source].windows);
      }
    }
  }
  assert_true(moved > 100);
  bl_dataset_close(&dataset);
  bl_dataset_close(&again);
}

// Documents of 40, 100, 60 and 50 tokens.
static void write_megatron(size_t bin_bytes) {
  static const uint32_t lengths[] = {40, 100, 60, 50};
  static const uint64_t firsts[] = {0, 1, 2, 3, 4};
  uint8_t index[512], tokens[2 * 300] = {0};
  char path[64];
  for (size_t i = 0; i < 250; i++) {
    tokens[2 * i] = (uint8_t)i;
  }
  snprintf(path, sizeof path, "%s/m.idx", folder);
  write_file(path, index, megatron_write(index, 8, 2, lengths, 4, firsts, 5));
  snprintf(path, sizeof path, "%s/m.bin", folder);
  write_file(path, tokens, bin_bytes);
}

static void megatron_files_are_read_by_any_of_their_names(void **state) {
  (void)state;
  write_megatron(500);
  static const char *const names[] = {"m", "m.bin", "m.idx"};
  for (size_t i = 0; i < 3; i++) {
    char sets[256] = "data.format=megatron\ndata.train=";
    snprintf(sets + strlen(sets), 64, "%s/%s", folder, names[i]);
    bl_dataset_t dataset;
    open_or_fail(&dataset, &model, sets);
    assert_int_equal(dataset.train.count, 250);
    int32_t token;
    bl_tokens_read(&dataset.train, 249, 1, &token);
    assert_int_equal(token, 249);
    bl_dataset_close(&dataset);
  }
  bl_dataset_t dataset; // a tenth would begin at token 225, inside the document from 200 on
  open_or_fail(&dataset, &model, sets_of("data.format=megatron\ndata.train=%s/m\ndata.validation=0.1", folder));
  assert_int_equal(dataset.train.count, 200);
  assert_int_equal(dataset.validation.count, 50);
  bl_model_t small = model;
  small.vocab = 230;
  bl_error_t err = {0};
  bl_dataset_close(&dataset);
  assert_int_equal(
      try_open(&dataset, &small, sets_of("data.format=megatron\ndata.train=%s/m\ndata.validation=0.1", folder), &err),
      BL_INVALID);
  assert_non_null(strstr(err.text, "m.bin: byte 460: token 230 is not below model.vocab"));
}

// The cut falls into the first document of the last file. Only without files before it does that document stay cut.
static void no_document_is_on_both_sides(void **state) {
  (void)state;
  write_megatron(500);
  bl_model_t small = model;
  small.seq = 8;
  bl_dataset_t dataset;
  open_or_fail(&dataset, &small,
               sets_of("data.format=megatron\ndata.train=[%s/m, %s/m]\ndata.validation=0.45", folder, folder));
  assert_int_equal(dataset.train.count, 250);
  assert_int_equal(dataset.validation.count, 250);
  bl_dataset_close(&dataset);
  open_or_fail(&dataset, &small,
               sets_of("data.format=megatron\ndata.train=[%s/m, %s/m]\ndata.validation=0.96\ndata.weights=[1, 1]",
                       folder, folder));
  assert_int_equal(dataset.train.count, 2 * 10);
  assert_int_equal(dataset.validation.count, 2 * 240);
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

static void bad_mixtures_and_indices_are_refused(void **state) {
  (void)state;
  refuses(&model, sets_of("data.train=[%s/a, %s/b]\ndata.weights=[1]", folder, folder), BL_INVALID,
          "data.weights: has 1 entry; data.train has 2 files");
  refuses(&model, sets_of("data.train=[%s/a, %s/b]\ndata.weights=[1, 1e-12]", folder, folder), BL_INVALID,
          "data.weights: one is so small");
  bl_model_t longer = model;
  longer.seq = 100;
  refuses(&longer, sets_of("data.train=[%s/a, %s/b]\ndata.weights=[1, 1]", folder, folder), BL_INVALID,
          "/a: 80 tokens are too few");
  refuses(&model, sets_of("data.format=megatron\ndata.train=%s/a", folder), BL_NOT_FOUND, "/a.idx: cannot open");
  write_megatron(498);
  refuses(&model, sets_of("data.format=megatron\ndata.train=%s/m", folder), BL_DATA_LOSS,
          "/m.bin: truncated: its index tells of 250 tokens");
  write_megatron(502);
  refuses(&model, sets_of("data.format=megatron\ndata.train=%s/m", folder), BL_INVALID,
          "/m.bin: does not belong to its index");
}

static void files_without_tokens_are_refused(void **state) {
  (void)state;
  char path[64];
  snprintf(path, sizeof path, "%s/empty", folder);
  write_file(path, "", 0);
  refuses(&model, sets_of("data.train=[%s/b, %s/empty]", folder, folder), BL_INVALID,
          "/empty: has no tokens; take it off the list");
  refuses(&model, sets_of("data.validation=[%s/empty, %s/b]", folder, folder), BL_INVALID, "data.validation: ");
  refuses(&model, sets_of("data.train=%s/empty", folder), BL_INVALID, "0 tokens are too few for one window");
}

// Of int32 and int64 files, the only ones that can hold a token that no uint32 is.
static void tokens_are_named_as_the_file_has_them(void **state) {
  (void)state;
  static const struct {
    unsigned type;
    size_t width;
    int64_t token;
    const char *message;
  } cases[] = {
      {3, 2, -2, "/m.bin: byte 10: token -2 is negative"},
      {4, 4, -1, "/m.bin: byte 20: token -1 is negative"},
      {4, 4, INT32_MAX, "token 2147483647 is not below model.vocab, which is 256"},
      {5, 8, INT64_MIN, "/m.bin: byte 40: token -9223372036854775808 is negative"},
      {5, 8, (int64_t)1 << 40, "token 1099511627776 is not below model.vocab"},
  };
  const uint32_t lengths[] = {40};
  const uint64_t firsts[] = {0, 1};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    uint8_t index[256], tokens[40 * 8] = {0};
    char path[64];
    snprintf(path, sizeof path, "%s/m.idx", folder);
    write_file(path, index, megatron_write(index, cases[i].type, cases[i].width, lengths, 1, firsts, 2));
    megatron_put(tokens, 5 * cases[i].width, (uint64_t)cases[i].token, cases[i].width);
    snprintf(path, sizeof path, "%s/m.bin", folder);
    write_file(path, tokens, 40 * cases[i].width);
    refuses(&model, sets_of("data.format=megatron\ndata.train=%s/m", folder), BL_INVALID, cases[i].message);
  }
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

// Ids above 65535 do not fit uint16: a file of uint32 without a header is told from one of small ids.
static void raw_tokens_of_four_bytes_are_not_read_as_two(void **state) {
  (void)state;
  static uint32_t wide[400];
  uint16_t narrow[800] = {0};
  char path[64], sets[256];
  snprintf(path, sizeof path, "%s/w", folder);
  snprintf(sets, sizeof sets, "data.format=bin\ndata.train=%s", path);
  const bl_model_t large = {.vocab = 151936, .seq = 4}, small = {.vocab = 65536, .seq = 4};
  bl_dataset_t dataset;
  for (uint32_t i = 0; i < 400; i++) {
    wide[i] = i * 379;
    narrow[2 * i] = narrow[2 * i + 1] = (uint16_t)i;
  }
  write_file(path, wide, sizeof wide);
  refuses(&large, sets, BL_INVALID, "looks like uint32: write it with the header (magic 20240801, version 7)");
  open_or_fail(&dataset, &small, sets); // there they may be two ids
  bl_dataset_close(&dataset);
  write_file(path, narrow, sizeof narrow);
  open_or_fail(&dataset, &large, sets);
  bl_dataset_close(&dataset);
  static uint32_t with_header[256 + 400] = {20240801, 7, 400};
  memcpy(with_header + 256, wide, sizeof wide);
  write_file(path, with_header, sizeof with_header);
  open_or_fail(&dataset, &large, sets);
  int32_t last;
  bl_tokens_read(&dataset.train, 399, 1, &last);
  assert_int_equal(last, 399 * 379);
  bl_dataset_close(&dataset);
  refuses(&small, sets, BL_INVALID, "is not below model.vocab, which is 65536");
  unlink(path);
}

// Mask of a file of the folder: `count` bytes, every `nth` token counts.
static void write_mask(const char *name, size_t count, size_t nth) {
  char path[128];
  uint8_t mask[256];
  snprintf(path, sizeof path, "%s/%s.mask", folder, name);
  for (size_t i = 0; i < count; i++) {
    mask[i] = i % nth == 0;
  }
  write_file(path, mask, count);
}

// Every third of 80 tokens counts, every second of 240; the last quarter of each is held out.
static void masks_say_which_labels_count(void **state) {
  (void)state;
  bl_dataset_t dataset;
  bl_error_t err = {0};
  write_mask("a", 80, 3);
  write_mask("b", 240, 2);
  open_or_fail(
      &dataset, &model,
      sets_of("data.loss=masked\ndata.train=[%s/a, %s/b]\ndata.weights=[3, 1]\ndata.validation=0.25", folder, folder));
  assert_true(dataset.masked);
  for (uint64_t step = 0; step < 20; step++) {
    uint64_t expected = 0, counted;
    for (uint32_t i = 0; i < 12; i++) {
      const bl_dataset_window_t at = bl_dataset_window(&dataset, step, i / 2, i % 2);
      for (uint64_t label = at.window * 16 + 1; label <= at.window * 16 + 16; label++) {
        expected += label % (at.tokens == &dataset.sources[0].tokens ? 3 : 2) == 0;
      }
    }
    assert_int_equal(bl_dataset_count_labels(&dataset, step, &counted, &err), BL_OK);
    assert_int_equal(counted, expected);
  }
  uint64_t counted,
      expected = 0; // 20 tokens of the first file, from its 60th on, then 60 of the second, from its 180th
  assert_int_equal(bl_dataset_count_validation_labels(&dataset, &counted, &err), BL_OK);
  assert_int_equal(bl_dataset_validation_micro_batches(&dataset), 2); // of 4 windows, in pairs
  for (uint64_t label = 1; label <= 64; label++) {
    expected += label < 20 ? (60 + label) % 3 == 0 : (180 + label - 20) % 2 == 0;
  }
  assert_int_equal(counted, expected);
  bl_dataset_close(&dataset);
}

static void masks_of_megatron_files_lie_beside_their_tokens(void **state) {
  (void)state;
  bl_dataset_t dataset;
  bl_error_t err = {0};
  uint64_t counted;
  write_megatron(500);
  write_mask("m.bin", 250, 5);
  open_or_fail(&dataset, &model, sets_of("data.loss=masked\ndata.format=megatron\ndata.train=%s/m.idx", folder));
  assert_int_equal(bl_dataset_count_labels(&dataset, 0, &counted, &err), BL_OK);
  assert_int_equal(counted, 12 * 16 / 5); // labels 1 to 192
  bl_dataset_close(&dataset);
}

static void bad_masks_are_refused(void **state) {
  (void)state;
  const char *sets = sets_of("data.loss=masked\ndata.train=%s/b", folder);
  char path[128];
  snprintf(path, sizeof path, "%s/b.mask", folder);
  unlink(path);
  refuses(&model, sets, BL_NOT_FOUND, "b.mask: cannot open");
  refuses(&model, sets, BL_NOT_FOUND, "; with data.loss: masked every file needs a mask");
  write_mask("b", 239, 2);
  refuses(&model, sets, BL_INVALID, "b.mask: has 239 bytes, one for each of the 240 tokens of ");
  write_mask("b", 240, 240); // the first token is no label
  refuses(&model, sets, BL_INVALID, "no token to train on counts in the mask of ");
  uint8_t mask[240] = {[5] = 1, [239] = 2};
  write_file(path, mask, sizeof mask);
  refuses(&model, sets, BL_INVALID, "b.mask: byte 239 is 2, a mask has 0 and 1");
  mask[239] = 0;
  write_file(path, mask, sizeof mask);
  refuses(&model, sets_of("data.loss=masked\ndata.train=%s/b\ndata.validation=0.5", folder), BL_INVALID,
          "no token of the first 256 held-out windows counts");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(text_is_read_whole),
      cmocka_unit_test(the_end_or_files_are_held_out),
      cmocka_unit_test(bad_data_is_refused),
      cmocka_unit_test(files_without_tokens_are_refused),
      cmocka_unit_test(tokens_are_named_as_the_file_has_them),
      cmocka_unit_test(windows_between_samples_are_left_to_the_reader),
      cmocka_unit_test(raw_tokens_of_four_bytes_are_not_read_as_two),
      cmocka_unit_test(weights_mix_files),
      cmocka_unit_test(mixed_files_are_shuffled_by_epochs),
      cmocka_unit_test(megatron_files_are_read_by_any_of_their_names),
      cmocka_unit_test(no_document_is_on_both_sides),
      cmocka_unit_test(bad_mixtures_and_indices_are_refused),
      cmocka_unit_test(masks_say_which_labels_count),
      cmocka_unit_test(masks_of_megatron_files_lie_beside_their_tokens),
      cmocka_unit_test(bad_masks_are_refused),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
