// SPDX-License-Identifier: Apache-2.0
// Verifies the trace file: times from the first event in microseconds, waits on a line of their own, slot counters that rise
// where an operation begins and fall where one ends, and that nothing is written where there is nothing to write.
#include "ballastctl/inspect/chrome_trace.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char path[] = "/tmp/ballast-trace-XXXXXX";

static int make_file(void **state) {
  (void)state;
  int fd = mkstemp(path);
  return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state) {
  (void)state;
  return unlink(path);
}

static const json_t *find(const json_t *events, const char *phase, const char *name) {
  size_t i;
  json_t *event;
  json_array_foreach(events, i, event) {
    if (strcmp(json_string_value(json_object_get(event, "ph")), phase) == 0 &&
        strcmp(json_string_value(json_object_get(event, "name")), name) == 0) {
      return event;
    }
  }
  fail_msg("no event %s %s", phase, name);
  return NULL;
}

static double number(const json_t *event, const char *key) {
  return json_number_value(json_object_get(event, key));
}

static void a_step_becomes_a_file(void **state) {
  (void)state;
  bl_ctl_chrome_trace_t *trace;
  assert_int_equal(bl_ctl_chrome_trace_create(&trace), BL_OK);
  bl_ctl_chrome_trace_add(trace,
                          &(bl_ctl_trace_event_t){1, "activation from stage 0", true, 7000, 9500, 4, 0, false, {0}});
  bl_ctl_chrome_trace_add(trace, &(bl_ctl_trace_event_t){1, "1F4", false, 9500, 12000, 4, 2, false, {0}});
  bl_ctl_chrome_trace_add(trace,
                          &(bl_ctl_trace_event_t){0, "0F4", false, 5000, 6000, 4, 1, false, {0}}); // the first in time
  bl_error_t err;
  assert_int_equal(bl_ctl_chrome_trace_write(trace, path, &err), BL_OK);
  json_t *root = json_load_file(path, 0, NULL);
  const json_t *events = json_object_get(root, "traceEvents");
  const json_t *wait = find(events, "X", "activation from stage 0"), *forward = find(events, "X", "1F4");
  assert_true(number(wait, "ts") == 2.0 && number(wait, "dur") == 2.5);
  assert_true(number(forward, "ts") == 4.5 && number(find(events, "X", "0F4"), "ts") == 0.0);
  assert_true(number(wait, "tid") != number(forward, "tid"));
  assert_true(number(wait, "pid") == 1 && number(json_object_get(wait, "args"), "micro_batch") == 4);
  assert_true(number(json_object_get(find(events, "C", "slots in use"), "args"), "slots") == 2);
  assert_int_equal(json_array_size(events), 3 + 2 + 2 * 3); // spans, counters of operations, names of two stages
  json_decref(root);
  bl_ctl_chrome_trace_destroy(trace);
}

// Microseconds at which a stage's counter gets to these slots for the first time.
static double reached(const json_t *events, int slots) {
  size_t i;
  json_t *event;
  json_array_foreach(events, i, event) {
    if (strcmp(json_string_value(json_object_get(event, "ph")), "C") == 0 &&
        number(json_object_get(event, "args"), "slots") == slots) {
      return number(event, "ts");
    }
  }
  fail_msg("never %d slots", slots);
  return 0;
}

static void a_slot_is_taken_at_a_begin_and_free_at_an_end(void **state) {
  (void)state;
  bl_ctl_chrome_trace_t *trace;
  bl_error_t err;
  assert_int_equal(bl_ctl_chrome_trace_create(&trace), BL_OK);
  bl_ctl_chrome_trace_add(trace, &(bl_ctl_trace_event_t){2, "2F0", false, 0, 1000, 0, 3, false, {0}});
  bl_ctl_chrome_trace_add(trace, &(bl_ctl_trace_event_t){2, "2F1", false, 4000, 6000, 1, 4, false, {0}});
  bl_ctl_chrome_trace_add(trace, &(bl_ctl_trace_event_t){2, "2B0", false, 7000, 9000, 0, 2, false, {0}});
  // Beside the backward: taken before that ended, which counts from then on.
  bl_ctl_chrome_trace_add(trace, &(bl_ctl_trace_event_t){2, "2L1", false, 8000, 9500, 1, 5, true, {0}});
  assert_int_equal(bl_ctl_chrome_trace_write(trace, path, &err), BL_OK);
  json_t *root = json_load_file(path, 0, NULL);
  const json_t *events = json_object_get(root, "traceEvents");
  assert_true(reached(events, 3) == 0.0 && reached(events, 4) == 4.0 && reached(events, 2) == 9.0);
  assert_true(reached(events, 5) == 9.0);
  json_decref(root);
  bl_ctl_chrome_trace_destroy(trace);
}

static void processes_are_named_by_seats(void **state) {
  (void)state;
  bl_error_t err;
  static const struct {
    bl_grid_t grid;
    const char *name;
  } cases[] = {{{0}, "stage 3"},
               {{.stages = 2, .tensor = 1, .data = 2}, "stage 1 of replica 1"},
               {{.stages = 2, .tensor = 2, .data = 2}, "tensor rank 1 of stage 1 of replica 0"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bl_ctl_chrome_trace_t *trace;
    assert_int_equal(bl_ctl_chrome_trace_create(&trace), BL_OK);
    bl_ctl_chrome_trace_add(trace, &(bl_ctl_trace_event_t){3, "1F0", false, 0, 1000, 0, 1, false, cases[i].grid});
    assert_int_equal(bl_ctl_chrome_trace_write(trace, path, &err), BL_OK);
    json_t *root = json_load_file(path, 0, NULL);
    const json_t *named = find(json_object_get(root, "traceEvents"), "M", "process_name");
    assert_string_equal(json_string_value(json_object_get(json_object_get(named, "args"), "name")), cases[i].name);
    json_decref(root);
    bl_ctl_chrome_trace_destroy(trace);
  }
}

static void nothing_is_not_written(void **state) {
  (void)state;
  bl_ctl_chrome_trace_t *trace;
  bl_error_t err;
  assert_int_equal(bl_ctl_chrome_trace_create(&trace), BL_OK);
  assert_int_equal(bl_ctl_chrome_trace_write(trace, "/nowhere/trace.json", &err), BL_PRECONDITION);
  bl_ctl_chrome_trace_add(trace, &(bl_ctl_trace_event_t){0, "0F0", false, 1, 2, 0, 1, false, {0}});
  assert_int_equal(bl_ctl_chrome_trace_write(trace, "/nowhere/trace.json", &err), BL_NOT_FOUND);
  assert_non_null(strstr(err.text, "/nowhere"));
  bl_ctl_chrome_trace_destroy(trace);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_step_becomes_a_file),
      cmocka_unit_test(a_slot_is_taken_at_a_begin_and_free_at_an_end),
      cmocka_unit_test(nothing_is_not_written),
      cmocka_unit_test(processes_are_named_by_seats),
  };
  return cmocka_run_group_tests(tests, make_file, remove_file);
}
