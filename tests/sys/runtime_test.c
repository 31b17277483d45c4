// SPDX-License-Identifier: Apache-2.0
// Verifies where the run-time folder is: in $XDG_RUNTIME_DIR where that can be used, else under $TMPDIR or /tmp, and that
// it is private.
#include "sys/runtime.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char home[] = "/tmp/ballast-home-XXXXXX";

static int set_up(void **state) {
  (void)state;
  return mkdtemp(home) != NULL && setenv("TMPDIR", home, 1) == 0 ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  return rmdir(home);
}

static void expect(const char *runtime_dir, size_t room, const char *expected) {
  char path[256];
  bl_error_t err;
  if (runtime_dir != NULL) {
    setenv("XDG_RUNTIME_DIR", runtime_dir, 1);
  } else {
    unsetenv("XDG_RUNTIME_DIR");
  }
  assert_int_equal(bl_runtime_path(path, room, &err), BL_OK);
  assert_string_equal(path, expected);
}

static void the_first_place_that_can_be_used(void **state) {
  (void)state;
  char in_home[64], in_runtime[64], in_tmp[64];
  snprintf(in_runtime, sizeof in_runtime, "%s/ballast", home);
  snprintf(in_home, sizeof in_home, "%s/ballast-%u", home, (unsigned)geteuid());
  snprintf(in_tmp, sizeof in_tmp, "/tmp/ballast-%u", (unsigned)geteuid());
  expect(home, 256, in_runtime);
  expect(NULL, 256, in_home);
  expect("", 256, in_home);
  expect("relative", 256, in_home);
  expect("/run/user/not-there", 256, in_home); // as after su, or in a container
  expect(NULL, strlen(in_tmp) + 1, in_tmp);
  char path[256];
  bl_error_t err;
  assert_int_equal(bl_runtime_path(path, strlen(in_tmp), &err), BL_INVALID);
}

static void it_is_private(void **state) {
  (void)state;
  char path[256];
  struct stat info;
  bl_error_t err;
  setenv("XDG_RUNTIME_DIR", home, 1);
  assert_int_equal(bl_runtime_folder(path, sizeof path, &err), BL_OK);
  assert_int_equal(stat(path, &info), 0);
  assert_int_equal(info.st_mode & 0777, 0700);
  assert_int_equal(chmod(path, 0755), 0);
  assert_int_equal(bl_runtime_folder(path, sizeof path, &err), BL_DENIED);
  assert_non_null(strstr(err.text, "mode 0700"));
  assert_int_equal(rmdir(path), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_first_place_that_can_be_used),
                                     cmocka_unit_test(it_is_private)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
