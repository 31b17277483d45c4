// SPDX-License-Identifier: Apache-2.0
// Verifies that a lock has one holder at a time, within one process, too; that it goes with its file and with a process that
// is killed; and that a lock on a file which was removed meanwhile is not taken for one.
#include "sys/lock_file.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/ballast-lock-test-XXXXXX";
static char path[64];

static int make_folder(void **state) {
  (void)state;
  if (mkdtemp(folder) == NULL) {
    return -1;
  }
  snprintf(path, sizeof path, "%s/lock", folder);
  return 0;
}

static int remove_folder(void **state) {
  (void)state;
  unlink(path);
  return rmdir(folder);
}

static void one_holder_at_a_time(void **state) {
  (void)state;
  int first = -1, second = -1;
  assert_int_equal(bl_lock_file_open(path, 0600, &first), BL_OK);
  assert_int_equal(bl_lock_file_open(path, 0600, &second), BL_PRECONDITION);
  assert_int_equal(second, -1);
  bl_lock_file_close(path, first);
  assert_int_equal(access(path, F_OK), -1);
  assert_int_equal(bl_lock_file_open(path, 0600, &second), BL_OK);
  bl_lock_file_close(path, second);
}

static void a_removed_file_guards_nothing(void **state) {
  (void)state;
  int first, second;
  assert_int_equal(bl_lock_file_open(path, 0600, &first), BL_OK);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(bl_lock_file_open(path, 0600, &second), BL_OK);
  close(first);
  int third;
  assert_int_equal(bl_lock_file_open(path, 0600, &third), BL_PRECONDITION);
  bl_lock_file_close(path, second);
}

static void a_killed_holder_holds_nothing(void **state) {
  (void)state;
  int told[2], fd;
  assert_int_equal(pipe(told), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    char taken = bl_lock_file_open(path, 0600, &fd) == BL_OK;
    (void)!write(told[1], &taken, 1);
    pause();
    _exit(1);
  }
  char taken = 0;
  assert_int_equal(read(told[0], &taken, 1), 1);
  assert_int_equal(taken, 1);
  assert_int_equal(bl_lock_file_open(path, 0600, &fd), BL_PRECONDITION);
  assert_int_equal(kill(child, SIGKILL), 0);
  assert_int_equal(waitpid(child, NULL, 0), child);
  assert_int_equal(access(path, F_OK), 0);
  assert_int_equal(bl_lock_file_open(path, 0600, &fd), BL_OK);
  bl_lock_file_close(path, fd);
  close(told[0]);
  close(told[1]);
}

static void no_folder(void **state) {
  (void)state;
  int fd;
  assert_int_equal(bl_lock_file_open("/nonexistent/lock", 0600, &fd), BL_NOT_FOUND);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_holder_at_a_time),
      cmocka_unit_test(a_removed_file_guards_nothing),
      cmocka_unit_test(a_killed_holder_holds_nothing),
      cmocka_unit_test(no_folder),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
