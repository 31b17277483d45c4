// SPDX-License-Identifier: Apache-2.0
// Verifies Megatron-LM's files: every token type, negative tokens, document starts, and that foreign, older, newer,
// truncated and contradicting indices and .bin files of other lengths are refused with the cause.
#include "formats/megatron.h"

#include "formats/megatron_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

// Sequences 0 1 | 2 3 4 | (none) | 5: documents of 7, 6, 0 and 3 tokens.
static const uint32_t lengths[] = {4, 3, 1, 0, 5, 3};
static const uint64_t firsts[] = {0, 2, 5, 5, 6};
#define SEQUENCES 6
#define BOUNDS    5
#define TOKENS    16

static uint8_t bytes[512];
static size_t size;

static int set_up(void **state) {
  (void)state;
  size = megatron_write(bytes, 8, 2, lengths, SEQUENCES, firsts, BOUNDS);
  return 0;
}

static void expect_refused(bl_status_t expected, const char *text) {
  bl_megatron_index_t index;
  bl_error_t err = {0};
  bl_status_t status = bl_megatron_index_parse(&index, bytes, size, &err);
  if (status != expected || err.status != expected || strstr(err.text, text) == NULL) {
    fail_msg("expected %s '%s', got %s '%s'", bl_status_name(expected), text, bl_status_name(status), err.text);
  }
}

static void every_token_type_is_read(void **state) {
  (void)state;
  static const struct {
    unsigned type;
    size_t width;
    bool negative; // can be
  } types[] = {{1, 1, false}, {2, 1, true}, {3, 2, true}, {4, 4, true}, {5, 8, true}, {8, 2, false}};
  for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
    size = megatron_write(bytes, types[t].type, types[t].width, lengths, SEQUENCES, firsts, BOUNDS);
    bl_megatron_index_t index;
    bl_token_part_t part;
    bl_tokens_t tokens;
    bl_error_t err = {0};
    assert_int_equal(bl_megatron_index_parse(&index, bytes, size, &err), BL_OK);
    assert_int_equal(index.tokens, TOKENS);
    uint8_t data[TOKENS * 8];
    for (size_t i = 0, at = 0; i < TOKENS; i++) {
      at = megatron_put(data, at, i == 9 ? UINT64_MAX : 100 + i, types[t].width); // token 9 is -1
    }
    assert_int_equal(bl_megatron_part(&part, &index, data, TOKENS * types[t].width, &err), BL_OK);
    assert_int_equal(bl_tokens_init(&tokens, &part, 1), BL_OK);
    int32_t out[TOKENS];
    bl_tokens_read(&tokens, 0, TOKENS, out);
    for (size_t i = 0; i < TOKENS; i++) {
      const int32_t all_ones = types[t].width == 1 ? 255 : 65535;
      assert_int_equal(out[i], i != 9 ? (int32_t)(100 + i) : types[t].negative ? INT32_MAX : all_ones);
    }
    assert_int_equal(bl_tokens_find_above(&tokens, 0, TOKENS, 200), 9);
    assert_int_equal(bl_tokens_place(&tokens, 9).offset_bytes, 9 * types[t].width);
  }
}

static void documents_are_found(void **state) {
  (void)state;
  bl_megatron_index_t index;
  bl_error_t err = {0};
  assert_int_equal(bl_megatron_index_parse(&index, bytes, size, &err), BL_OK);
  static const uint64_t starts[][2] = {{0, 0}, {6, 0}, {7, 7}, {12, 7}, {13, 13}, {15, 13}, {16, 16}};
  for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
    assert_int_equal(bl_megatron_document_start(&index, starts[i][0]), starts[i][1]);
  }
}

static void modes_may_follow(void **state) {
  (void)state;
  bl_megatron_index_t index;
  bl_error_t err = {0};
  size += SEQUENCES;
  assert_int_equal(bl_megatron_index_parse(&index, bytes, size, &err), BL_OK);
  size--;
  expect_refused(BL_INVALID, "5 bytes after its last array");
}

static void every_truncation_is_refused(void **state) {
  (void)state;
  const size_t whole = size;
  for (size = 0; size < whole; size++) {
    bl_megatron_index_t index;
    bl_error_t err = {0};
    assert_int_not_equal(bl_megatron_index_parse(&index, bytes, size, &err), BL_OK);
  }
  size = whole - 1;
  expect_refused(BL_DATA_LOSS, "index: truncated: 6 sequences and 5 document bounds need more than its 145 bytes");
  size = 20;
  expect_refused(BL_DATA_LOSS, "truncated in its header: 20 bytes");
}

static void foreign_indices_are_refused(void **state) {
  (void)state;
  bytes[3] = 'X';
  expect_refused(BL_INVALID, "it does not begin with MMIDIDX");
  memcpy(bytes, "TNTIDX\0\0", 8);
  expect_refused(BL_INVALID, "older kind");
  set_up(NULL);
  megatron_put(bytes, 9, 2, 8);
  expect_refused(BL_INVALID, "version 2 is not known, only 1");
  set_up(NULL);
  bytes[17] = 7;
  expect_refused(BL_INVALID, "token type 7 is a floating-point type");
  bytes[17] = 0;
  expect_refused(BL_INVALID, "token type 0 is not known");
  bytes[17] = 200;
  expect_refused(BL_INVALID, "token type 200 is not known");
}

static void contradictions_are_refused(void **state) {
  (void)state;
  megatron_put(bytes, 18, UINT64_MAX, 8);
  expect_refused(BL_DATA_LOSS, "truncated");
  set_up(NULL);
  megatron_put(bytes, MEGATRON_HEADER + 4, UINT32_MAX, 4);
  expect_refused(BL_INVALID, "sequence 1 has a negative length");
  set_up(NULL);
  megatron_put(bytes, MEGATRON_HEADER + 24 + 16, 10, 8);
  expect_refused(BL_INVALID, "sequence 2 lies at byte 10, the one before it ends at 14");
  set_up(NULL);
  const size_t bounds_at = MEGATRON_HEADER + 24 + 48;
  megatron_put(bytes, bounds_at, 1, 8);
  expect_refused(BL_INVALID, "document 0 begins with sequence 1");
  set_up(NULL);
  megatron_put(bytes, bounds_at + 16, 1, 8);
  expect_refused(BL_INVALID, "document 2 begins with sequence 1 after 2 of 6");
  set_up(NULL);
  megatron_put(bytes, bounds_at + 32, 5, 8);
  expect_refused(BL_INVALID, "its documents end at sequence 5 of 6");
}

static void a_bin_of_another_length_is_refused(void **state) {
  (void)state;
  bl_megatron_index_t index;
  bl_token_part_t part;
  bl_error_t err = {0};
  assert_int_equal(bl_megatron_index_parse(&index, bytes, size, &err), BL_OK);
  assert_int_equal(bl_megatron_part(&part, &index, bytes, 31, &err), BL_DATA_LOSS);
  assert_non_null(
      strstr(err.text, "truncated: its index tells of 16 tokens of 2 bytes, which are 32 bytes, and it has 31"));
  assert_int_equal(bl_megatron_part(&part, &index, bytes, 34, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "does not belong to its index"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(every_token_type_is_read, set_up),
      cmocka_unit_test_setup(documents_are_found, set_up),
      cmocka_unit_test_setup(modes_may_follow, set_up),
      cmocka_unit_test_setup(every_truncation_is_refused, set_up),
      cmocka_unit_test_setup(foreign_indices_are_refused, set_up),
      cmocka_unit_test_setup(contradictions_are_refused, set_up),
      cmocka_unit_test_setup(a_bin_of_another_length_is_refused, set_up),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
