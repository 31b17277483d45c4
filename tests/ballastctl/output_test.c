// SPDX-License-Identifier: Apache-2.0
// Verifies every form of output for the same rows.
#include "ballastctl/output.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const bl_ctl_column_t columns[] = {{.key = "stage", .title = "STAGE", .right = true},
                                          {.key = "path", .title = "PATH"},
                                          {.key = "address", .title = "ADDRESS", .wide = true}};

static void expect(bl_ctl_output_t output, const char *expected) {
  json_t *rows = json_pack("[{s:i, s:s, s:s}, {s:i, s:s, s:[i, i]}]", "stage", 0, "path", "shm", "address", "a:1",
                           "stage", 10, "path", "t\"cp", "address", 1, 2);
  assert_non_null(rows);
  char *text;
  size_t text_bytes;
  FILE *stream = open_memstream(&text, &text_bytes);
  assert_int_equal(bl_ctl_print_rows(output, columns, 3, rows, stream), BL_OK);
  fclose(stream);
  assert_string_equal(text, expected);
  free(text);
  json_decref(rows);
}

static void every_form(void **state) {
  (void)state;
  expect(BL_CTL_TABLE, "STAGE  PATH\n    0  shm\n   10  t\"cp\n");
  expect(BL_CTL_WIDE, "STAGE  PATH  ADDRESS\n    0  shm   a:1\n   10  t\"cp  [1,2]\n");
  expect(BL_CTL_NAME, "0\n10\n");
  expect(BL_CTL_NDJSON, "{\"stage\":0,\"path\":\"shm\",\"address\":\"a:1\"}\n"
                        "{\"stage\":10,\"path\":\"t\\\"cp\",\"address\":[1,2]}\n");
  expect(BL_CTL_YAML, "- stage: 0\n  path: \"shm\"\n  address: \"a:1\"\n"
                      "- stage: 10\n  path: \"t\\\"cp\"\n  address:\n    - 1\n    - 2\n");
}

static void an_object_alone(void **state) {
  (void)state;
  json_t *object = json_pack("{s:i, s:s, s:{}}", "stage", 3, "path", "", "waits");
  char *text;
  size_t text_bytes;
  FILE *stream = open_memstream(&text, &text_bytes);
  assert_int_equal(bl_ctl_print_object(BL_CTL_YAML, columns, 3, object, stream), BL_OK);
  assert_int_equal(bl_ctl_print_object(BL_CTL_WIDE, columns, 3, object, stream), BL_OK);
  fclose(stream);
  assert_string_equal(text, "stage: 3\npath: \"\"\nwaits: {}\nSTAGE  PATH  ADDRESS\n    3  -     -\n");
  free(text);
  json_decref(object);
}

static void bytes_are_for_people_in_tables_alone(void **state) {
  (void)state;
  static const bl_ctl_column_t sizes[] = {{.key = "held_bytes", .title = "HELD", .right = true, .bytes = true}};
  static const struct {
    bl_ctl_output_t output;
    const char *expected;
  } forms[] = {{BL_CTL_TABLE, "    HELD\n1.50 KiB\n       -\n"},
               {BL_CTL_NDJSON, "{\"held_bytes\":1536}\n{\"held_bytes\":null}\n"}};
  json_t *rows = json_pack("[{s:i}, {s:n}]", "held_bytes", 1536, "held_bytes");
  for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
    char *text;
    size_t text_bytes;
    FILE *stream = open_memstream(&text, &text_bytes);
    assert_int_equal(bl_ctl_print_rows(forms[i].output, sizes, 1, rows, stream), BL_OK);
    fclose(stream);
    assert_string_equal(text, forms[i].expected);
    free(text);
  }
  json_decref(rows);
}

static void what_cannot_be_printed_says_why(void **state) {
  (void)state;
  bl_error_t err = {0};
  FILE *full = fopen("/dev/full", "w");
  assert_non_null(full);
  json_t *object = json_pack("{s:i}", "stage", 3);
  assert_int_equal(bl_ctl_printed(bl_ctl_print_object(BL_CTL_TABLE, columns, 3, object, full), &err), BL_IO);
  assert_string_equal(err.text, "cannot print: No space left on device");
  errno = EPIPE; // nobody reads any more
  assert_int_equal(bl_ctl_printed(BL_IO, &err), BL_OK);
  assert_int_equal(bl_ctl_printed(BL_EXHAUSTED, &err), BL_EXHAUSTED);
  assert_string_equal(err.text, "cannot print: resource exhausted");
  fclose(full);
  json_decref(object);
  // what jansson did not make, as of a number that is none
  char *text;
  size_t text_bytes;
  FILE *stream = open_memstream(&text, &text_bytes);
  for (int output = BL_CTL_TABLE; output <= BL_CTL_NAME; output++) {
    bl_status_t status = bl_ctl_print_object((bl_ctl_output_t)output, columns, 3, NULL, stream);
    assert_int_equal(bl_ctl_printed(status, &err), BL_INTERNAL);
    assert_string_equal(err.text, "cannot print: a result is not a finite number, or memory ran out");
    assert_int_equal(bl_ctl_print_rows((bl_ctl_output_t)output, columns, 3, NULL, stream), BL_INTERNAL);
  }
  fclose(stream);
  assert_string_equal(text, "");
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_form), cmocka_unit_test(an_object_alone),
                                     cmocka_unit_test(bytes_are_for_people_in_tables_alone),
                                     cmocka_unit_test(what_cannot_be_printed_says_why)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
