// SPDX-License-Identifier: Apache-2.0
// Verifies whole reads, maps and atomic replacement on real files, and that errors name the path and cause.
#include "sys/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/ballast-file-test-XXXXXX";

static int make_folder(void **state) {
  (void)state;
  return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) {
  (void)state;
  char command[256];
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  return system(command);
}

static void replace_then_read(void **state) {
  (void)state;
  bl_error_t err = {0};
  char path[256];
  assert_int_equal(bl_path_join(path, sizeof path, folder, "a"), BL_OK);
  assert_int_equal(bl_file_replace(path, "one", 3, &err), BL_OK);
  assert_int_equal(bl_file_replace(path, "second", 6, &err), BL_OK);
  char *bytes = NULL;
  size_t size = 0;
  assert_int_equal(bl_file_read(path, 100, &bytes, &size, &err), BL_OK);
  assert_int_equal(size, 6);
  assert_string_equal(bytes, "second");
  free(bytes);
  assert_int_equal(bl_file_read(path, 5, &bytes, &size, &err), BL_EXHAUSTED);
  bl_file_map_t map;
  assert_int_equal(bl_file_map_open(&map, path, &err), BL_OK);
  assert_memory_equal(map.bytes, "second", 6);
  bl_file_map_close(&map);
}

static void errors_name_the_path(void **state) {
  (void)state;
  bl_error_t err = {0};
  char *bytes;
  size_t size;
  assert_int_equal(bl_file_read("/nonexistent/x", 1, &bytes, &size, &err), BL_NOT_FOUND);
  assert_non_null(strstr(err.text, "/nonexistent/x"));
  assert_int_equal(bl_file_read(folder, 1, &bytes, &size, &err), BL_INVALID);
  assert_non_null(strstr(err.text, "not a regular file"));
}

static void folders_are_made_whole(void **state) {
  (void)state;
  bl_error_t err = {0};
  char path[256], joined[8];
  snprintf(path, sizeof path, "%s/x/y/z", folder);
  assert_int_equal(bl_folder_create(path, 0700, &err), BL_OK);
  assert_int_equal(bl_folder_create(path, 0700, &err), BL_OK);
  struct stat info;
  assert_int_equal(stat(path, &info), 0);
  assert_int_equal(info.st_mode & 0777, 0700);
  assert_int_equal(bl_path_join(joined, sizeof joined, "folder", "name"), BL_INVALID);
  assert_int_equal(bl_path_join(joined, sizeof joined, "x", "/abs"), BL_OK);
  assert_string_equal(joined, "/abs");
}

static void what_cannot_be_replaced_is_named(void **state) {
  (void)state;
  bl_error_t err;
  assert_int_equal(bl_file_replace("/proc/nowhere/file", "one", 3, &err), BL_NOT_FOUND);
  assert_string_equal(err.text, "/proc/nowhere/file: cannot create: No such file or directory");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(replace_then_read),
      cmocka_unit_test(errors_name_the_path),
      cmocka_unit_test(folders_are_made_whole),
      cmocka_unit_test(what_cannot_be_replaced_is_named),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
