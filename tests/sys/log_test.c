// SPDX-License-Identifier: Apache-2.0
// Verifies: log lines as text and as JSON: identifiers, step and attempt, quoting of what would break a line, that no
// message makes a line longer than its limit, and that a line has the identifiers of one context while they change.
#include "sys/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct capture {
  int kept, ends[2];
} capture_t;

static void begin(capture_t *capture) {
  assert_int_equal(pipe(capture->ends), 0);
  capture->kept = dup(STDERR_FILENO);
  dup2(capture->ends[1], STDERR_FILENO);
}

static size_t end(capture_t *capture, char *text, size_t text_bytes) {
  dup2(capture->kept, STDERR_FILENO);
  close(capture->kept);
  close(capture->ends[1]);
  ssize_t length = read(capture->ends[0], text, text_bytes - 1);
  close(capture->ends[0]);
  assert_true(length > 0);
  text[length] = '\0';
  return (size_t)length;
}

static void text_has_identifiers_and_step(void **state) {
  (void)state;
  char text[4096];
  capture_t capture;
  begin(&capture);
  bl_log_json(false);
  bl_log_context("stage=2 run=7f3a");
  bl_log_step(12, 13);
  bl_log(BL_LOG_WARNING, "store %d is gone", 1);
  end(&capture, text, sizeof text);
  assert_non_null(strstr(text, "Z warning log_test stage=2 run=7f3a step=12 attempt=13: store 1 is gone\n"));
}

static void json_has_members(void **state) {
  (void)state;
  char text[4096];
  capture_t capture;
  begin(&capture);
  bl_log_json(true);
  bl_log_context("stage=2 run=7f3a zeros=007 big=12345678901234567890");
  bl_log_step(12, 13);
  bl_log(BL_LOG_ERROR, "a \"quote\" \\ a tab\t and\nlines \xff, caf\xc3\xa9 \xe2\x82\xac, \xe2\x82");
  end(&capture, text, sizeof text);
  assert_memory_equal(text, "{\"time\":\"2", 10);
  assert_non_null(strstr(
      text, "Z\",\"level\":\"error\",\"program\":\"log_test\",\"stage\":2,\"run\":\"7f3a\",\"zeros\":\"007\","
            "\"big\":\"12345678901234567890\",\"step\":12,\"attempt\":13,"
            "\"message\":\"a \\\"quote\\\" \\\\ a tab\\u0009 and\\u000alines ?, caf\xc3\xa9 \xe2\x82\xac, ??\"}\n"));
}

static void a_long_message_is_cut_and_the_line_is_whole(void **state) {
  (void)state;
  static char message[8192], text[8192];
  const char fills[] = {'x', '"', '\n'};
  for (size_t i = 0; i < sizeof fills; i++) {
    for (int json = 0; json < 2; json++) {
      memset(message, fills[i], sizeof message - 1);
      capture_t capture;
      begin(&capture);
      bl_log_json(json != 0);
      bl_log(BL_LOG_ERROR, "%s", message);
      size_t length = end(&capture, text, sizeof text);
      assert_true(length <= 2048);
      assert_int_equal(text[length - 1], '\n');
      if (json) {
        assert_string_equal(text + length - 3, "\"}\n");
      }
    }
  }
}

static atomic_bool logged;

static void *log_lines(void *context) {
  (void)context;
  for (int i = 0; i < 50000; i++) {
    bl_log(BL_LOG_INFO, "line");
  }
  atomic_store(&logged, true);
  return NULL;
}

// A stage is configured while its transfer threads already log.
static void a_line_has_the_identifiers_of_one_context(void **state) {
  (void)state;
  const int kept = dup(STDERR_FILENO), file = memfd_create("log", 0);
  assert_true(kept >= 0 && file >= 0);
  dup2(file, STDERR_FILENO);
  bl_log_json(false);
  bl_log_step(0, 0);
  bl_log_context("%s", "");
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, log_lines, NULL), 0);
  for (unsigned i = 0; !atomic_load(&logged); i++) {
    bl_log_context(i % 2 == 0 ? "stage=1 run=a-job-whose-name-is-a-long-one" : "stage=2 run=another");
  }
  pthread_join(thread, NULL);
  dup2(kept, STDERR_FILENO);
  close(kept);
  assert_int_equal(lseek(file, 0, SEEK_SET), 0);
  FILE *lines = fdopen(file, "r");
  assert_non_null(lines);
  char line[2100];
  unsigned count = 0;
  while (fgets(line, sizeof line, lines) != NULL) {
    const char *said = strstr(line, " log_test");
    if (said == NULL ||
        (strcmp(said, " log_test: line\n") != 0 && strcmp(said, " log_test stage=2 run=another: line\n") != 0 &&
         strcmp(said, " log_test stage=1 run=a-job-whose-name-is-a-long-one: line\n") != 0)) {
      fail_msg("line %u: %s", count + 1, line);
    }
    count++;
  }
  fclose(lines);
  assert_int_equal(count, 50000);
}

int main(void) {
  bl_log_init("log_test", BL_LOG_INFO);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(text_has_identifiers_and_step),
      cmocka_unit_test(json_has_members),
      cmocka_unit_test(a_long_message_is_cut_and_the_line_is_whole),
      cmocka_unit_test(a_line_has_the_identifiers_of_one_context),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
