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

static void links_that_are_set_aside_keep_their_target(void **state) {
  (void)state;
  bl_error_t err = {0};
  size_t count;
  char aside[PATH_MAX], path[PATH_MAX];
  static const char *const links[][2] = {
      {"step-000004", "copy"}, {"step-000005", "./copy"}, {"step-000006", "step-000003"}};
  link_to("copy", "step-000007");
  for (size_t i = 0; i < sizeof links / sizeof links[0]; i++) {
    assert_int_equal(symlink(links[i][1], at(links[i][0], path)), 0);
  }
  assert_int_equal(bl_checkpoint_folder_set_aside(folder, aside, &count, &err), BL_OK);
  assert_int_equal(count, 5);
  assert_string_equal(aside, at("earlier-1", path));
  assert_true(exists("earlier-1/step-000003/file"));
  assert_true(exists("earlier-1/step-000004/file"));
  assert_true(exists("earlier-1/step-000005/file"));
  assert_true(exists("earlier-1/step-000006/file"));
  assert_true(exists("earlier-1/step-000007/file"));
  assert_false(exists("step-000004"));
}

// The check says what the run would say, and creates nothing.
static void a_folder_is_checked_without_making_it(void **state) {
  (void)state;
  static const char *const bad[] = {"locked/a/b", "locked", "copy/file/a"};
  bl_error_t checked = {0}, tried = {0};
  char path[PATH_MAX];
  make("locked");
  assert_int_equal(chmod(folder, 0755), 0);
  assert_int_equal(chmod(at("locked", path), 0555), 0);
  assert_int_equal(chmod(at("copy", path), 0755), 0);
  assert_int_equal(bl_checkpoint_folder_check(at("new/a", path), &checked), BL_OK);
  assert_int_equal(bl_checkpoint_folder_check(at("copy", path), &checked), BL_OK);
  assert_false(exists("new"));
  const uid_t own = geteuid();
  assert_int_equal(own == 0 ? seteuid(65534) : 0, 0); // root may write everywhere
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    assert_int_not_equal(bl_checkpoint_folder_check(at(bad[i], path), &checked), BL_OK);
    assert_int_not_equal(bl_checkpoint_folder_try(path, &tried), BL_OK);
    assert_string_equal(checked.text, tried.text);
    assert_int_equal(checked.status, tried.status);
  }
  assert_int_equal(own == 0 ? seteuid(own) : 0, 0);
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
      cmocka_unit_test(links_that_are_set_aside_keep_their_target),
      cmocka_unit_test(a_folder_is_checked_without_making_it),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
