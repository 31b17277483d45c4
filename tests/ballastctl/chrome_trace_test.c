// SPDX-License-Identifier: Apache-2.0
// Verifies the trace file: times from the first event in microseconds, waits on a line of their own, slot counters that rise
// where an operation begins and fall where one ends, a row per link to a host with whose block it moves, where to, how many
// bytes and since when it was waited for, and that nothing is written where there is nothing to write.
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
  bl_ctl_chrome_trace_add(trace, &(bl_ctl_trace_event_t){.stage = 1,
                                                         .name = "activation from stage 0",
                                                         .wait = true,
                                                         .start_ns = 7000,
                                                         .end_ns = 9500,
                                                         .micro_batch = 4,
                                                         .slots_in_use = 0});
  bl_ctl_chrome_trace_add(
      trace, &(bl_ctl_trace_event_t){
                 .stage = 1, .name = "1F4", .start_ns = 9500, .end_ns = 12000, .micro_batch = 4, .slots_in_use = 2});
  bl_ctl_chrome_trace_add(trace, &(bl_ctl_trace_event_t){.stage = 0,
                                                         .name = "0F4",
                                                         .waited_ns = 250,
                                                         .start_ns = 5000,
                                                         .end_ns = 6000,
                                                         .micro_batch = 4,
                                                         .slots_in_use = 1}); // the first in time
  bl_error_t err;
  assert_int_equal(bl_ctl_chrome_trace_write(trace, path, &err), BL_OK);
  json_t *root = json_load_file(path, 0, NULL);
  const json_t *events = json_object_get(root, "traceEvents");
  const json_t *wait = find(events, "X", "activation from stage 0"), *forward = find(events, "X", "1F4");
  assert_true(number(wait, "ts") == 2.0 && number(wait, "dur") == 2.5);
  assert_true(number(forward, "ts") == 4.5 && number(find(events, "X", "0F4"), "ts") == 0.0);
  assert_true(number(json_object_get(find(events, "X", "0F4"), "args"), "waited_for_tensor_ranks_us") == 0.25);
  assert_null(json_object_get(json_object_get(forward, "args"), "waited_for_tensor_ranks_us"));
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
  bl_ctl_chrome_trace_add(
      trace, &(bl_ctl_trace_event_t){.stage = 2, .name = "2F0", .end_ns = 1000, .micro_batch = 0, .slots_in_use = 3});
  bl_ctl_chrome_trace_add(
      trace, &(bl_ctl_trace_event_t){
                 .stage = 2, .name = "2F1", .start_ns = 4000, .end_ns = 6000, .micro_batch = 1, .slots_in_use = 4});
  bl_ctl_chrome_trace_add(
      trace, &(bl_ctl_trace_event_t){
                 .stage = 2, .name = "2B0", .start_ns = 7000, .end_ns = 9000, .micro_batch = 0, .slots_in_use = 2});
  // Beside the backward: taken before that ended, which counts from then on.
  bl_ctl_chrome_trace_add(trace, &(bl_ctl_trace_event_t){.stage = 2,
                                                         .name = "2L1",
                                                         .start_ns = 8000,
                                                         .end_ns = 9500,
                                                         .micro_batch = 1,
                                                         .slots_in_use = 5,
                                                         .copy = true});
  assert_int_equal(bl_ctl_chrome_trace_write(trace, path, &err), BL_OK);
  json_t *root = json_load_file(path, 0, NULL);
  const json_t *events = json_object_get(root, "traceEvents");
  assert_true(reached(events, 3) == 0.0 && reached(events, 4) == 4.0 && reached(events, 2) == 9.0);
  assert_true(reached(events, 5) == 9.0);
  json_decref(root);
  bl_ctl_chrome_trace_destroy(trace);
}

static bl_ctl_trace_event_t transfer(int stage, const char *name, uint64_t asked_ns, uint64_t end_ns, uint32_t host) {
  return (bl_ctl_trace_event_t){.stage = stage,
                                .name = name,
                                .start_ns = asked_ns,
                                .end_ns = end_ns,
                                .grid = {.stages = 2, .tensor = 1, .data = 2},
                                .transfer = true,
                                .bytes = 4096,
                                .host = host};
}

// The maximum of a host's counter of waiting transfers, which ends at 0.
static double most_waiting(const json_t *events, double pid) {
  size_t i;
  json_t *event;
  double most = 0, last = 0;
  json_array_foreach(events, i, event) {
    const json_t *waiting = json_object_get(json_object_get(event, "args"), "transfers");
    if (waiting != NULL && number(event, "pid") == pid) {
      last = json_number_value(waiting);
      most = last > most ? last : most;
    }
  }
  assert_true(last == 0);
  return most;
}

static void expect_turn(const json_t *events, const char *name, double pid, double start, double end, double waited) {
  const json_t *turn = find(events, "X", name), *args = json_object_get(turn, "args");
  if (number(turn, "pid") != pid || number(turn, "ts") != start || number(turn, "ts") + number(turn, "dur") != end ||
      number(args, "waited_us") != waited) {
    fail_msg("%s: of process %g, from %g to %g after %g us, expected %g, %g, %g, %g", name, number(turn, "pid"),
             number(turn, "ts"), number(turn, "ts") + number(turn, "dur"), number(args, "waited_us"), pid, start, end,
             waited);
  }
  assert_true(number(args, "bytes") == 4096);
}

// Stages record requests and ends. Ranks 0 to 2 are at one host, the last one at another.
static void a_link_moves_one_block_at_a_time(void **state) {
  (void)state;
  bl_ctl_chrome_trace_t *trace;
  bl_error_t err;
  const bl_ctl_trace_event_t transfers[] = {
      transfer(0, "0E3.0@2", 2000, 7000, 0),  transfer(1, "1E2.1@2", 3000, 10000, 0),
      transfer(2, "0L1.1@2", 6000, 13000, 0), transfer(0, "2L3.0@2", 20000, 24000, 0),
      transfer(3, "1E0.0@2", 4000, 8000, 1),  transfer(1, "1E7.0@0", 4000, 30000, 0)};
  assert_int_equal(bl_ctl_chrome_trace_create(&trace), BL_OK);
  bl_ctl_chrome_trace_add(trace, &(bl_ctl_trace_event_t){.name = "0F0.0", .end_ns = 1000, .slots_in_use = 1});
  for (size_t i = 0; i < sizeof transfers / sizeof transfers[0]; i++) {
    bl_ctl_chrome_trace_add(trace, &transfers[i]);
  }
  assert_int_equal(bl_ctl_chrome_trace_write(trace, path, &err), BL_OK);
  json_t *root = json_load_file(path, 0, NULL);
  const json_t *events = json_object_get(root, "traceEvents");
  expect_turn(events, "stage 0 out: chunk 0, micro-batch 3, slice 0", 4, 2, 7, 0); // after four ranks
  expect_turn(events, "stage 1 out: chunk 1, micro-batch 2, slice 1", 4, 7, 10, 4);
  expect_turn(events, "stage 0 back: chunk 0, micro-batch 1, slice 1", 4, 10, 13, 4);
  expect_turn(events, "stage 0 back: chunk 2, micro-batch 3, slice 0", 4, 20, 24, 0);
  expect_turn(events, "stage 1 out: chunk 1, micro-batch 0, slice 0", 5, 4, 8, 0);
  assert_true(
      number(json_object_get(find(events, "X", "stage 0 back: chunk 0, micro-batch 1, slice 1"), "args"), "rank") == 2);
  assert_true(most_waiting(events, 4) == 2 && most_waiting(events, 5) == 0);
  size_t names = 0, i;
  json_t *event;
  json_array_foreach(events, i, event) {
    const char *name = json_string_value(json_object_get(json_object_get(event, "args"), "name"));
    names += name != NULL && (strcmp(name, "host 0") == 0 || strcmp(name, "host 1") == 0);
    assert_true(strcmp(json_string_value(json_object_get(event, "ph")), "C") != 0 || number(event, "pid") != 1);
  }
  assert_int_equal(names, 2);
  // On its stage's row of copies it is from its request on, with those to devices; slots count with what began it.
  const json_t *whole = find(events, "X", "1E2.1@2");
  assert_true(number(whole, "pid") == 1 && number(whole, "ts") == 3 && number(whole, "dur") == 7);
  assert_true(number(find(events, "X", "1E7.0@0"), "dur") == 26);
  json_decref(root);
  bl_ctl_chrome_trace_destroy(trace);
}

// A simulation knows turns, and adds its copies itself.
static void simulated_turns_are_kept(void **state) {
  (void)state;
  bl_ctl_chrome_trace_t *trace;
  bl_error_t err;
  bl_ctl_trace_event_t first = transfer(0, "0E3@2", 2000, 7000, 0), second = transfer(1, "1E3@2", 3000, 12000, 0);
  first.turn_ns = 2000;
  second.turn_ns = 9000;
  second.link = first.link = 1;
  assert_int_equal(bl_ctl_chrome_trace_create(&trace), BL_OK);
  bl_ctl_chrome_trace_add(trace, &(bl_ctl_trace_event_t){.name = "0F0", .end_ns = 1000, .slots_in_use = 1});
  bl_ctl_chrome_trace_add(trace, &second);
  bl_ctl_chrome_trace_add(trace, &first);
  assert_int_equal(bl_ctl_chrome_trace_write(trace, path, &err), BL_OK);
  json_t *root = json_load_file(path, 0, NULL);
  const json_t *events = json_object_get(root, "traceEvents");
  expect_turn(events, "stage 0 out: chunk 0, micro-batch 3", 4, 2, 7, 0);
  expect_turn(events, "stage 1 out: chunk 1, micro-batch 3", 4, 9, 12, 6);
  assert_true(number(find(events, "X", "stage 1 out: chunk 1, micro-batch 3"), "tid") == 1);
  size_t spans = 0, i;
  json_t *event;
  json_array_foreach(events, i, event) {
    spans += strcmp(json_string_value(json_object_get(event, "ph")), "X") == 0;
  }
  assert_int_equal(spans, 3);
  json_decref(root);
  bl_ctl_chrome_trace_destroy(trace);
}

static void processes_are_named_by_coordinates(void **state) {
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
    bl_ctl_chrome_trace_add(
        trace,
        &(bl_ctl_trace_event_t){
            .stage = 3, .name = "1F0", .end_ns = 1000, .micro_batch = 0, .slots_in_use = 1, .grid = cases[i].grid});
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
  bl_ctl_chrome_trace_add(
      trace, &(bl_ctl_trace_event_t){
                 .stage = 0, .name = "0F0", .start_ns = 1, .end_ns = 2, .micro_batch = 0, .slots_in_use = 1});
  assert_int_equal(bl_ctl_chrome_trace_write(trace, "/nowhere/trace.json", &err), BL_NOT_FOUND);
  assert_non_null(strstr(err.text, "/nowhere"));
  bl_ctl_chrome_trace_destroy(trace);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_step_becomes_a_file),
      cmocka_unit_test(a_slot_is_taken_at_a_begin_and_free_at_an_end),
      cmocka_unit_test(a_link_moves_one_block_at_a_time),
      cmocka_unit_test(simulated_turns_are_kept),
      cmocka_unit_test(nothing_is_not_written),
      cmocka_unit_test(processes_are_named_by_coordinates),
  };
  return cmocka_run_group_tests(tests, make_file, remove_file);
}
