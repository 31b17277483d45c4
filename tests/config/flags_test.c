// SPDX-License-Identifier: Apache-2.0
// Verifies command lines: every spelling of a flag, lists, switches, words, help, and what a wrong one is told.
// Also nearest names, which job keys, flags and commands share.
#include "config/flags.h"
#include "config/nearest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct arguments {
  int64_t steps;
  char *listen;
  bool linger;
  int output;
  bl_text_list_t sets;
} arguments_t;

static const char *const outputs[] = {"table", "json", NULL};

static const bl_option_t rows[] = {
    {.name = "steps", .type = BL_OPTION_INT, .offset = offsetof(arguments_t, steps), .preset = "7", .help = "Steps."},
    {.name = "listen", .type = BL_OPTION_TEXT, .offset = offsetof(arguments_t, listen), .help = "Address."},
    {.name = "linger", .type = BL_OPTION_BOOL, .offset = offsetof(arguments_t, linger), .help = "Stay."},
    {.name = "output",
     .type = BL_OPTION_ENUM,
     .offset = offsetof(arguments_t, output),
     .letter = 'o',
     .choices = outputs,
     .preset = "table",
     .help = "Form."},
    {.name = "set", .type = BL_OPTION_TEXT_LIST, .offset = offsetof(arguments_t, sets), .help = "Override."},
};

static const bl_flags_t flags = {.program = "tool",
                                 .usage = "JOB",
                                 .about = "Does it.",
                                 .table = {rows, sizeof rows / sizeof rows[0], "command line"},
                                 .positional_minimum = 1,
                                 .positional_maximum = 2};

static bl_status_t parse(const char *const *words, arguments_t *arguments, bl_flags_result_t *result, bl_error_t *err) {
  char *argv[16];
  int argc = 0;
  for (; words[argc] != NULL; argc++) {
    argv[argc] = (char *)(uintptr_t)words[argc];
  }
  return bl_flags_parse(&flags, argc, argv, arguments, result, err);
}

static void every_spelling_works(void **state) {
  (void)state;
  const char *const words[] = {"--steps=3", "job",      "--set", "a=1", "-o", "json", "--linger",
                               "--set=b=2", "--listen", "-unix", "--",  "-x", NULL};
  arguments_t arguments;
  bl_flags_result_t result;
  bl_error_t err;
  assert_int_equal(parse(words, &arguments, &result, &err), BL_OK);
  assert_int_equal(arguments.steps, 3);
  assert_true(arguments.linger);
  assert_int_equal(arguments.output, 1);
  assert_string_equal(arguments.listen, "-unix");
  assert_int_equal(arguments.sets.count, 2);
  assert_string_equal(arguments.sets.items[1], "b=2");
  assert_int_equal(result.positional_count, 2);
  assert_string_equal(result.positional[1], "-x");
  assert_true(result.given[0]);
  bl_options_cleanup(&flags.table, &arguments);
}

static void numbers_are_arguments(void **state) {
  (void)state;
  const char *const words[] = {"drop", "-1", "--steps", "-2", NULL};
  arguments_t arguments;
  bl_flags_result_t result;
  bl_error_t err;
  assert_int_equal(parse(words, &arguments, &result, &err), BL_OK);
  assert_int_equal(result.positional_count, 2);
  assert_string_equal(result.positional[1], "-1");
  assert_int_equal(arguments.steps, -2);
  bl_options_cleanup(&flags.table, &arguments);
}

static void defaults_and_help(void **state) {
  (void)state;
  const char *const words[] = {"-ojson", "--linger=false", "--help", "--nonsense", NULL};
  arguments_t arguments;
  bl_flags_result_t result;
  bl_error_t err;
  assert_int_equal(parse(words, &arguments, &result, &err), BL_OK); // help stops reading
  assert_true(result.help);
  assert_int_equal(arguments.steps, 7);
  assert_int_equal(arguments.output, 1);
  assert_false(arguments.linger || result.given[0]);
  bl_options_cleanup(&flags.table, &arguments);

  char *text;
  size_t text_bytes;
  FILE *stream = open_memstream(&text, &text_bytes);
  assert_non_null(stream);
  bl_flags_print_help(&flags, stream);
  fclose(stream);
  assert_non_null(strstr(text, "usage: tool JOB\n"));
  assert_non_null(strstr(text, "  --steps N                   Steps. (default 7)\n"));
  assert_non_null(strstr(text, "  -o, --output NAME           Form. One of: table, json. (default table)\n"));
  free(text);
}

static void wrong_lines_are_explained(void **state) {
  (void)state;
  static const struct {
    const char *words[4];
    const char *message;
  } cases[] = {
      {{"job", "--stesp", "3", NULL}, "tool: unknown flag '--stesp'; did you mean '--steps'?"},
      {{"job", "--lin", NULL}, "tool: unknown flag '--lin'; did you mean '--linger'?"},
      {{"job", "--frobnicate", NULL}, "tool: unknown flag '--frobnicate'; --help shows what is known"},
      {{"job", "-z", NULL}, "tool: unknown flag '-z'; --help shows what is known"},
      {{"job", "--steps", NULL}, "tool: --steps needs a value"},
      {{"job", "--steps", "--local", NULL},
       "tool: --steps needs a value; '--local' is a flag (a value that begins so is written "
       "--steps=--local)"},
      {{"job", "--steps", "x", NULL}, "tool: --steps must be an integer, is 'x'"},
      {{"job", "--steps=1", "--steps=2", NULL}, "tool: --steps is given twice"},
      {{"job", "-o", "jsn", NULL}, "tool: --output must be one of table, json; is 'jsn', did you mean 'json'?"},
      {{"job", "--linger=maybe", NULL}, "tool: --linger must be true or false, is 'maybe'"},
      {{NULL}, "usage: tool JOB"},
      {{"a", "b", "c", NULL}, "tool: unexpected argument 'c'; usage: tool JOB"},
      {{"a", "b", "-1", NULL}, "tool: unexpected argument '-1'; usage: tool JOB"},
      {{"", NULL}, "tool: an argument is empty; usage: tool JOB"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    arguments_t arguments;
    bl_flags_result_t result;
    bl_error_t err;
    assert_int_equal(parse(cases[i].words, &arguments, &result, &err), BL_INVALID);
    assert_string_equal(err.text, cases[i].message);
    bl_options_cleanup(&flags.table, &arguments);
  }
}

static void distances(void **state) {
  (void)state;
  assert_int_equal(bl_edit_distance("", "abc"), 3);
  assert_int_equal(bl_edit_distance("steps", "steps"), 0);
  assert_int_equal(bl_edit_distance("stesp", "steps"), 1); // a swap
  assert_int_equal(bl_edit_distance("kitten", "sitting"), 3);
  assert_true(bl_nearest_is_near("microbatch", "micro_batch"));
  assert_true(bl_nearest_is_near("config", "configuration")); // an abbreviation
  assert_false(bl_nearest_is_near("co", "configuration"));
  assert_false(bl_nearest_is_near("zzz", "name"));
  char longest[10000];
  memset(longest, 'a', sizeof longest - 1);
  longest[sizeof longest - 1] = '\0';
  assert_int_equal(bl_edit_distance(longest, ""), BL_NEAREST_NAME_BYTES); // bounded work
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_spelling_works),
      cmocka_unit_test(numbers_are_arguments),
      cmocka_unit_test(defaults_and_help),
      cmocka_unit_test(wrong_lines_are_explained),
      cmocka_unit_test(distances),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
