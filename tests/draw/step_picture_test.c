// SPDX-License-Identifier: Apache-2.0
// Verifies that pictures of steps are written as complete SVG and PNG files with every stage in them, from simulated
// schedules and from events with jitter, that lent slots and the cap of balanced ones are drawn, that bad input is
// refused, and that a full disk costs no picture that was there.
#include "draw/step_picture.h"

#include "base/random.h"
#include "draw/schedule_timeline.h"
#include "schedule/balance/balance.h"
#include "schedule/generate.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

// Fontconfig, which cairo asks for fonts, keeps some memory to the end of the process. Named for the leak checker.
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
  return "leak:libfontconfig";
}

static char *read_all(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  char *text = malloc(4 << 20);
  *size = fread(text, 1, (4 << 20) - 1, file);
  text[*size] = '\0';
  fclose(file);
  return text;
}

// A picture of 1F1B, of a schedule and a simulation that the caller destroys.
static bl_schedule_timeline_t simulated(bl_schedule_t **schedule, bl_simulation_t *simulation) {
  const bl_schedule_request_t request = {.name = "1f1b", .stages = 4, .micro_batches = 8};
  const bl_costs_t costs = BL_COSTS_UNIT;
  bl_error_t err;
  assert_int_equal(bl_schedule_generate(&request, schedule, &err), BL_OK);
  assert_int_equal(bl_simulate(*schedule, &costs, simulation, &err), BL_OK);
  return (bl_schedule_timeline_t){.schedule = *schedule, .simulation = simulation, .unit = "s"};
}

static void simulated_schedules_become_svg_and_png(void **state) {
  (void)state;
  bl_schedule_t *schedule;
  bl_simulation_t simulation;
  bl_error_t err;
  const bl_schedule_timeline_t picture = simulated(&schedule, &simulation);
  const char *const svg = BALLAST_BINARY_DIR "/timeline.svg", *const png = BALLAST_BINARY_DIR "/timeline.png";
  assert_int_equal(bl_schedule_timeline_draw(&picture, svg, &err), BL_OK);
  assert_int_equal(bl_schedule_timeline_draw(&picture, png, &err), BL_OK);
  size_t size;
  char *text = read_all(svg, &size);
  assert_non_null(strstr(text, "<svg"));
  assert_non_null(strstr(text, "</svg>"));
  size_t boxes = 0; // one filled path per operation at least
  for (const char *at = text; (at = strstr(at, "<path")) != NULL; at++) {
    boxes++;
  }
  assert_in_range(boxes, 64, 10000);
  free(text);
  text = read_all(png, &size);
  assert_memory_equal(text, "\x89PNG\r\n\x1a\n", 8);
  assert_memory_equal(text + size - 8, "IEND", 4);
  free(text);
  bl_simulation_cleanup(&simulation);
  bl_schedule_destroy(schedule);
}

// Draws a schedule as SVG, balanced under `cap` unless that is 0; its text, for the caller to free.
static char *draw_shape(const char *name, uint32_t stages, uint32_t micro_batches, uint32_t cap) {
  bl_schedule_request_t request = {.name = name, .stages = stages, .micro_batches = micro_batches};
  bl_schedule_t *schedule;
  bl_balance_result_t balanced = {0};
  bl_simulation_t simulation;
  bl_error_t err;
  bl_costs_t costs = BL_COSTS_UNIT;
  assert_int_equal(bl_schedule_generate(&request, &schedule, &err), BL_OK);
  if (cap > 0) {
    assert_int_equal(bl_balance_cap(schedule, cap, false, BL_BALANCE_OVERLAP, &balanced, &err), BL_OK);
  }
  const bl_schedule_t *drawn = cap > 0 ? balanced.schedule : schedule;
  assert_int_equal(bl_simulate(drawn, &costs, &simulation, &err), BL_OK);
  const bl_schedule_timeline_t picture = {.schedule = drawn,
                                          .simulation = &simulation,
                                          .unit = "s",
                                          .policy = cap > 0 ? "cap" : NULL,
                                          .mode = cap > 0 ? "overlap" : NULL,
                                          .cap = cap};
  const char *const path = BALLAST_BINARY_DIR "/shape.svg";
  size_t size;
  assert_int_equal(bl_schedule_timeline_draw(&picture, path, &err), BL_OK);
  char *text = read_all(path, &size);
  assert_non_null(strstr(text, "</svg>"));
  bl_simulation_cleanup(&simulation);
  if (cap > 0) {
    bl_schedule_destroy(balanced.schedule);
    balanced.schedule = NULL;
    bl_balance_result_cleanup(&balanced);
  }
  bl_schedule_destroy(schedule);
  return text;
}

static void what_is_lent_and_where_a_box_belongs_is_drawn(void **state) {
  (void)state;
  const char *const lent = "95.294118%";  // the red of lent slots
  const char *const limit = "22.352941%"; // the green of the dashed limit
  char *text = draw_shape("1f1b", 4, 8, 3);
  assert_non_null(strstr(text, lent));
  assert_non_null(strstr(text, limit));
  free(text);
  static const char *const plain[] = {"1f1b", "seq1f1b", "chimera", "dualpipe"};
  for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
    text = draw_shape(plain[i], 4, 8, 0);
    assert_null(strstr(text, lent));
    assert_null(strstr(text, limit));
    free(text);
  }
  free(draw_shape("gpipe", 1, 1, 0));
}

// A hand-made run: every operation takes 20 +- 30 %, stages wait for nobody.
static void measured_events_are_drawn(void **state) {
  (void)state;
  bl_step_picture_event_t events[64];
  bl_step_picture_level_t levels[64];
  const double available[] = {4, 4, 4, 4};
  for (uint32_t i = 0; i < 64; i++) {
    double start = i % 16 > 0 ? events[i - 1].end + 3 * bl_random_uniform(7, i) : 100 + 20 * (i / 16);
    events[i] = (bl_step_picture_event_t){.stage = i / 16,
                                          .type = "FIW"[i % 3],
                                          .micro_batch = i % 16 / 3,
                                          .start = start,
                                          .end = start + 20 * (0.7 + 0.6 * bl_random_uniform(9, i))};
    levels[i] = (bl_step_picture_level_t){.stage = i / 16, .time = start, .slots = i % 5, .lent = i % 7 == 0};
  }
  bl_step_picture_t picture = {.title = "step 12",
                               .unit = "ms",
                               .stages = 4,
                               .events = events,
                               .event_count = 64,
                               .levels = levels,
                               .level_count = 64,
                               .slots_available = available};
  bl_error_t err;
  assert_int_equal(bl_step_picture_draw(&picture, BALLAST_BINARY_DIR "/measured.png", &err), BL_OK);
  assert_int_equal(bl_step_picture_draw(&picture, BALLAST_BINARY_DIR "/measured.jpg", &err), BL_INVALID);
  assert_non_null(strstr(err.text, ".svg or .png"));
  assert_int_equal(bl_step_picture_draw(&picture, "/nonexistent/x.svg", &err), BL_NOT_FOUND);
  assert_non_null(strstr(err.text, "/nonexistent/x.svg"));
  picture.event_count = 0;
  assert_int_equal(bl_step_picture_draw(&picture, BALLAST_BINARY_DIR "/none.svg", &err), BL_INVALID);
  picture.event_count = 64;
  picture.stages = 3;
  assert_int_equal(bl_step_picture_draw(&picture, BALLAST_BINARY_DIR "/none.svg", &err), BL_INVALID);
  assert_non_null(strstr(err.text, "stage 3"));
}

// A file may not grow: what a full disk does. The picture that was there stays, and the system's own reason is named.
static void no_room_keeps_the_picture_that_was_there(void **state) {
  (void)state;
  static const char *const paths[] = {BALLAST_BINARY_DIR "/kept.svg", BALLAST_BINARY_DIR "/kept.png"};
  bl_schedule_t *schedule;
  bl_simulation_t simulation;
  bl_error_t err;
  const bl_schedule_timeline_t picture = simulated(&schedule, &simulation);
  struct rlimit before;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
  for (size_t i = 0; i < 2; i++) {
    assert_int_equal(bl_schedule_timeline_draw(&picture, paths[i], &err), BL_OK);
    size_t whole_bytes, kept_bytes;
    char *whole = read_all(paths[i], &whole_bytes);
    const struct rlimit tight = {.rlim_cur = 1000, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    bl_status_t status = bl_schedule_timeline_draw(&picture, paths[i], &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_not_equal(status, BL_OK);
    assert_non_null(strstr(err.text, paths[i]));
    assert_non_null(strstr(err.text, "File too large"));
    char *kept = read_all(paths[i], &kept_bytes);
    assert_int_equal(kept_bytes, whole_bytes);
    assert_memory_equal(kept, whole, whole_bytes);
    free(kept);
    free(whole);
  }
  signal(SIGXFSZ, handler);
  bl_simulation_cleanup(&simulation);
  bl_schedule_destroy(schedule);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(simulated_schedules_become_svg_and_png),
      cmocka_unit_test(what_is_lent_and_where_a_box_belongs_is_drawn),
      cmocka_unit_test(measured_events_are_drawn),
      cmocka_unit_test(no_room_keeps_the_picture_that_was_there),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
