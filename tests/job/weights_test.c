// SPDX-License-Identifier: Apache-2.0
// Verifies reading of Hugging Face folders: values of bf16 shards and fp16 files against sums that PyTorch computed, and
// refusals that name the tensor.
#include "job/weights.h"

#include "sys/file.h"

#include <jansson.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define GOLDEN BALLAST_SOURCE_DIR "/tests/golden/"

// The model of the storage samples of tests/golden/make_golden.py.
static const bl_model_t tiny = {.family = BL_FAMILY_GPT2,
                                .layers = 2,
                                .hidden = 8,
                                .heads = 2,
                                .kv_heads = 2,
                                .head_dim = 4,
                                .ffn = 32,
                                .vocab = 11,
                                .seq = 8,
                                .tied = true,
                                .norm_epsilon = 1e-5};

static double expected_number(const json_t *tensor, const char *key) {
  const json_t *value = json_object_get(tensor, key);
  assert_true(json_is_number(value));
  return json_number_value(value);
}

static void check_values(const char *folder) {
  bl_error_t err = {0};
  char path[512];
  snprintf(path, sizeof path, GOLDEN "%s/expected.json", folder);
  json_t *expected = json_load_file(path, 0, NULL);
  assert_non_null(expected);
  snprintf(path, sizeof path, GOLDEN "%s", folder);
  bl_weights_t weights;
  if (bl_weights_open(&weights, path, &err) != BL_OK || bl_weights_check(&weights, &tiny, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(json_object_size(expected), bl_parameter_count(&tiny));
  for (uint32_t i = 0; i < bl_parameter_count(&tiny); i++) {
    bl_parameter_t parameter = bl_parameter_get(&tiny, i);
    const json_t *tensor = json_object_get(expected, parameter.name);
    assert_non_null(tensor);
    float *values = malloc(parameter.elements * sizeof *values);
    assert_non_null(values);
    // In two parts, so that an offset into the tensor is used too.
    uint64_t half = parameter.elements / 2;
    assert_int_equal(bl_weights_read(&weights, &parameter, 0, half, values, &err), BL_OK);
    assert_int_equal(bl_weights_read(&weights, &parameter, half, parameter.elements - half, values + half, &err),
                     BL_OK);
    double sum = 0, weighted = 0;
    for (uint64_t e = 0; e < parameter.elements; e++) {
      sum += values[e];
      weighted += values[e] * (double)(e + 1);
    }
    assert_true(values[0] == expected_number(tensor, "first"));
    assert_true(values[parameter.elements - 1] == expected_number(tensor, "last"));
    assert_true(fabs(sum - expected_number(tensor, "sum")) < 1e-9);
    assert_true(fabs(weighted - expected_number(tensor, "weighted_sum")) < 1e-6);
    free(values);
  }
  bl_weights_close(&weights);
  json_decref(expected);
}

static void reads_shards_of_bf16(void **state) {
  (void)state;
  check_values("sharded-bf16");
}

static void reads_a_file_of_fp16(void **state) {
  (void)state;
  check_values("single-f16");
}

static void another_model_is_refused_by_tensor(void **state) {
  (void)state;
  bl_error_t err = {0};
  bl_weights_t weights;
  assert_int_equal(bl_weights_open(&weights, GOLDEN "sharded-bf16", &err), BL_OK);
  bl_model_t other = tiny;
  other.layers = 3;
  assert_int_equal(bl_weights_check(&weights, &other, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "tensor 'transformer.h.2.ln_1.weight' of shape [8] is missing"));
  other = tiny;
  other.ffn = 24;
  assert_int_equal(bl_weights_check(&weights, &other, &err), BL_INVALID);
  assert_non_null(
      strstr(err.text, "tensor 'transformer.h.0.mlp.c_fc.weight' has shape [8, 32], the model needs [8, 24]"));
  other = tiny;
  other.tied = false;
  assert_int_equal(bl_weights_check(&weights, &other, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "lm_head.weight"));
  other = tiny;
  other.layers = 1;
  assert_int_equal(bl_weights_check(&weights, &other, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "tensor 'transformer.h.1."));
  assert_non_null(strstr(err.text, "is none of the 1-layer model that config.json describes; correct config.json"));
  bl_weights_close(&weights);
}

// A new folder under the temporary directory; the caller removes its files.
static void make_folder(char path[64]) {
  strcpy(path, "/tmp/ballast-weights-XXXXXX");
  assert_non_null(mkdtemp(path));
}

static void write_file(const char *folder, const char *name, const void *bytes, size_t size) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  bl_error_t err = {0};
  if (bl_file_replace(path, bytes, size, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
}

static void remove_file(const char *folder, const char *name) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  assert_int_equal(unlink(path), 0);
}

static void refuses(const char *folder, bl_status_t expected, const char *message) {
  bl_error_t err = {0};
  bl_weights_t weights;
  bl_status_t status = bl_weights_open(&weights, folder, &err);
  if (status != expected || strstr(err.text, message) == NULL) {
    fail_msg("expected %s '%s', got %s '%s'", bl_status_name(expected), message, bl_status_name(status), err.text);
  }
}

static void broken_folders_are_refused(void **state) {
  (void)state;
  char folder[64];
  make_folder(folder);
  refuses("/nonexistent", BL_NOT_FOUND, "/nonexistent");
  refuses(folder, BL_NOT_FOUND, "has neither model.safetensors nor model.safetensors.index.json");
  write_file(folder, "model.safetensors", "\x40\0\0\0\0\0\0\0{}", 10);
  refuses(folder, BL_DATA_LOSS, "model.safetensors: truncated");
  remove_file(folder, "model.safetensors");
  const char *index = "{\"weight_map\": {\"a\": \"x.safetensors\"}}";
  write_file(folder, "model.safetensors.index.json", index, strlen(index));
  refuses(folder, BL_NOT_FOUND, "names a shard that is not there");
  write_file(folder, "x.safetensors", "\x02\0\0\0\0\0\0\0{}", 10);
  refuses(folder, BL_INVALID, "x.safetensors: tensor 'a' is not in it");
  remove_file(folder, "x.safetensors");
  remove_file(folder, "model.safetensors.index.json");
  assert_int_equal(rmdir(folder), 0);
}

// One tensor "wte.weight" (as GPT2Model saves it) of `dtype` with the given bytes.
static void write_single(const char *folder, bl_tensor_dtype_t dtype, const void *data, size_t count) {
  bl_error_t err = {0};
  bl_tensor_entry_t tensor = {.name = "wte.weight", .dtype = dtype, .rank = 2, .shape = {1, count}};
  char *header;
  size_t header_bytes;
  assert_int_equal(bl_safetensors_write_header(&tensor, 1, &header, &header_bytes, &err), BL_OK);
  char *file = malloc(header_bytes + tensor.size_bytes);
  assert_non_null(file);
  memcpy(file, header, header_bytes);
  memcpy(file + header_bytes, data, tensor.size_bytes);
  write_file(folder, "model.safetensors", file, header_bytes + tensor.size_bytes);
  free(file);
  free(header);
}

static bl_status_t read_single(const char *folder, uint32_t count, float *values, bl_error_t *err) {
  bl_model_t model = tiny;
  model.vocab = 1;
  model.hidden = count;
  model.heads = model.kv_heads = 1;
  model.head_dim = count;
  bl_parameter_t parameter = bl_parameter_get(&model, 0);
  bl_weights_t weights;
  assert_int_equal(bl_weights_open(&weights, folder, err), BL_OK);
  bl_status_t status = bl_weights_read(&weights, &parameter, 0, count, values, err);
  bl_weights_close(&weights);
  return status;
}

static void every_half_is_converted(void **state) {
  (void)state;
  char folder[64];
  make_folder(folder);
  bl_error_t err = {0};
  float values[8];
  // 1, -2, largest, smallest normal, largest subnormal, smallest subnormal, 0, -0.
  const uint16_t halves[] = {0x3C00, 0xC000, 0x7BFF, 0x0400, 0x03FF, 0x0001, 0x0000, 0x8000};
  const float expected[] = {1, -2, 65504, 0x1p-14f, 0x1p-14f - 0x1p-24f, 0x1p-24f, 0, -0.0f};
  write_single(folder, BL_TENSOR_F16, halves, 8);
  assert_int_equal(read_single(folder, 8, values, &err), BL_OK);
  assert_memory_equal(values, expected, sizeof expected);
  const uint16_t infinite[] = {0x3C00, 0x7C00};
  write_single(folder, BL_TENSOR_F16, infinite, 2);
  assert_int_equal(read_single(folder, 2, values, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "tensor 'transformer.wte.weight': element 1 is not finite"));
  const double doubles[] = {1, 2};
  write_single(folder, BL_TENSOR_F64, doubles, 2);
  assert_int_equal(read_single(folder, 2, values, &err), BL_UNIMPLEMENTED);
  assert_non_null(strstr(err.text, "is stored as F64"));
  remove_file(folder, "model.safetensors");
  assert_int_equal(rmdir(folder), 0);
}

// In a file of its own, beside the model of single-f16.
static void write_beside(const char *folder, const char *name, const uint8_t *bytes, size_t size) {
  bl_error_t err = {0};
  bl_tensor_entry_t tensor = {.name = name, .dtype = BL_TENSOR_F16, .rank = 2, .shape = {tiny.vocab, tiny.hidden}};
  char *header;
  size_t header_bytes;
  assert_int_equal(bl_safetensors_write_header(&tensor, 1, &header, &header_bytes, &err), BL_OK);
  assert_int_equal(tensor.size_bytes, size);
  char *file = malloc(header_bytes + size);
  assert_non_null(file);
  memcpy(file, header, header_bytes);
  memcpy(file + header_bytes, bytes, size);
  write_file(folder, "beside.safetensors", file, header_bytes + size);
  free(file);
  free(header);
}

static bl_status_t check_folder(const char *folder, bl_error_t *err) {
  bl_weights_t weights;
  assert_int_equal(bl_weights_open(&weights, folder, err), BL_OK);
  bl_status_t status = bl_weights_check(&weights, &tiny, err);
  bl_weights_close(&weights);
  return status;
}

static void the_head_of_a_tied_model_is_a_copy(void **state) {
  (void)state;
  char folder[64], link[512];
  bl_error_t err = {0};
  bl_weights_t whole;
  make_folder(folder);
  assert_int_equal(bl_weights_open(&whole, GOLDEN "single-f16", &err), BL_OK);
  const bl_tensor_entry_t *table = bl_safetensors_find(&whole.files[0].index, "transformer.wte.weight");
  assert_non_null(table);
  uint8_t *bytes = malloc(table->size_bytes);
  assert_non_null(bytes);
  memcpy(bytes, whole.files[0].map.bytes + table->offset_bytes, table->size_bytes);
  snprintf(link, sizeof link, "%s/body.safetensors", folder);
  assert_int_equal(symlink(GOLDEN "single-f16/model.safetensors", link), 0);
  const char *index = "{\"weight_map\": {\"transformer.wte.weight\": \"body.safetensors\", "
                      "\"lm_head.weight\": \"beside.safetensors\"}}";
  write_file(folder, "model.safetensors.index.json", index, strlen(index));
  write_beside(folder, "lm_head.weight", bytes, table->size_bytes);
  assert_int_equal(check_folder(folder, &err), BL_OK);
  bytes[table->size_bytes - 1] ^= 1;
  write_beside(folder, "lm_head.weight", bytes, table->size_bytes);
  assert_int_equal(check_folder(folder, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "beside.safetensors: tensor 'lm_head.weight' is not 'transformer.wte.weight'"));
  free(bytes);
  bl_weights_close(&whole);
  remove_file(folder, "beside.safetensors");
  remove_file(folder, "body.safetensors");
  remove_file(folder, "model.safetensors.index.json");
  assert_int_equal(rmdir(folder), 0);
}

// Old files of GPT-2 have the masks of attention; what else the model does not have would be dropped without a word.
static void buffers_are_left_out_and_other_tensors_refused(void **state) {
  (void)state;
  static const struct {
    const char *name;
    bl_status_t expected;
  } cases[] = {{"transformer.h.1.attn.bias", BL_OK},
               {"h.0.attn.masked_bias", BL_OK},
               {"transformer.h.2.mlp.c_fc.bias", BL_INVALID},
               {"model.layers.0.self_attn.q_proj.bias", BL_INVALID}};
  char folder[64], link[512];
  uint8_t bytes[2 * 11 * 8] = {0};
  make_folder(folder);
  snprintf(link, sizeof link, "%s/body.safetensors", folder);
  assert_int_equal(symlink(GOLDEN "single-f16/model.safetensors", link), 0);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char index[256];
    bl_error_t err = {0};
    snprintf(index, sizeof index,
             "{\"weight_map\": {\"transformer.wte.weight\": \"body.safetensors\", \"%s\": \"beside.safetensors\"}}",
             cases[i].name);
    write_file(folder, "model.safetensors.index.json", index, strlen(index));
    write_beside(folder, cases[i].name, bytes, sizeof bytes);
    const bl_status_t status = check_folder(folder, &err);
    if (status != cases[i].expected || (status != BL_OK && strstr(err.text, cases[i].name) == NULL)) {
      fail_msg("%s: %s '%s'", cases[i].name, bl_status_name(status), err.text);
    }
  }
  remove_file(folder, "beside.safetensors");
  remove_file(folder, "body.safetensors");
  remove_file(folder, "model.safetensors.index.json");
  assert_int_equal(rmdir(folder), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reads_shards_of_bf16),
      cmocka_unit_test(reads_a_file_of_fp16),
      cmocka_unit_test(another_model_is_refused_by_tensor),
      cmocka_unit_test(broken_folders_are_refused),
      cmocka_unit_test(every_half_is_converted),
      cmocka_unit_test(the_head_of_a_tied_model_is_a_copy),
      cmocka_unit_test(buffers_are_left_out_and_other_tensors_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
