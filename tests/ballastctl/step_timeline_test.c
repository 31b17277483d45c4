// SPDX-License-Identifier: Apache-2.0
// Verifies what a picture of a step is made of: every operation, evictions and loads with their stores among them, rows of
// hosts, and no wait.
#include "ballastctl/inspect/step_timeline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void operations_count_and_waits_do_not(void **state) {
  (void)state;
  bl_ctl_step_timeline_t *timeline;
  assert_int_equal(bl_ctl_step_timeline_create(&timeline), BL_OK);
  bl_ctl_step_timeline_add(timeline,
                           &(bl_ctl_trace_event_t){.name = "gradient from stage 1", .wait = true, .end_ns = 9000000});
  bl_ctl_step_timeline_add(timeline, &(bl_ctl_trace_event_t){.name = "gradients", .end_ns = 8000000});
  assert_true(bl_ctl_step_timeline_ms(timeline) == 0);
  bl_ctl_step_timeline_add(timeline, &(bl_ctl_trace_event_t){.name = "0F1", .start_ns = 1000000, .end_ns = 2000000});
  assert_true(bl_ctl_step_timeline_ms(timeline) == 1);
  bl_ctl_step_timeline_add(timeline, &(bl_ctl_trace_event_t){.name = "0E1@3", .start_ns = 2000000, .end_ns = 4000000});
  assert_true(bl_ctl_step_timeline_ms(timeline) == 3);
  bl_ctl_step_timeline_add(timeline, &(bl_ctl_trace_event_t){.name = "4L12@0", .start_ns = 5000000, .end_ns = 7000000});
  assert_true(bl_ctl_step_timeline_ms(timeline) == 6);
  char path[64];
  bl_error_t err;
  snprintf(path, sizeof path, "/tmp/ballast-step-%d.svg", (int)getpid());
  assert_int_equal(bl_ctl_step_timeline_draw(timeline, "a run", "step 1", path, &err), BL_OK);
  assert_int_equal(unlink(path), 0);
  bl_ctl_step_timeline_destroy(timeline);
}

static void draw(bl_ctl_step_timeline_t *timeline, char *text, size_t bytes) {
  char path[64];
  bl_error_t err;
  snprintf(path, sizeof path, "/tmp/ballast-step-%d.svg", (int)getpid());
  assert_int_equal(bl_ctl_step_timeline_draw(timeline, "a run", "step 1", path, &err), BL_OK);
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  const size_t length = fread(text, 1, bytes - 1, file);
  assert_true(length > 0 && length < bytes - 1);
  text[length] = '\0';
  fclose(file);
  assert_int_equal(unlink(path), 0);
}

// Pictures differ by a row where there is a host, and more by two: the page is as much higher.
static void hosts_have_rows(void **state) {
  (void)state;
  static char picture[1 << 18];
  int heights[3];
  for (uint32_t hosts = 0; hosts < 3; hosts++) {
    bl_ctl_step_timeline_t *timeline;
    assert_int_equal(bl_ctl_step_timeline_create(&timeline), BL_OK);
    const bl_grid_t grid = {.stages = 2, .tensor = 1, .data = 1};
    for (int rank = 0; rank < 2; rank++) {
      bl_ctl_step_timeline_add(
          timeline,
          &(bl_ctl_trace_event_t){.stage = rank, .name = rank == 0 ? "0F0" : "1F0", .end_ns = 9000000, .grid = grid});
      if (hosts > 0) {
        bl_ctl_step_timeline_add(timeline, &(bl_ctl_trace_event_t){.stage = rank,
                                                                   .name = rank == 0 ? "0E0@2" : "1E0@2",
                                                                   .start_ns = 1000000,
                                                                   .end_ns = 5000000,
                                                                   .grid = grid,
                                                                   .transfer = true,
                                                                   .bytes = 1 << 20,
                                                                   .host = hosts > 1 ? (uint32_t)rank : 0});
      }
    }
    draw(timeline, picture, sizeof picture);
    const char *height = strstr(picture, "height=\"");
    assert_non_null(height);
    heights[hosts] = atoi(height + strlen("height=\""));
    bl_ctl_step_timeline_destroy(timeline);
  }
  assert_true(heights[0] < heights[1] && heights[1] < heights[2]);
}

// Two replicas of two stages: four rows, with names that differ from those of four stages; chunks are those of a replica's
// stages, so that virtual stage 2 is a second chunk.
static void ranks_are_rows_of_replicas(void **state) {
  (void)state;
  static char pictures[2][1 << 18];
  static const bl_grid_t grids[] = {{0}, {.stages = 2, .tensor = 1, .data = 2}};
  for (size_t i = 0; i < 2; i++) {
    bl_ctl_step_timeline_t *timeline;
    assert_int_equal(bl_ctl_step_timeline_create(&timeline), BL_OK);
    for (int rank = 0; rank < 4; rank++) {
      static const char *const names[] = {"2F0", "3F0"};
      const bl_ctl_trace_event_t event = {.stage = rank, .name = names[rank % 2], .end_ns = 1000000, .grid = grids[i]};
      bl_ctl_step_timeline_add(timeline, &event);
    }
    draw(timeline, pictures[i], sizeof pictures[0]);
    bl_ctl_step_timeline_destroy(timeline);
  }
  assert_true(strstr(pictures[0], "<svg") != NULL && strstr(pictures[1], "<svg") != NULL);
  assert_true(strcmp(pictures[0], pictures[1]) != 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(operations_count_and_waits_do_not),
      cmocka_unit_test(ranks_are_rows_of_replicas),
      cmocka_unit_test(hosts_have_rows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
