// SPDX-License-Identifier: Apache-2.0
// Verifies child processes: ready line, lifeline, exit status, output files, what they inherit and what not.
#include "loop/child.h"
#include "loop/lifeline.h"
#include "loop/timer.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define LIMIT_MS 120000

typedef struct seen {
  bl_loop_t *loop;
  unsigned ready;
  unsigned not_ready;
  unsigned exited;
  int exit_code;
  int term_signal;
  char line[256];
  bool stop_at_ready;
} seen_t;

static void on_ready(bl_child_t *child, const char *line, void *context) {
  (void)child;
  seen_t *seen = context;
  if (line == NULL) {
    seen->not_ready++;
    return;
  }
  seen->ready++;
  snprintf(seen->line, sizeof seen->line, "%s", line);
  if (seen->stop_at_ready) {
    bl_loop_stop(seen->loop);
  }
}

static void on_gone(bl_child_t *child, int exit_code, int term_signal, void *context) {
  seen_t *seen = context;
  assert_int_equal(bl_child_kill(child, SIGKILL), BL_NOT_FOUND);
  seen->exited++;
  seen->exit_code = exit_code;
  seen->term_signal = term_signal;
  bl_loop_stop(seen->loop);
}

static void on_limit(bl_timer_t *timer, void *context) {
  (void)timer;
  (void)context;
  fprintf(stderr, "waited %d ms\n", LIMIT_MS);
  abort();
}

typedef struct fixture {
  bl_loop_t *loop;
  bl_timer_t *limit;
  seen_t seen;
} fixture_t;

static int start(void **state) {
  static fixture_t fixture;
  memset(&fixture, 0, sizeof fixture);
  if (bl_loop_create(&fixture.loop, NULL) != BL_OK ||
      bl_timer_create(fixture.loop, on_limit, NULL, &fixture.limit, NULL) != BL_OK) {
    return -1;
  }
  bl_timer_start(fixture.limit, LIMIT_MS, 0);
  fixture.seen.loop = fixture.loop;
  *state = &fixture;
  return 0;
}

static int stop(void **state) {
  fixture_t *fixture = *state;
  bl_timer_destroy(fixture->limit);
  bl_loop_destroy(fixture->loop);
  return 0;
}

// A shell that runs `script`.
static bl_child_t *spawn(fixture_t *fixture, const char *script, bl_child_options_t options) {
  const char *argv[] = {"sh", "-c", script, NULL};
  bl_child_t *child;
  bl_error_t err;
  options.argv = argv;
  options.on_exit = on_gone;
  options.context = &fixture->seen;
  if (bl_child_create(fixture->loop, &options, &child, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  return child;
}

static void a_child_becomes_ready_and_exits(void **state) {
  fixture_t *fixture = *state;
  bl_child_t *child = spawn(fixture, "echo ready here >&4; exit 7", (bl_child_options_t){.on_ready = on_ready});
  assert_true(bl_child_pid(child) > 0);
  bl_loop_run(fixture->loop);
  char text[BL_CHILD_EXIT_TEXT_BYTES];
  assert_int_equal(fixture->seen.exit_code, 7);
  assert_int_equal(fixture->seen.term_signal, 0);
  assert_string_equal(bl_child_exit_text(7, 0, text), "exit code 7");
  assert_int_equal(bl_child_kill(child, SIGTERM), BL_NOT_FOUND); // its pid may be another's now
  bl_child_destroy(child);
}

static void the_ready_line_is_read(void **state) {
  fixture_t *fixture = *state;
  fixture->seen.stop_at_ready = true;
  bl_child_t *child = spawn(fixture, "printf 'ready unix:/a ' >&4; sleep 0.05; echo unix:/b >&4; exec 4>&-; read x <&3",
                            (bl_child_options_t){.on_ready = on_ready, .lifeline = true});
  bl_loop_run(fixture->loop);
  assert_string_equal(fixture->seen.line, "ready unix:/a unix:/b");
  assert_int_equal(fixture->seen.exited, 0);
  bl_child_close_lifeline(child); // `read` sees the end and the shell ends
  bl_loop_run(fixture->loop);
  assert_int_equal(fixture->seen.exited, 1);
  assert_int_equal(fixture->seen.ready, 1);
  assert_int_equal(fixture->seen.not_ready, 0);
  bl_child_destroy(child);
}

static void a_child_that_never_becomes_ready_is_told(void **state) {
  fixture_t *fixture = *state;
  bl_child_t *child = spawn(fixture, "exec 4>&-; sleep 0.1; exit 3", (bl_child_options_t){.on_ready = on_ready});
  bl_loop_run(fixture->loop);
  assert_int_equal(fixture->seen.not_ready, 1);
  assert_int_equal(fixture->seen.exit_code, 3);
  bl_child_destroy(child);
}

static void an_endless_ready_line_is_cut_off(void **state) {
  fixture_t *fixture = *state;
  bl_child_t *child = spawn(fixture, "trap '' PIPE; head -c 100000 /dev/zero >&4 2>/dev/null; exit 0",
                            (bl_child_options_t){.on_ready = on_ready});
  bl_loop_run(fixture->loop);
  assert_int_equal(fixture->seen.not_ready, 1);
  assert_int_equal(fixture->seen.ready, 0);
  bl_child_destroy(child);
}

static void a_killed_child_says_so(void **state) {
  fixture_t *fixture = *state;
  fixture->seen.stop_at_ready = true;
  bl_child_t *child =
      spawn(fixture, "echo go >&4; exec sleep 100", (bl_child_options_t){.on_ready = on_ready, .own_session = true});
  bl_loop_run(fixture->loop);
  assert_int_equal(getsid(bl_child_pid(child)), bl_child_pid(child));
  assert_int_equal(bl_child_kill(child, SIGKILL), BL_OK);
  bl_loop_run(fixture->loop);
  char text[BL_CHILD_EXIT_TEXT_BYTES];
  assert_int_equal(fixture->seen.term_signal, SIGKILL);
  assert_string_equal(bl_child_exit_text(0, SIGKILL, text), "signal 9 (Killed)");
  bl_child_destroy(child);
}

static void read_file(const char *path, char *text, size_t text_bytes) {
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  text[fread(text, 1, text_bytes - 1, file)] = '\0';
  fclose(file);
}

// The child sees its own standard output, the pipes it was given and nothing that the parent has open.
static void a_child_inherits_only_what_it_should(void **state) {
  fixture_t *fixture = *state;
  char folder[] = "/tmp/ballast-loop-XXXXXX", path[64], text[1024], expected[1024];
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/out", folder);
  int careless = open("/dev/null", O_RDONLY); // without O_CLOEXEC
  int high = fcntl(careless, F_DUPFD, 20);
  const char *environment[] = {"PATH=/usr/bin:/bin", "GREETING=hello", NULL};
  bl_child_t *child = spawn(fixture,
                            "echo $GREETING; pwd; for f in 0 1 2 3 4 5 6 7 8 9 20 21; do [ -e /proc/$$/fd/$f ] && echo "
                            "$f; done; echo oops >&2",
                            (bl_child_options_t){.lifeline = true,
                                                 .on_ready = on_ready,
                                                 .environment = environment,
                                                 .folder = folder,
                                                 .stdout_path = path,
                                                 .stderr_path = path});
  bl_loop_run(fixture->loop);
  read_file(path, text, sizeof text);
  snprintf(expected, sizeof expected, "hello\n%s\n0\n1\n2\n3\n4\noops\n", folder);
  assert_string_equal(text, expected);
  bl_child_destroy(child);
  close(careless);
  close(high);
  unlink(path);
  rmdir(folder);
}

static void the_lifeline_ends_when_the_parent_is_killed(void **state) {
  fixture_t *fixture = *state;
  int ends[2]; // tells us when the grandchild is gone
  assert_int_equal(pipe(ends), 0);
  pid_t parent = fork();
  assert_true(parent >= 0);
  if (parent == 0) { // a parent with a child on a lifeline, and no way to tidy up
    bl_loop_t *loop;
    bl_child_t *child;
    seen_t seen = {.stop_at_ready = true};
    close(ends[0]);
    const char *argv[] = {"sh", "-c", "echo up >&4; exec 4>&-; read x <&3; exit 0", NULL};
    char path[32];
    snprintf(path, sizeof path, "/dev/fd/%d", ends[1]);
    bl_child_options_t options = {.argv = argv,
                                  .lifeline = true,
                                  .on_ready = on_ready,
                                  .on_exit = on_gone,
                                  .context = &seen,
                                  .stdout_path = path};
    if (bl_loop_create(&loop, NULL) != BL_OK) {
      _exit(1);
    }
    seen.loop = loop;
    if (bl_child_create(loop, &options, &child, NULL) != BL_OK) {
      _exit(1);
    }
    bl_loop_run(loop);
    kill(getpid(), SIGKILL);
  }
  close(ends[1]);
  char byte;
  assert_int_equal(read(ends[0], &byte, 1), 0); // returns when parent and grandchild have both gone
  close(ends[0]);
  (void)fixture;
}

static void a_program_that_is_not_there_is_named(void **state) {
  fixture_t *fixture = *state;
  const char *argv[] = {"/nowhere/at-all", NULL};
  bl_child_t *child;
  bl_error_t err;
  const bl_child_options_t options = {
      .argv = argv, .lifeline = true, .on_ready = on_ready, .on_exit = on_gone, .context = &fixture->seen};
  assert_int_equal(bl_child_create(fixture->loop, &options, &child, &err), BL_NOT_FOUND);
  assert_non_null(strstr(err.text, "/nowhere/at-all"));
  assert_int_equal(fixture->seen.exited, 0);
}

static void a_running_child_can_be_let_go(void **state) {
  fixture_t *fixture = *state;
  fixture->seen.stop_at_ready = true;
  bl_child_t *child =
      spawn(fixture, "echo up >&4; read x <&3", (bl_child_options_t){.on_ready = on_ready, .lifeline = true});
  bl_loop_run(fixture->loop);
  bl_child_destroy(child);
  assert_int_equal(fixture->seen.exited, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_child_becomes_ready_and_exits, start, stop),
      cmocka_unit_test_setup_teardown(the_ready_line_is_read, start, stop),
      cmocka_unit_test_setup_teardown(a_child_that_never_becomes_ready_is_told, start, stop),
      cmocka_unit_test_setup_teardown(an_endless_ready_line_is_cut_off, start, stop),
      cmocka_unit_test_setup_teardown(a_killed_child_says_so, start, stop),
      cmocka_unit_test_setup_teardown(a_child_inherits_only_what_it_should, start, stop),
      cmocka_unit_test_setup_teardown(the_lifeline_ends_when_the_parent_is_killed, start, stop),
      cmocka_unit_test_setup_teardown(a_program_that_is_not_there_is_named, start, stop),
      cmocka_unit_test_setup_teardown(a_running_child_can_be_let_go, start, stop),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
