// SPDX-License-Identifier: Apache-2.0
// Verifies that timelines are written as complete SVG and PNG files with every stage in them, from simulated schedules
// and from events with jitter, and that bad input is refused.
#include "draw/timeline.h"

#include "base/random.h"
#include "draw/schedule_timeline.h"
#include "schedule/generate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static void simulated_schedules_become_svg_and_png(void **state) {
  (void)state;
  bl_schedule_request_t request = {.name = "1f1b", .stages = 4, .micro_batches = 8};
  bl_schedule_t *schedule;
  bl_simulation_t simulation;
  bl_error_t err;
  bl_costs_t costs = BL_COSTS_UNIT;
  assert_int_equal(bl_schedule_generate(&request, &schedule, &err), BL_OK);
  assert_int_equal(bl_simulate(schedule, &costs, &simulation, &err), BL_OK);
  const char *const svg = BALLAST_BINARY_DIR "/timeline.svg", *const png = BALLAST_BINARY_DIR "/timeline.png";
  assert_int_equal(bl_schedule_timeline_draw(schedule, &simulation, "s", svg, &err), BL_OK);
  assert_int_equal(bl_schedule_timeline_draw(schedule, &simulation, "s", png, &err), BL_OK);
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

// A hand-made run: every operation takes 20 +- 30 %, stages wait for nobody.
static void measured_events_are_drawn(void **state) {
  (void)state;
  bl_timeline_event_t events[64];
  bl_timeline_level_t levels[64];
  const double available[] = {4, 4, 4, 4};
  for (uint32_t i = 0; i < 64; i++) {
    double start = i % 16 > 0 ? events[i - 1].end + 3 * bl_random_uniform(7, i) : 100 + 20 * (i / 16);
    events[i] = (bl_timeline_event_t){.stage = i / 16,
                                      .verb = "FIW"[i % 3],
                                      .micro_batch = i % 16 / 3,
                                      .start = start,
                                      .end = start + 20 * (0.7 + 0.6 * bl_random_uniform(9, i))};
    levels[i] = (bl_timeline_level_t){i / 16, start, i % 5};
  }
  bl_timeline_t timeline = {.title = "step 12",
                            .unit = "ms",
                            .stages = 4,
                            .events = events,
                            .event_count = 64,
                            .levels = levels,
                            .level_count = 64,
                            .slots_available = available};
  bl_error_t err;
  assert_int_equal(bl_timeline_draw(&timeline, BALLAST_BINARY_DIR "/measured.png", &err), BL_OK);
  assert_int_equal(bl_timeline_draw(&timeline, BALLAST_BINARY_DIR "/measured.jpg", &err), BL_INVALID);
  assert_non_null(strstr(err.text, ".svg or .png"));
  assert_int_equal(bl_timeline_draw(&timeline, "/nonexistent/x.svg", &err), BL_IO);
  assert_non_null(strstr(err.text, "/nonexistent/x.svg"));
  timeline.event_count = 0;
  assert_int_equal(bl_timeline_draw(&timeline, BALLAST_BINARY_DIR "/none.svg", &err), BL_INVALID);
  timeline.event_count = 64;
  timeline.stages = 3;
  assert_int_equal(bl_timeline_draw(&timeline, BALLAST_BINARY_DIR "/none.svg", &err), BL_INVALID);
  assert_non_null(strstr(err.text, "stage 3"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(simulated_schedules_become_svg_and_png),
      cmocka_unit_test(measured_events_are_drawn),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
