// SPDX-License-Identifier: Apache-2.0
// Verifies that a module is found where it should be, loaded once, and refused with what is wrong and what to do: not
// there, no library, no module, another interface, another version, another name, a library that is missing.
#include "device/module.h"

#include "sys/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define FOLDER BALLAST_BINARY_DIR "/tests/modules"

typedef struct {
  int answer;
} fake_table_t;

static void refuses(const char *name, bl_status_t expected, const char *first, const char *second) {
  bl_error_t err = {0};
  const bl_module_info_t *module = NULL;
  bl_status_t status = bl_module_load(FOLDER, name, &module, &err);
  if (status != expected || strstr(err.text, first) == NULL || strstr(err.text, second) == NULL) {
    fail_msg("%s: expected %s with '%s' and '%s', got %s: %s", name, bl_status_name(expected), first, second,
             bl_status_name(status), err.text);
  }
  assert_null(module);
}

static void a_module_hands_out_tables_of_its_size(void **state) {
  (void)state;
  bl_error_t err = {0};
  const bl_module_info_t *module;
  if (bl_module_load(FOLDER, "good", &module, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  assert_string_equal(module->built_with, "nothing");
  const fake_table_t *table = bl_module_interface(module, "answer", sizeof *table, &err);
  assert_non_null(table);
  assert_int_equal(table->answer, 42);
  assert_null(bl_module_interface(module, "answer", sizeof *table + 8, &err));
  assert_int_equal(err.status, BL_UNIMPLEMENTED);
  assert_non_null(strstr(err.text, "module good has no table 'answer'"));
  assert_null(bl_module_interface(module, "question", sizeof *table, &err));
}

static void what_is_wrong_is_said(void **state) {
  (void)state;
  refuses("nowhere", BL_NOT_FOUND, "libballast-nowhere.so", "is not there");
  refuses("older", BL_UNIMPLEMENTED, "was built with interface 0", "install module and programs of one version");
  refuses("version", BL_UNIMPLEMENTED, "is of version 0.0.0, this program of", "one version");
  refuses("nameless", BL_UNIMPLEMENTED, "is no module of Ballast", "bl_module");
  refuses("needy", BL_UNIMPLEMENTED, "needs libcudnn.so.7", "install cuDNN");
}

static void a_file_that_is_no_library(void **state) {
  (void)state;
  char path[] = FOLDER "/libballast-text.so";
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs("no library", file);
  fclose(file);
  refuses("text", BL_UNIMPLEMENTED, "libballast-text.so cannot be loaded", "");
  unlink(path);
}

static void a_module_under_another_name(void **state) {
  (void)state;
  char *bytes;
  size_t size;
  bl_error_t err = {0};
  assert_int_equal(bl_file_read(FOLDER "/libballast-good.so", 1u << 24, &bytes, &size, &err), BL_OK);
  assert_int_equal(bl_file_replace(FOLDER "/libballast-other.so", bytes, size, &err), BL_OK);
  free(bytes);
  refuses("other", BL_UNIMPLEMENTED, "is module good under the name of other", "");
  unlink(FOLDER "/libballast-other.so");
}

static void the_loaders_words_become_sentences(void **state) {
  (void)state;
  const struct {
    const char *words, *sentence;
  } cases[] = {
      {"libnccl.so.987: cannot open shared object file: No such file or directory", "install NCCL"},
      {"libcublasLt.so.987: cannot open shared object file: No such file or directory",
       "needs libcublasLt.so.987, which this machine has not"},
      {"libsomething.so.1: cannot open shared object file: No such file or directory", "the package that has it"},
      {"/m/libballast-x.so: cannot open shared object file: Permission denied", "cannot be loaded: /m/"},
      {"/m/libballast-x.so: undefined symbol: foo", "cannot be loaded: /m/libballast-x.so: undefined symbol: foo"},
      {"", "cannot be loaded: "},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bl_error_t err = {0};
    assert_int_equal(bl__module_explain("/m/libballast-x.so", cases[i].words, &err), BL_UNIMPLEMENTED);
    if (strstr(err.text, cases[i].sentence) == NULL) {
      fail_msg("'%s' became '%s'", cases[i].words, err.text);
    }
  }
}

// The C library is here as libc.so.6, so one that would need libc.so.7 finds another major version.
static void another_major_version_is_named(void **state) {
  (void)state;
  bl_error_t err = {0};
  assert_int_equal(bl__module_explain("/m/x.so", "libc.so.7: cannot open shared object file: ...", &err),
                   BL_UNIMPLEMENTED);
  assert_non_null(strstr(err.text, "needs libc.so.7, this machine has libc.so.6, another major version"));
}

static void the_folder_of_the_environment_counts_alone(void **state) {
  (void)state;
  bl_error_t err = {0};
  const bl_module_info_t *module = NULL, *again = NULL;
  setenv("BALLAST_MODULES", "/nonexistent", 1);
  assert_int_equal(bl_module_open("good", &module, &err), BL_UNIMPLEMENTED);
  assert_non_null(strstr(err.text, "libballast-good.so is not in /nonexistent, which BALLAST_MODULES names"));
  setenv("BALLAST_MODULES", FOLDER, 1);
  assert_int_equal(bl_module_open("good", &module, &err), BL_OK);
  unsetenv("BALLAST_MODULES");
  assert_int_equal(bl_module_open("good", &again, &err), BL_OK); // it stays loaded
  assert_ptr_equal(module, again);
  assert_int_equal(bl_module_open("nowhere", &module, &err), BL_UNIMPLEMENTED);
  assert_non_null(strstr(err.text, "libballast-nowhere.so is neither in "));
  assert_non_null(strstr(err.text, "BALLAST_CUDA=ON"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_module_hands_out_tables_of_its_size),
      cmocka_unit_test(what_is_wrong_is_said),
      cmocka_unit_test(a_file_that_is_no_library),
      cmocka_unit_test(a_module_under_another_name),
      cmocka_unit_test(the_loaders_words_become_sentences),
      cmocka_unit_test(another_major_version_is_named),
      cmocka_unit_test(the_folder_of_the_environment_counts_alone),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
