// SPDX-License-Identifier: Apache-2.0
// Verifies that token ids of one config.json come into another: numbers, null and lists; and the larger number of positions;
// nothing else, and no other key.
#include "formats/served_config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TO "{\"hidden_size\": 8, \"max_position_embeddings\": 256, \"bos_token_id\": null, \"eos_token_id\": null}"

static char *kept(const char *from) {
  char *text;
  size_t text_bytes;
  bl_error_t err;
  if (bl_served_config_keep(from, strlen(from), TO, strlen(TO), &text, &text_bytes, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(text_bytes, strlen(text));
  assert_non_null(strstr(text, "\"hidden_size\": 8"));
  return text;
}

static void ids_are_kept(void **state) {
  (void)state;
  char *text = kept(
      "{\"hidden_size\": 9, \"bos_token_id\": 151643, \"eos_token_id\": [128001, 128009], \"pad_token_id\": null}");
  assert_non_null(strstr(text, "\"bos_token_id\": 151643"));
  assert_non_null(strstr(text, "128009"));
  assert_non_null(strstr(text, "\"pad_token_id\": null"));
  free(text);
}

static void what_is_no_id_is_left(void **state) {
  (void)state;
  char *text =
      kept("{\"bos_token_id\": \"<s>\", \"eos_token_id\": [1, \"</s>\"], \"pad_token_id\": -1, \"vocab_size\": 7}");
  assert_non_null(strstr(text, "\"bos_token_id\": null"));
  assert_non_null(strstr(text, "\"eos_token_id\": null"));
  assert_null(strstr(text, "pad_token_id"));
  assert_null(strstr(text, "vocab_size"));
  free(text);
}

static void the_larger_number_of_positions_is_kept(void **state) {
  (void)state;
  static const struct {
    const char *from, *expected;
  } cases[] = {{"{\"max_position_embeddings\": 32768}", "\"max_position_embeddings\": 32768"},
               {"{\"max_position_embeddings\": 128}", "\"max_position_embeddings\": 256"},
               {"{\"max_position_embeddings\": \"all\"}", "\"max_position_embeddings\": 256"},
               {"{}", "\"max_position_embeddings\": 256"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char *text = kept(cases[i].from);
    assert_non_null(strstr(text, cases[i].expected));
    free(text);
  }
}

static void what_is_no_object_is_refused(void **state) {
  (void)state;
  static const char *const wrong[] = {"", "[1]", "{\"eos_token_id\":", "7"};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    char *text;
    size_t text_bytes;
    bl_error_t err;
    assert_int_equal(bl_served_config_keep(wrong[i], strlen(wrong[i]), TO, strlen(TO), &text, &text_bytes, &err),
                     BL_INVALID);
    assert_int_equal(bl_served_config_keep(TO, strlen(TO), wrong[i], strlen(wrong[i]), &text, &text_bytes, &err),
                     BL_INVALID);
    assert_non_null(strstr(err.text, "config.json"));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(ids_are_kept), cmocka_unit_test(what_is_no_id_is_left),
                                     cmocka_unit_test(the_larger_number_of_positions_is_kept),
                                     cmocka_unit_test(what_is_no_object_is_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
