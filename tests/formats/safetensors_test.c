// SPDX-License-Identifier: Apache-2.0
// Verifies the safetensors header: files that transformers wrote, what the writer makes, and that every malformed header
// is refused with a message that names the tensor and the cause.
#include "formats/safetensors.h"

#include "sys/file_map.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GOLDEN BALLAST_SOURCE_DIR "/tests/golden/"

// Builds a file of `header` and `data_bytes` zero bytes; the caller frees it.
static uint8_t *make_file(const char *header, size_t data_bytes, size_t *size_bytes) {
  size_t length = strlen(header);
  *size_bytes = 8 + length + data_bytes;
  uint8_t *file = calloc(1, *size_bytes);
  assert_non_null(file);
  for (int i = 0; i < 8; i++) {
    file[i] = (uint8_t)((uint64_t)length >> (8 * i));
  }
  memcpy(file + 8, header, length);
  return file;
}

static void reads_a_file_of_transformers(void **state) {
  (void)state;
  bl_error_t err = {0};
  bl_file_map_t map;
  assert_int_equal(bl_file_map_open(&map, GOLDEN "gpt2/model.safetensors", &err), BL_OK);
  bl_safetensors_t index;
  if (bl_safetensors_parse(&index, map.bytes, map.size_bytes, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(index.count, 2 + 3 * 12 + 2);
  const bl_tensor_entry_t *wte = bl_safetensors_find(&index, "transformer.wte.weight");
  assert_non_null(wte);
  assert_int_equal(wte->dtype, BL_TENSOR_F32);
  assert_int_equal(wte->rank, 2);
  assert_int_equal(wte->shape[0], 101);
  assert_int_equal(wte->shape[1], 48);
  assert_int_equal(wte->elements, 101 * 48);
  assert_int_equal(wte->size_bytes, 101 * 48 * 4);
  assert_null(bl_safetensors_find(&index, "transformer.wte.bias"));
  for (size_t i = 1; i < index.count; i++) {
    assert_true(strcmp(index.tensors[i - 1].name, index.tensors[i].name) < 0);
  }
  bl_safetensors_cleanup(&index);
  bl_file_map_close(&map);
}

static void every_truncation_is_refused(void **state) {
  (void)state;
  bl_error_t err = {0};
  bl_file_map_t map;
  assert_int_equal(bl_file_map_open(&map, GOLDEN "single-f16/model.safetensors", &err), BL_OK);
  for (size_t size = 0; size < map.size_bytes; size++) {
    uint8_t *cut = malloc(size + 1); // exact size, so that the address sanitizer sees a read beyond it
    assert_non_null(cut);
    uint8_t *bytes = realloc(cut, size > 0 ? size : 1);
    assert_non_null(bytes);
    memcpy(bytes, map.bytes, size);
    bl_safetensors_t index;
    bl_status_t status = bl_safetensors_parse(&index, bytes, size, &err);
    if (status != BL_DATA_LOSS || strstr(err.text, "truncated") == NULL) {
      fail_msg("cut to %zu bytes: status %s, text '%s'", size, bl_status_name(status), err.text);
    }
    free(bytes);
  }
  bl_file_map_close(&map);
}

typedef struct {
  const char *header;
  size_t data_bytes;
  const char *message; // NULL: accepted
} case_t;

static void malformed_headers_are_refused_by_name(void **state) {
  (void)state;
  static const case_t cases[] = {
      {"{}", 0, NULL},
      {"{\"__metadata__\":{\"format\":\"pt\"}}   ", 0, NULL},
      {"{\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, NULL},
      {"{\"e\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[0,0]},"
       "\"s\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
       4, NULL},
      {"[]", 0, "not a JSON object"},
      {"7", 0, "byte"},
      {"{\"a\":", 0, "safetensors header: byte"},
      {"{} x", 0, "safetensors header: byte"},
      {"{\"\xff\":1}", 0, "unable to decode byte 0xff"},
      {"{\"__metadata__\":7}", 0, "__metadata__ is not an object"},
      {"{\"__metadata__\":{\"a\":1}}", 0, "'a' is not a text"},
      {"{\"a\":7}", 0, "'a': needs a known \"dtype\", has 'none'"},
      {"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
       "'a': needs a known \"dtype\", has 'F33'"},
      {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "'a': needs a \"shape\""},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "9 dimensions"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "dimension 0"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "dimension 0"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "two whole numbers"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "two whole numbers"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "which needs 8 bytes"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "[4, 0] do not hold shape [1]"},
      {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, "does not have a size in bytes"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "fits 64 bits"},
      {"{\"a\":{\"dtype\":\"F64\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0, "fits 64 bits"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,0]}}", 0, "too big integer"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 3, "truncated: tensor 'a' ends at byte 4"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5, "1 byte after the last tensor"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "'a': starts 4 bytes after"},
      {"{\"a\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]},"
       "\"b\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
       6, "'b': its data overlaps that of tensor 'a'"},
      {"{\"a\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]},"
       "\"a\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
       8, "duplicate"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    size_t size;
    uint8_t *file = make_file(cases[i].header, cases[i].data_bytes, &size);
    bl_safetensors_t index;
    bl_error_t err = {0};
    bl_status_t status = bl_safetensors_parse(&index, file, size, &err);
    if (cases[i].message == NULL) {
      if (status != BL_OK) {
        fail_msg("%s: refused: %s", cases[i].header, err.text);
      }
      bl_safetensors_cleanup(&index);
    } else if (status == BL_OK || strstr(err.text, cases[i].message) == NULL) {
      fail_msg("%s: expected '%s', got %s '%s'", cases[i].header, cases[i].message, bl_status_name(status), err.text);
    }
    free(file);
  }
}

static void a_hostile_length_is_refused(void **state) {
  (void)state;
  const uint8_t huge[16] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '{', '}'};
  const uint8_t large[16] = {0, 0xe1, 0xf5, 0x05, 0, 0, 0, 0, '{', '}'}; // 100000000: the limit itself
  bl_safetensors_t index;
  bl_error_t err = {0};
  assert_int_equal(bl_safetensors_parse(&index, huge, sizeof huge, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "limit is 100000000"));
  assert_int_equal(bl_safetensors_parse(&index, large, sizeof large, &err), BL_DATA_LOSS);
}

static void what_is_written_reads_back(void **state) {
  (void)state;
  bl_tensor_entry_t tensors[] = {
      {.name = "z", .dtype = BL_TENSOR_F32, .rank = 2, .shape = {3, 5}},
      {.name = "a", .dtype = BL_TENSOR_F16, .rank = 1, .shape = {7}},
      {.name = "quoted \" \xc3\xa9", .dtype = BL_TENSOR_F64, .rank = 0},
  };
  bl_error_t err = {0};
  char *header;
  size_t header_bytes;
  assert_int_equal(bl_safetensors_write_header(tensors, 3, &header, &header_bytes, &err), BL_OK);
  assert_int_equal(header_bytes % 8, 0);
  assert_int_equal(tensors[0].offset_bytes, header_bytes);
  assert_int_equal(tensors[1].offset_bytes, header_bytes + 60);
  assert_int_equal(tensors[2].offset_bytes, header_bytes + 74);
  size_t size = header_bytes + 82;
  uint8_t *file = calloc(1, size);
  assert_non_null(file);
  memcpy(file, header, header_bytes);
  bl_safetensors_t index;
  if (bl_safetensors_parse(&index, file, size, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(index.count, 3);
  for (size_t i = 0; i < 3; i++) {
    const bl_tensor_entry_t *found = bl_safetensors_find(&index, tensors[i].name);
    assert_non_null(found);
    assert_int_equal(found->offset_bytes, tensors[i].offset_bytes);
    assert_int_equal(found->size_bytes, tensors[i].size_bytes);
    assert_int_equal(found->dtype, tensors[i].dtype);
    assert_int_equal(found->rank, tensors[i].rank);
  }
  bl_safetensors_cleanup(&index);
  free(file);
  free(header);
}

static void what_cannot_be_written_is_refused(void **state) {
  (void)state;
  bl_error_t err = {0};
  char *header;
  size_t size;
  bl_tensor_entry_t twice[] = {{.name = "a", .rank = 0}, {.name = "a", .rank = 0}};
  assert_int_equal(bl_safetensors_write_header(twice, 2, &header, &size, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "'a': the name is reserved or given twice"));
  bl_tensor_entry_t reserved = {.name = "__metadata__"};
  assert_int_equal(bl_safetensors_write_header(&reserved, 1, &header, &size, &err), BL_INVALID);
  bl_tensor_entry_t large = {.name = "a", .rank = 2, .shape = {UINT64_MAX, 2}};
  assert_int_equal(bl_safetensors_write_header(&large, 1, &header, &size, &err), BL_INVALID);
  bl_tensor_entry_t garbled = {.name = "\xff"};
  assert_int_equal(bl_safetensors_write_header(&garbled, 1, &header, &size, &err), BL_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reads_a_file_of_transformers),
      cmocka_unit_test(every_truncation_is_refused),
      cmocka_unit_test(malformed_headers_are_refused_by_name),
      cmocka_unit_test(a_hostile_length_is_refused),
      cmocka_unit_test(what_is_written_reads_back),
      cmocka_unit_test(what_cannot_be_written_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
