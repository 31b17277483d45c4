// SPDX-License-Identifier: Apache-2.0
// Verifies what is deleted from a folder of checkpoints, and that a link in it costs nobody else's files.
#include "job/checkpoint_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/ballast-folder-XXXXXX";

static const char *at(const char *name, char path[PATH_MAX]) {
  snprintf(path, PATH_MAX, "%s/%s", folder, name);
  return path;
}

static bool exists(const char *name) {
  char path[PATH_MAX];
  struct stat info;
  return lstat(at(name, path), &info) == 0;
}

// Makes the folder `name` with one file.
static void make(const char *name) {
  char path[PATH_MAX], file[PATH_MAX + 8];
  assert_int_equal(mkdir(at(name, path), 0700), 0);
  snprintf(file, sizeof file, "%s/file", path);
  FILE *stream = fopen(file, "w");
  assert_non_null(stream);
  assert_int_equal(fclose(stream), 0);
}

static void link_to(const char *target, const char *name) {
  char from[PATH_MAX], to[PATH_MAX];
  assert_int_equal(symlink(at(target, from), at(name, to)), 0);
}

static void links_are_deleted_and_not_what_they_point_to(void **state) {
  (void)state;
  bl_error_t err = {0};
  size_t count;
  make("copy");
  make("step-000003");
  link_to("copy", "step-000001");
  link_to("copy", "step-000002.deleted");
  assert_int_equal(bl_checkpoint_folder_prune(folder, 1, &err), BL_OK);
  assert_int_equal(bl_checkpoint_folder_sweep(folder, &count, &err), BL_OK);
  assert_true(exists("copy/file"));
  assert_true(exists("step-000003/file"));
  assert_false(exists("step-000001"));
  assert_false(exists("step-000001.deleted"));
  assert_false(exists("step-000002.deleted"));
}

static int make_folder(void **state) {
  (void)state;
  return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) {
  (void)state;
  char command[sizeof folder + 16];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(links_are_deleted_and_not_what_they_point_to),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
