// SPDX-License-Identifier: Apache-2.0
// Verifies ballast.json: what is written is read back, and what is foreign, newer or contradicts itself is refused with
// the reason.
#include "formats/checkpoint_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HEAD  "{\"format\": \"ballast-checkpoint\", \"version\": 1, \"step\": 3, \"seed\": 1, \"files\": "
#define ZEROS "\"0000000000000000\""

static void test_round_trip(void **state) {
  (void)state;
  bl_checkpoint_tensor_t tensors[] = {{"a.weight", 0x0123456789abcdefu, 0}, {"b.weight", UINT64_MAX, 384}};
  bl_checkpoint_file_t files[] = {{"model.safetensors", 1u << 20, 1, tensors, 2}, {"config.json", 17, 2, NULL, 0}};
  bl_checkpoint_state_t written = {.writer = "0.1.0",
                                   .step = 120,
                                   .seed = -5,
                                   .tensor_parts = 2,
                                   .data_parts = 4,
                                   .slices = 8,
                                   .attention = "naive",
                                   .files = files,
                                   .file_count = 2};
  char *text;
  size_t text_bytes;
  bl_error_t err = {0};
  assert_int_equal(bl_checkpoint_state_write(&written, &text, &text_bytes, &err), BL_OK);
  bl_checkpoint_state_t read;
  if (bl_checkpoint_state_parse(&read, text, text_bytes, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(read.step, 120);
  assert_int_equal(read.seed, -5);
  assert_int_equal(read.data_parts, 4);
  assert_int_equal(read.slices, 8);
  assert_string_equal(read.attention, "naive");
  assert_string_equal(read.writer, "0.1.0");
  assert_int_equal(read.file_count, 2);
  assert_string_equal(read.files[0].name, "model.safetensors");
  assert_int_equal(read.files[0].size_bytes, 1u << 20);
  assert_int_equal(read.files[0].head_checksum, 1);
  assert_int_equal(read.files[0].tensor_count, 2);
  assert_string_equal(read.files[0].tensors[0].name, "a.weight");
  assert_true(read.files[0].tensors[0].checksum == 0x0123456789abcdefu);
  assert_true(read.files[0].tensors[1].checksum == UINT64_MAX);
  assert_int_equal(read.files[1].tensor_count, 0);
  bl_checkpoint_state_cleanup(&read);
  free(text);
}

static void test_refusals(void **state) {
  (void)state;
  const struct {
    const char *text;
    bl_status_t status;
    const char *says;
  } cases[] = {
      {"", BL_INVALID, "not JSON"},
      {"{\"format\": \"ballast-che", BL_INVALID, "not JSON"},
      {"[]", BL_INVALID, "not the state"},
      {"{\"format\": \"other\"}", BL_INVALID, "not the state"},
      {"{\"format\": \"ballast-checkpoint\"}", BL_INVALID, "version"},
      {"{\"format\": \"ballast-checkpoint\", \"version\": 3, \"ballast\": \"9.1\"}", BL_UNIMPLEMENTED, "9.1"},
      {"{\"format\": \"ballast-checkpoint\", \"version\": 1, \"step\": 0}", BL_INVALID, "step"},
      {"{\"format\": \"ballast-checkpoint\", \"version\": 1, \"step\": 1}", BL_INVALID, "seed"},
      {HEAD "{}}", BL_INVALID, "files"},
      {HEAD "{\"../x\": {\"size\": 1, \"head\": " ZEROS "}}}", BL_INVALID, "same folder"},
      {HEAD "{\"x\": {\"size\": -1, \"head\": " ZEROS "}}}", BL_INVALID, "size"},
      {HEAD "{\"x\": {\"size\": 1, \"head\": \"0\"}}}", BL_INVALID, "16 hexadecimal"},
      {HEAD "{\"x\": {\"size\": 1, \"head\": " ZEROS ", \"tensors\": 1}}}", BL_INVALID, "tensors"},
      {HEAD "{\"x\": {\"size\": 1, \"head\": " ZEROS ", \"tensors\": {\"t\": 5}}}}", BL_INVALID, "'t'"},
      {HEAD "{\"x\": {\"size\": 1, \"head\": " ZEROS ", \"tensors\": {\"t\": " ZEROS "}, \"tiles\": {\"t\": 0}}}}",
       BL_INVALID, "tiles of tensor 't'"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bl_checkpoint_state_t read;
    bl_error_t err = {0};
    bl_status_t status = bl_checkpoint_state_parse(&read, cases[i].text, strlen(cases[i].text), &err);
    if (status != cases[i].status || strstr(err.text, cases[i].says) == NULL) {
      fail_msg("%s: status %d, '%s'; expected %d, '...%s...'", cases[i].text, (int)status, err.text,
               (int)cases[i].status, cases[i].says);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trip), cmocka_unit_test(test_refusals)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
