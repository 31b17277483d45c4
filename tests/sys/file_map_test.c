// SPDX-License-Identifier: Apache-2.0
// Verifies maps of files, and that a process which reads beyond the end of a shortened one logs its name before it ends.
#include "sys/file_map.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define FILE_BYTES 100000

static char folder[] = "/tmp/ballast-map-test-XXXXXX";
static char path[64];

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

static void write_file(const char *name, size_t size_bytes) {
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  for (size_t i = 0; i < size_bytes; i++) {
    fputc((int)(i % 251), file);
  }
  assert_int_equal(fclose(file), 0);
}

static void maps_are_read_in_any_order_of_closing(void **state) {
  (void)state;
  bl_error_t err = {0};
  bl_file_map_t maps[3];
  const size_t sizes[] = {FILE_BYTES, 0, 3};
  for (size_t i = 0; i < 3; i++) {
    write_file("map", sizes[i]);
    assert_int_equal(bl_file_map_open(&maps[i], path, &err), BL_OK);
    assert_int_equal(maps[i].size_bytes, sizes[i]);
    assert_int_equal(unlink(path), 0);
  }
  assert_null(maps[1].bytes);
  bl_file_map_close(&maps[2]);
  bl_file_map_close(&maps[1]);
  assert_int_equal(maps[0].bytes[FILE_BYTES - 1], (FILE_BYTES - 1) % 251);
  bl_file_map_close(&maps[0]);
  assert_null(maps[0].bytes);
  bl_file_map_close(&maps[0]);
}

// An open that waited for a writer would wait forever; the alarm ends the test then.
static void a_named_pipe_is_refused_at_once(void **state) {
  (void)state;
  bl_error_t err = {0};
  bl_file_map_t map;
  snprintf(path, sizeof path, "%s/pipe", folder);
  assert_int_equal(mkfifo(path, 0600), 0);
  alarm(20);
  assert_int_equal(bl_file_map_open(&map, path, &err), BL_INVALID);
  alarm(0);
  assert_non_null(strstr(err.text, "/pipe: not a regular file but a named pipe"));
}

// Returns what a child writes to its log until `signal` ends it.
static const char *log_of_child(void (*body)(const bl_file_map_t *map), int signal) {
  static char text[4096];
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    bl_error_t err = {0};
    bl_file_map_t map;
    dup2(ends[1], STDERR_FILENO);
    bl_file_map_log_faults();
    if (bl_file_map_open(&map, path, &err) == BL_OK) {
      body(&map);
    }
    _exit(0);
  }
  close(ends[1]);
  size_t length = 0;
  for (ssize_t count; (count = read(ends[0], text + length, sizeof text - 1 - length)) > 0;) {
    length += (size_t)count;
  }
  text[length] = '\0';
  close(ends[0]);
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status));
  assert_int_equal(WTERMSIG(status), signal);
  return text;
}

static void read_shortened(const bl_file_map_t *map) {
  volatile uint8_t last = 0;
  if (truncate(path, 10) == 0) {
    last = map->bytes[FILE_BYTES - 1];
  }
  (void)last;
}

static void raise_signal(const bl_file_map_t *map) {
  (void)map;
  raise(SIGBUS);
}

static void a_shortened_file_is_named(void **state) {
  (void)state;
  write_file("data", FILE_BYTES);
  const char *log = log_of_child(read_shortened, SIGBUS);
  char wanted[256];
  snprintf(wanted, sizeof wanted, "%s: shortened from 100000 to 10 bytes while it was in use", path);
  if (strstr(log, wanted) == NULL) {
    fail_msg("'%s' does not say '%s'", log, wanted);
  }
  write_file("data", FILE_BYTES);
  assert_string_equal(log_of_child(raise_signal, SIGBUS), "");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(maps_are_read_in_any_order_of_closing),
      cmocka_unit_test(a_named_pipe_is_refused_at_once),
      cmocka_unit_test(a_shortened_file_is_named),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
