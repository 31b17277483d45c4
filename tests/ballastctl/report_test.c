// SPDX-License-Identifier: Apache-2.0
// Verifies the lines of a report: the contract of DESIGN.md section 7 field by field, exact losses, every step once,
// lines that are whole in the file as soon as a step is reported, what a resumed run takes over, and that no file is
// lost to a new report.
#include "ballastctl/run/report.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

static char folder[] = "/tmp/ballast-report-XXXXXX", path[64];

static int make_folder(void **state) {
  (void)state;
  const bool made = mkdtemp(folder) != NULL;
  snprintf(path, sizeof path, "%s/report", folder);
  return made ? 0 : -1;
}

// Every test begins without a report, and without what another has set aside.
static int empty_folder(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'/*", folder);
  return system(command);
}

static int remove_folder(void **state) {
  return empty_folder(state) == 0 ? rmdir(folder) : -1;
}

static const bl_ctl_stage_step_t stages[] = {
    {.stage = 0,
     .process = 71,
     .counters = {.own_slots = 2,
                  .peak_slots = 2,
                  .peak_slot_bytes = 4096,
                  .evicted = 1,
                  .loaded = 1,
                  .lost = 3,
                  .dropped = 4,
                  .recomputed = 7,
                  .stall_ns = 250000000,
                  .busy_ns = 500000000,
                  .host_moved_bytes = 512,
                  .cross_machine_bytes = 8192}},
    {.stage = 1, .process = 72, .counters = {.own_slots = 1, .peak_slots = 1, .peak_slot_bytes = 2048}},
};

static bl_ctl_step_t make_step(uint64_t number, double loss) {
  return (bl_ctl_step_t){.step = number,
                         .loss = loss,
                         .grad_norm = 0.1,
                         .tokens = 256,
                         .seconds = 0.125,
                         .ran_under = {.version = 1, .policy = {.kind = BL_POLICY_NONE}},
                         .stages = stages,
                         .stage_count = 2};
}

static json_t *read_line(FILE *stream) {
  char line[4096];
  assert_non_null(fgets(line, sizeof line, stream));
  assert_int_equal(line[strlen(line) - 1], '\n');
  json_error_t fault;
  json_t *value = json_loads(line, 0, &fault);
  if (value == NULL) {
    fail_msg("%s: %s", fault.text, line);
  }
  return value;
}

static double real_of(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  assert_true(json_is_number(value));
  return json_number_value(value);
}

static void a_line_has_every_field(void **state) {
  (void)state;
  bl_ctl_report_t *report;
  bl_error_t err;
  assert_int_equal(bl_ctl_report_create(path, false, &report, &err), BL_OK);
  bl_ctl_step_t step = make_step(1, 5.5451774444795623);
  assert_int_equal(bl_ctl_report_step(report, &step, &err), BL_OK);

  FILE *stream = fopen(path, "r"); // while the report is still open: the line is whole already
  json_t *line = read_line(stream);
  fclose(stream);
  assert_string_equal(json_string_value(json_object_get(line, "event")), "step");
  assert_true(real_of(line, "step") == 1 && real_of(line, "tokens") == 256 && real_of(line, "seconds") == 0.125);
  assert_true(real_of(line, "loss") == 5.5451774444795623 && real_of(line, "grad_norm") == 0.1);
  assert_string_equal(json_string_value(json_object_get(line, "policy")), "none");
  assert_true(real_of(line, "policy_version") == 1);
  assert_int_equal(json_array_size(json_object_get(line, "stores")), 0);
  const json_t *list = json_object_get(line, "stages");
  assert_int_equal(json_array_size(list), 2);
  static const char *const keys[] = {
      "stage", "pid",     "own_slots",  "peak_slots",    "peak_slot_bytes", "evicted",          "loaded",
      "lost",  "dropped", "recomputed", "stall_seconds", "busy_seconds",    "host_moved_bytes", "cross_machine_bytes"};
  static const double values[] = {0, 71, 2, 2, 4096, 1, 1, 3, 4, 7, 0.25, 0.5, 512, 8192};
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
    assert_true(real_of(json_array_get(list, 0), keys[i]) == values[i]);
  }
  assert_int_equal(json_object_size(json_array_get(list, 0)), sizeof keys / sizeof keys[0]);
  json_decref(line);
  bl_ctl_report_destroy(report);
}

static void what_is_not_finite_is_null(void **state) {
  (void)state;
  bl_ctl_report_t *report;
  bl_error_t err;
  assert_int_equal(bl_ctl_report_create(path, false, &report, &err), BL_OK);
  bl_ctl_step_t step = make_step(1, -NAN);
  step.grad_norm = INFINITY;
  assert_int_equal(bl_ctl_report_step(report, &step, &err), BL_OK);
  bl_ctl_validation_t validation = {1, -INFINITY, 64};
  assert_int_equal(bl_ctl_report_validation(report, &validation, &err), BL_OK);
  bl_ctl_report_destroy(report);
  FILE *stream = fopen(path, "r");
  json_t *lines[] = {read_line(stream), read_line(stream)};
  fclose(stream);
  assert_true(json_is_null(json_object_get(lines[0], "loss")) && json_is_null(json_object_get(lines[0], "grad_norm")));
  assert_true(json_is_null(json_object_get(lines[1], "loss")));
  json_decref(lines[0]);
  json_decref(lines[1]);
}

static void losses_are_exact_and_steps_stand_once(void **state) {
  (void)state;
  static const double losses[] = {2.0, 0.1, 4.9406564584124654e-324, 1.7976931348623157e308, 1.0 / 3};
  bl_ctl_report_t *report;
  bl_error_t err;
  assert_int_equal(bl_ctl_report_create(path, false, &report, &err), BL_OK);
  for (uint64_t i = 0; i < 5; i++) {
    bl_ctl_step_t step = make_step(i + 1, losses[i]);
    assert_int_equal(bl_ctl_report_step(report, &step, &err), BL_OK);
    assert_int_equal(bl_ctl_report_step(report, &step, &err), BL_OK); // replayed
  }
  bl_ctl_validation_t validation = {5, 0.5, 64};
  assert_int_equal(bl_ctl_report_validation(report, &validation, &err), BL_OK);
  bl_ctl_report_destroy(report);

  FILE *stream = fopen(path, "r");
  for (uint64_t i = 0; i < 5; i++) {
    json_t *line = read_line(stream);
    assert_true(real_of(line, "step") == (double)(i + 1) && real_of(line, "loss") == losses[i]);
    json_decref(line);
  }
  json_t *line = read_line(stream);
  assert_string_equal(json_string_value(json_object_get(line, "event")), "validation");
  json_decref(line);
  assert_int_equal(fgetc(stream), EOF);
  fclose(stream);
}

static void appending_keeps_what_was_there(void **state) {
  (void)state;
  for (int round = 0; round < 2; round++) {
    bl_ctl_report_t *report;
    bl_error_t err;
    assert_int_equal(bl_ctl_report_create(path, round > 0, &report, &err), BL_OK);
    bl_ctl_step_t step = make_step((uint64_t)round + 1, 1);
    assert_int_equal(bl_ctl_report_step(report, &step, &err), BL_OK);
    bl_ctl_report_destroy(report);
  }
  FILE *stream = fopen(path, "r");
  for (int round = 0; round < 2; round++) {
    json_t *line = read_line(stream);
    assert_true(real_of(line, "step") == round + 1);
    json_decref(line);
  }
  fclose(stream);
}

static void write_text(const char *text) {
  FILE *stream = fopen(path, "w");
  assert_non_null(stream);
  assert_true(fputs(text, stream) >= 0);
  assert_int_equal(fclose(stream), 0);
}

static void expect_text(const char *file, const char *expected) {
  char text[1024];
  FILE *stream = fopen(file, "r");
  assert_non_null(stream);
  text[fread(text, 1, sizeof text - 1, stream)] = '\0';
  fclose(stream);
  assert_string_equal(text, expected);
}

static void resume_and_write(uint64_t after, uint64_t first, uint64_t last) {
  bl_ctl_report_t *report;
  bl_error_t err = {0};
  if (bl_ctl_report_resume(path, after, &report, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  bl_ctl_validation_t validation = {.step = 2, .loss = 1};
  assert_int_equal(bl_ctl_report_validation(report, &validation, &err), BL_OK);
  for (uint64_t number = first; number <= last; number++) {
    bl_ctl_step_t step = make_step(number, 2);
    assert_int_equal(bl_ctl_report_step(report, &step, &err), BL_OK);
  }
  bl_ctl_report_destroy(report);
}

#define EARLIER                                                                                                        \
  "{\"event\":\"step\",\"step\":1,\"loss\":1}\n{\"event\":\"step\",\"step\":2,\"loss\":1}\n"                           \
  "{\"event\":\"validation\",\"step\":2,\"loss\":1}\n{\"event\":\"step\",\"step\":3,\"loss\":1}\n{\"event\":\"ste"

// Steps after the checkpoint, and a line cut off by a crash, go; what stays is not written again.
static void a_resumed_report_has_every_step_once(void **state) {
  (void)state;
  const struct {
    uint64_t after, first;
    double losses[5]; // of steps 1, 2, the validation, 3, 4
  } cases[] = {{2, 3, {1, 1, 1, 2, 2}}, {UINT64_MAX, 1, {1, 1, 1, 1, 2}}};
  for (size_t i = 0; i < 2; i++) {
    write_text(EARLIER);
    resume_and_write(cases[i].after, cases[i].first, 4);
    FILE *stream = fopen(path, "r");
    for (int k = 0; k < 5; k++) {
      json_t *line = read_line(stream);
      assert_true(real_of(line, "loss") == cases[i].losses[k]);
      json_decref(line);
    }
    assert_int_equal(fgetc(stream), EOF);
    fclose(stream);
  }
}

// Text, text without an end of line, and JSON that no run has written: with and without --resume.
static void a_file_that_is_no_report_is_left_alone(void **state) {
  (void)state;
  static const char *const texts[] = {"dear diary\nstep 1\n", "x", "no end of line", "{\"name\":\"job\"}\n"};
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    bl_ctl_report_t *report;
    bl_error_t err = {0};
    write_text(texts[i]);
    assert_int_equal(bl_ctl_report_resume(path, 1, &report, &err), BL_INVALID);
    assert_non_null(strstr(err.text, "line 1 is not that of a report; name another file"));
    assert_int_equal(bl_ctl_report_create(path, false, &report, &err), BL_INVALID);
    assert_non_null(strstr(err.text, path));
    expect_text(path, texts[i]);
  }
}

// Through a symbolic link, too, which goes on naming the report that is written.
static void the_report_of_an_earlier_run_is_set_aside(void **state) {
  (void)state;
  char link[80], aside[96];
  snprintf(link, sizeof link, "%s/link", folder);
  assert_int_equal(symlink("report", link), 0);
  for (int round = 0; round < 3; round++) {
    bl_ctl_report_t *report;
    bl_error_t err;
    assert_int_equal(bl_ctl_report_create(round < 2 ? path : link, false, &report, &err), BL_OK);
    const char *notice = bl_ctl_report_notice(report);
    if (round == 0) {
      assert_null(notice);
    } else {
      snprintf(aside, sizeof aside, "%s.earlier-%d now", path, round);
      assert_non_null(notice);
      assert_non_null(strstr(notice, aside));
    }
    char line[64];
    snprintf(line, sizeof line, "{\"event\":\"step\",\"step\":%d}", round + 1);
    assert_int_equal(bl_ctl_report_note(report, line, &err), BL_OK);
    bl_ctl_report_destroy(report);
  }
  snprintf(aside, sizeof aside, "%s.earlier-1", path);
  expect_text(aside, "{\"event\":\"step\",\"step\":1}\n");
  snprintf(aside, sizeof aside, "%s.earlier-2", path);
  expect_text(aside, "{\"event\":\"step\",\"step\":2}\n");
  expect_text(path, "{\"event\":\"step\",\"step\":3}\n");
  expect_text(link, "{\"event\":\"step\",\"step\":3}\n");
}

// A report that ends before the checkpoint, because that run was without --report for a while.
static void missing_steps_are_warned_of(void **state) {
  (void)state;
  static const struct {
    uint64_t after;
    bool warned;
  } cases[] = {{1, false}, {3, false}, {4, true}, {10, true}, {UINT64_MAX, false}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bl_ctl_report_t *report;
    bl_error_t err;
    write_text(EARLIER);
    assert_int_equal(bl_ctl_report_resume(path, cases[i].after, &report, &err), BL_OK);
    const char *notice = bl_ctl_report_notice(report);
    assert_int_equal(notice != NULL, cases[i].warned);
    assert_true(notice == NULL || strstr(notice, "ends at step 3 and the checkpoint is of step ") != NULL);
    bl_ctl_report_destroy(report);
  }
  bl_ctl_report_t *report;
  bl_error_t err;
  write_text(""); // a report that begins with the resumed run
  assert_int_equal(bl_ctl_report_resume(path, 10, &report, &err), BL_OK);
  assert_null(bl_ctl_report_notice(report));
  bl_ctl_report_destroy(report);
}

// Nothing is read from a pipe or a device, set aside or emptied.
static void pipes_and_devices_are_written_as_they_are(void **state) {
  (void)state;
  bl_ctl_report_t *report;
  bl_error_t err;
  char text[64];
  assert_int_equal(mkfifo(path, 0600), 0);
  int reader = open(path, O_RDONLY | O_NONBLOCK);
  assert_true(reader >= 0);
  for (int round = 0; round < 2; round++) {
    assert_int_equal(round == 0 ? bl_ctl_report_create(path, false, &report, &err)
                                : bl_ctl_report_resume(path, 1, &report, &err),
                     BL_OK);
    assert_null(bl_ctl_report_notice(report));
    assert_int_equal(bl_ctl_report_note(report, "{}", &err), BL_OK);
    assert_int_equal(read(reader, text, sizeof text), 3);
    bl_ctl_report_destroy(report);
  }
  close(reader);
  assert_int_equal(bl_ctl_report_create("/dev/null", false, &report, &err), BL_OK);
  assert_int_equal(bl_ctl_report_note(report, "{}", &err), BL_OK);
  bl_ctl_report_destroy(report);
}

// What the shell has opened with >> keeps what it had, whatever that is.
static void the_file_of_stdout_is_appended_to(void **state) {
  (void)state;
  bl_ctl_report_t *report;
  bl_error_t err;
  write_text("before\n");
  fflush(stdout);
  int saved = dup(STDOUT_FILENO), fd = open(path, O_WRONLY | O_APPEND);
  assert_true(saved >= 0 && fd >= 0 && dup2(fd, STDOUT_FILENO) >= 0);
  bl_status_t status = bl_ctl_report_create("/dev/stdout", false, &report, &err);
  assert_true(dup2(saved, STDOUT_FILENO) >= 0);
  close(saved);
  close(fd);
  assert_int_equal(status, BL_OK);
  assert_int_equal(bl_ctl_report_note(report, "{}", &err), BL_OK);
  bl_ctl_report_destroy(report);
  expect_text(path, "before\n{}\n");
}

static void a_path_that_cannot_be_written_is_named(void **state) {
  (void)state;
  bl_ctl_report_t *report;
  bl_error_t err;
  assert_int_equal(bl_ctl_report_create("/nowhere/report", false, &report, &err), BL_NOT_FOUND);
  assert_non_null(strstr(err.text, "/nowhere/report"));
  assert_int_equal(bl_ctl_report_create("/dev/full", false, &report, &err), BL_OK);
  bl_ctl_step_t step = make_step(1, 1);
  assert_int_equal(bl_ctl_report_step(report, &step, &err), BL_EXHAUSTED); // no space
  assert_non_null(strstr(err.text, "/dev/full"));
  bl_ctl_report_destroy(report);
}

// Two runs at once with one file: the second is refused before it empties what the first has written.
static void a_report_that_is_being_written_is_not_emptied(void **state) {
  (void)state;
  bl_ctl_report_t *first, *second;
  bl_error_t err;
  assert_int_equal(bl_ctl_report_create(path, false, &first, &err), BL_OK);
  FILE *stream = fopen(path, "w");
  assert_non_null(stream);
  fputs("{\"event\":\"step\",\"step\":1}\n", stream);
  assert_int_equal(fclose(stream), 0);
  assert_int_equal(bl_ctl_report_create(path, false, &second, &err), BL_PRECONDITION);
  assert_non_null(strstr(err.text, path));
  assert_non_null(strstr(err.text, "another run writes it"));
  assert_int_equal(bl_ctl_report_resume(path, 0, &second, &err), BL_PRECONDITION);
  struct stat info;
  assert_int_equal(stat(path, &info), 0);
  assert_int_not_equal(info.st_size, 0);
  bl_ctl_report_destroy(first);
  assert_int_equal(bl_ctl_report_create(path, false, &second, &err), BL_OK); // a report of an ended run is set aside
  assert_int_equal(stat(path, &info), 0);
  assert_int_equal(info.st_size, 0);
  bl_ctl_report_destroy(second);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(a_line_has_every_field, empty_folder),
      cmocka_unit_test_teardown(what_is_not_finite_is_null, empty_folder),
      cmocka_unit_test_teardown(losses_are_exact_and_steps_stand_once, empty_folder),
      cmocka_unit_test_teardown(appending_keeps_what_was_there, empty_folder),
      cmocka_unit_test_teardown(a_resumed_report_has_every_step_once, empty_folder),
      cmocka_unit_test_teardown(a_file_that_is_no_report_is_left_alone, empty_folder),
      cmocka_unit_test_teardown(the_report_of_an_earlier_run_is_set_aside, empty_folder),
      cmocka_unit_test_teardown(missing_steps_are_warned_of, empty_folder),
      cmocka_unit_test_teardown(pipes_and_devices_are_written_as_they_are, empty_folder),
      cmocka_unit_test_teardown(the_file_of_stdout_is_appended_to, empty_folder),
      cmocka_unit_test_teardown(a_path_that_cannot_be_written_is_named, empty_folder),
      cmocka_unit_test_teardown(a_report_that_is_being_written_is_not_emptied, empty_folder),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
