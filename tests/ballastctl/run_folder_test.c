// SPDX-License-Identifier: Apache-2.0
// Verifies the folder of a local run: private, found while it lives, removed whole, and what a killed run left behind
// is removed by the next.
#include "ballastctl/run/run_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char home[] = "/tmp/ballast-home-XXXXXX";

static int use_own_place(void **state) {
  (void)state;
  return mkdtemp(home) != NULL ? setenv("XDG_RUNTIME_DIR", home, 1) : -1;
}

static int leave_nothing(void **state) {
  (void)state;
  return rmdir(home); // fails when a run left something
}

static void a_run_is_found_while_it_lives(void **state) {
  (void)state;
  bl_ctl_run_folder_t folder;
  bl_error_t err;
  struct stat stat_;
  char path[BL_CTL_RUN_PATH_BYTES], base[256];
  assert_int_equal(bl_ctl_run_folder_find("endpoints.json", path, &err), BL_NOT_FOUND);
  assert_int_equal(bl_ctl_run_folder_create(&folder, &err), BL_OK);
  assert_int_equal(stat(folder.path, &stat_), 0);
  assert_int_equal(stat_.st_mode & 0777, 0700);
  assert_int_equal(bl_ctl_run_folder_find("endpoints.json", path, &err), BL_NOT_FOUND); // not yet
  assert_int_equal(bl_ctl_run_folder_write(&folder, "endpoints.json", "{}", &err), BL_OK);
  assert_int_equal(bl_ctl_run_folder_find("endpoints.json", path, &err), BL_OK);
  assert_int_equal(strncmp(path, folder.path, strlen(folder.path)), 0);
  bl_ctl_run_folder_remove(&folder);
  assert_int_equal(bl_ctl_run_folder_find("endpoints.json", path, &err), BL_NOT_FOUND);
  snprintf(base, sizeof base, "%s/ballast", home);
  assert_int_not_equal(access(base, F_OK), 0);
}

static void the_next_run_removes_what_a_killed_one_left(void **state) {
  (void)state;
  bl_ctl_run_folder_t killed, next;
  bl_error_t err;
  char path[BL_CTL_RUN_PATH_BYTES];
  assert_int_equal(bl_ctl_run_folder_create(&killed, &err), BL_OK);
  assert_int_equal(bl_ctl_run_folder_write(&killed, "endpoints.json", "{}", &err), BL_OK);
  assert_int_equal(bl_ctl_run_folder_create(&next, &err), BL_OK);
  assert_int_equal(access(killed.path, F_OK), 0); // it lives
  close(killed.lock_fd);                          // what the kernel does when a process is killed
  bl_ctl_run_folder_remove(&next);
  assert_int_equal(access(killed.path, F_OK), 0);
  assert_int_equal(bl_ctl_run_folder_find("endpoints.json", path, &err), BL_NOT_FOUND);
  assert_int_equal(bl_ctl_run_folder_create(&next, &err), BL_OK);
  assert_int_not_equal(access(killed.path, F_OK), 0);
  bl_ctl_run_folder_remove(&next);
}

static void a_place_open_to_others_is_refused(void **state) {
  (void)state;
  bl_ctl_run_folder_t folder;
  bl_error_t err;
  char base[256];
  snprintf(base, sizeof base, "%s/ballast", home);
  assert_int_equal(mkdir(base, 0700), 0);
  assert_int_equal(chmod(base, 0777), 0);
  assert_int_equal(bl_ctl_run_folder_create(&folder, &err), BL_DENIED);
  assert_non_null(strstr(err.text, "remove it or set XDG_RUNTIME_DIR"));
  assert_non_null(strstr(err.text, base));
  assert_int_equal(rmdir(base), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_run_is_found_while_it_lives),
      cmocka_unit_test(the_next_run_removes_what_a_killed_one_left),
      cmocka_unit_test(a_place_open_to_others_is_refused),
  };
  return cmocka_run_group_tests(tests, use_own_place, leave_nothing);
}
