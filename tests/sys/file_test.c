// SPDX-License-Identifier: Apache-2.0
// Verifies whole reads and atomic replacement on real files, that links, devices and pipes stay what they are, and
// that errors name the path and cause.
#include "sys/file.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
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

static void read_text(const char *path, char text[64]) {
  FILE *stream = fopen(path, "r");
  assert_non_null(stream);
  text[fread(text, 1, 63, stream)] = '\0';
  fclose(stream);
}

static void links_stay_and_their_targets_are_replaced(void **state) {
  (void)state;
  bl_error_t err;
  char target[256], link[256], link_to_link[256], text[64];
  struct stat info;
  snprintf(target, sizeof target, "%s/target", folder);
  snprintf(link, sizeof link, "%s/link", folder);
  snprintf(link_to_link, sizeof link_to_link, "%s/link-to-link", folder);
  assert_int_equal(symlink("target", link), 0); // relative to its own folder, to a file that does not exist yet
  assert_int_equal(symlink(link, link_to_link), 0);
  static const char *const texts[] = {"first", "second"};
  for (int i = 0; i < 2; i++) {
    assert_int_equal(bl_file_replace(i == 0 ? link : link_to_link, texts[i], strlen(texts[i]), &err), BL_OK);
    assert_int_equal(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_int_equal(lstat(link_to_link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    read_text(target, text);
    assert_string_equal(text, texts[i]);
  }
  snprintf(link, sizeof link, "%s/loop", folder);
  assert_int_equal(symlink("loop", link), 0);
  assert_int_equal(bl_file_replace(link, "x", 1, &err), BL_INVALID);
  assert_non_null(strstr(err.text, link));
}

static void devices_and_pipes_are_written_in_place(void **state) {
  (void)state;
  bl_error_t err;
  char path[256], text[64];
  struct stat info;
  snprintf(path, sizeof path, "%s/outlet", folder);
  assert_int_equal(mkfifo(path, 0600), 0);
  int reader = open(path, O_RDONLY | O_NONBLOCK);
  assert_true(reader >= 0);
  assert_int_equal(bl_file_replace(path, "through", 7, &err), BL_OK);
  assert_int_equal(read(reader, text, sizeof text), 7);
  assert_memory_equal(text, "through", 7);
  close(reader);
  assert_int_equal(stat(path, &info), 0);
  assert_true(S_ISFIFO(info.st_mode));

  snprintf(path, sizeof path, "%s/null", folder);
  if (mknod(path, S_IFCHR | 0666, makedev(1, 3)) != 0) {
    print_message("left out: a device: %s\n", strerror(errno));
    return;
  }
  const bl_status_t status = bl_file_replace(path, "gone", 4, &err);
  assert_int_equal(stat(path, &info), 0);
  assert_true(S_ISCHR(info.st_mode));
  if (status == BL_DENIED) {
    print_message("left out: writing to a device: %s\n", err.text); // a file system without devices
    return;
  }
  assert_int_equal(status, BL_OK);
}

// Who opened the file of standard output goes on writing to it.
static void the_file_of_stdout_is_written_in_place(void **state) {
  (void)state;
  bl_error_t err;
  char path[256], text[64];
  snprintf(path, sizeof path, "%s/out", folder);
  fflush(stdout);
  int saved = dup(STDOUT_FILENO), fd = open(path, O_WRONLY | O_CREAT, 0600);
  assert_true(saved >= 0 && fd >= 0 && dup2(fd, STDOUT_FILENO) >= 0);
  ssize_t before = write(STDOUT_FILENO, "before ", 7);
  bl_status_t status = bl_file_replace("/proc/self/fd/1", "file", 4, &err);
  ssize_t after = write(STDOUT_FILENO, " after", 6);
  assert_true(dup2(saved, STDOUT_FILENO) >= 0);
  close(saved);
  close(fd);
  assert_int_equal(status, BL_OK);
  assert_true(before == 7 && after == 6);
  read_text(path, text);
  assert_string_equal(text, "before file after");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(replace_then_read),
      cmocka_unit_test(errors_name_the_path),
      cmocka_unit_test(folders_are_made_whole),
      cmocka_unit_test(what_cannot_be_replaced_is_named),
      cmocka_unit_test(links_stay_and_their_targets_are_replaced),
      cmocka_unit_test(devices_and_pipes_are_written_in_place),
      cmocka_unit_test(the_file_of_stdout_is_written_in_place),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
