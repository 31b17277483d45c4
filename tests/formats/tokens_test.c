// SPDX-License-Identifier: Apache-2.0
// Verifies token streams: the three encodings, headers, concatenation, ranges, and finding tokens beyond a vocabulary.
#include "formats/tokens.h"

#include "sys/file_map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void put_u32(uint8_t *bytes, uint32_t value) {
  for (int i = 0; i < 4; i++) {
    bytes[i] = (uint8_t)(value >> (8 * i));
  }
}

// An llm.c file with `payload_bytes` of zeros after the header.
static uint8_t *make_bin(uint32_t magic, uint32_t version, uint32_t count, size_t payload_bytes) {
  uint8_t *file = calloc(1, 1024 + payload_bytes);
  assert_non_null(file);
  put_u32(file, magic);
  put_u32(file + 4, version);
  put_u32(file + 8, count);
  return file;
}

static void reads_llm_c_files(void **state) {
  (void)state;
  bl_error_t err = {0};
  bl_token_part_t part;
  uint8_t *file = make_bin(20240520, 1, 3, 6);
  memcpy(file + 1024, "\x05\x00\xff\xff\x00\x01", 6);
  assert_int_equal(bl_token_part_bin(&part, file, 1030, &err), BL_OK);
  bl_tokens_t tokens;
  assert_int_equal(bl_tokens_init(&tokens, &part, 1), BL_OK);
  int32_t out[3];
  bl_tokens_read(&tokens, 0, 3, out);
  assert_int_equal(out[0], 5);
  assert_int_equal(out[1], 65535);
  assert_int_equal(out[2], 256);
  assert_int_equal(bl_tokens_place(&tokens, 2).offset_bytes, 1028);
  free(file);
  file = make_bin(20240801, 7, 2, 8);
  put_u32(file + 1024, 128000);
  put_u32(file + 1028, UINT32_MAX);
  assert_int_equal(bl_token_part_bin(&part, file, 1032, &err), BL_OK);
  assert_int_equal(bl_tokens_init(&tokens, &part, 1), BL_OK);
  bl_tokens_read(&tokens, 0, 2, out);
  assert_int_equal(out[0], 128000);
  assert_int_equal(out[1], INT32_MAX);
  assert_int_equal(bl_tokens_find_above(&tokens, 0, 2, 128001), 1);
  free(file);
}

static void reads_the_golden_tokens(void **state) {
  (void)state;
  bl_error_t err = {0};
  bl_file_map_t map;
  assert_int_equal(bl_file_map_open(&map, BALLAST_SOURCE_DIR "/tests/golden/gpt2/tokens.bin", &err), BL_OK);
  bl_token_part_t part;
  assert_int_equal(bl_token_part_bin(&part, map.bytes, map.size_bytes, &err), BL_OK);
  assert_int_equal(part.count, 2001);
  bl_tokens_t tokens;
  assert_int_equal(bl_tokens_init(&tokens, &part, 1), BL_OK);
  assert_int_equal(bl_tokens_find_above(&tokens, 0, tokens.count, 101), BL_TOKENS_NONE);
  assert_int_not_equal(bl_tokens_find_above(&tokens, 0, tokens.count, 100), BL_TOKENS_NONE);
  bl_file_map_close(&map);
}

static void malformed_bins_are_refused(void **state) {
  (void)state;
  const struct {
    uint32_t magic, version, count;
    size_t payload, size;
    bl_status_t status;
    const char *message;
  } cases[] = {
      {20240520, 2, 0, 0, 1024, BL_INVALID, "version 2 is not known"},
      {20240801, 1, 0, 0, 1024, BL_INVALID, "version 1 is not known"},
      {20240520, 1, 4, 6, 1030, BL_DATA_LOSS, "announces 4 tokens of 2 bytes, the file has 6 bytes"},
      {20240520, 1, 2, 6, 1030, BL_INVALID, "2 bytes more"},
      {20240520, 1, UINT32_MAX, 6, 1030, BL_INVALID, "negative"},
      {20240520, 1, 0, 0, 1023, BL_DATA_LOSS, "llm.c's header alone has"},
      {20240520, 1, 0, 0, 4, BL_DATA_LOSS, "truncated: 4 bytes"},
      {7, 1, 0, 0, 1023, BL_INVALID, "odd"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    uint8_t *file = make_bin(cases[i].magic, cases[i].version, cases[i].count, cases[i].payload);
    bl_token_part_t part;
    bl_error_t err = {0};
    bl_status_t status = bl_token_part_bin(&part, file, cases[i].size, &err);
    if (status != cases[i].status || strstr(err.text, cases[i].message) == NULL) {
      fail_msg("case %zu: expected '%s', got %s '%s'", i, cases[i].message, bl_status_name(status), err.text);
    }
    free(file);
  }
}

// Five parts, two of them empty: text "abc", nothing, uint16 {1, 2}, text "d", nothing.
static bl_tokens_t make_mixed(bl_token_part_t parts[5]) {
  static const uint8_t pairs[] = {1, 0, 2, 0};
  bl_error_t err = {0};
  bl_token_part_text(&parts[0], (const uint8_t *)"abc", 3);
  bl_token_part_text(&parts[1], (const uint8_t *)"", 0);
  assert_int_equal(bl_token_part_bin(&parts[2], pairs, sizeof pairs, &err), BL_OK);
  bl_token_part_text(&parts[3], (const uint8_t *)"d", 1);
  bl_token_part_text(&parts[4], (const uint8_t *)"", 0);
  bl_tokens_t tokens;
  assert_int_equal(bl_tokens_init(&tokens, parts, 5), BL_OK);
  return tokens;
}

static void parts_follow_each_other(void **state) {
  (void)state;
  bl_token_part_t parts[5];
  bl_tokens_t tokens = make_mixed(parts);
  static const int32_t expected[] = {'a', 'b', 'c', 1, 2, 'd'};
  assert_int_equal(tokens.count, 6);
  for (uint64_t first = 0; first <= 6; first++) {
    for (uint64_t count = 0; first + count <= 6; count++) {
      int32_t out[6];
      bl_tokens_read(&tokens, first, count, out);
      assert_memory_equal(out, expected + first, count * sizeof *out);
    }
  }
  bl_token_place_t place = bl_tokens_place(&tokens, 4);
  assert_int_equal(place.part, 2);
  assert_int_equal(place.offset_bytes, 2);
  assert_int_equal(bl_tokens_find_above(&tokens, 0, 6, 'c'), 2);
  assert_int_equal(bl_tokens_find_above(&tokens, 3, 3, 'c'), 5);
  assert_int_equal(bl_tokens_find_above(&tokens, 3, 2, 'c'), BL_TOKENS_NONE);
  assert_int_equal(bl_tokens_find_above(&tokens, 0, 6, 'e'), BL_TOKENS_NONE);
}

static void labels_that_do_not_count_have_none(void **state) {
  (void)state;
  bl_token_part_t parts[5];
  bl_tokens_t tokens = make_mixed(parts);
  parts[0].mask = (const uint8_t[]){1, 0, 1};
  parts[2].mask = (const uint8_t[]){0, 1}; // the last part has no mask
  static const int32_t expected[] = {'a', -1, 'c', -1, 2, 'd'};
  for (uint64_t first = 0; first <= 6; first++) {
    for (uint64_t count = 0; first + count <= 6; count++) {
      int32_t out[6];
      uint64_t bad, counted = 0;
      bl_tokens_read_labels(&tokens, first, count, out);
      assert_memory_equal(out, expected + first, count * sizeof *out);
      for (uint64_t i = 0; i < count; i++) {
        counted += out[i] >= 0;
      }
      assert_int_equal(bl_tokens_count_labels(&tokens, first, count, &bad), counted);
      assert_int_equal(bad, BL_TOKENS_NONE);
    }
  }
  parts[2].mask = (const uint8_t[]){255, 2};
  uint64_t bad;
  (void)bl_tokens_count_labels(&tokens, 0, 6, &bad);
  assert_int_equal(bad, 3);
  assert_int_equal(bl_tokens_place(&tokens, bad).index, 0);
}

static void counts_that_overflow_are_refused(void **state) {
  (void)state;
  bl_token_part_t parts[2] = {{.count = UINT64_MAX, .width = BL_TOKEN_BYTE}, {.count = 1, .width = BL_TOKEN_BYTE}};
  bl_tokens_t tokens;
  assert_int_equal(bl_tokens_init(&tokens, parts, 2), BL_INVALID);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reads_llm_c_files),
      cmocka_unit_test(reads_the_golden_tokens),
      cmocka_unit_test(malformed_bins_are_refused),
      cmocka_unit_test(parts_follow_each_other),
      cmocka_unit_test(labels_that_do_not_count_have_none),
      cmocka_unit_test(counts_that_overflow_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
