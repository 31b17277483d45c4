// SPDX-License-Identifier: Apache-2.0
// Verifies the plot of time against memory: SVG and PNG are written, for one point as for many, on both kinds of axis; that
// names keep away from each other and from marks, and are left out where there is no room.
#include "draw/frontier_plot.h"

#include "draw/labels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

// Fontconfig, which cairo asks for fonts, keeps some memory to the end of the process. Named for the leak checker.
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
  return "leak:libfontconfig";
}

static char folder[64];

static int set_up(void **state) {
  (void)state;
  snprintf(folder, sizeof folder, "/tmp/ballast-frontier-plot-XXXXXX");
  return mkdtemp(folder) != NULL ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  return rmdir(folder);
}

static void draw(const bl_frontier_point_t *points, size_t count, const char *name) {
  char path[128];
  struct stat made;
  bl_error_t err;
  bl_frontier_t frontier = {.count = count, .points = (bl_frontier_point_t *)points};
  snprintf(path, sizeof path, "%s/%s", folder, name);
  if (bl_frontier_plot(&frontier, "title", path, &err) != BL_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(stat(path, &made), 0);
  assert_true(made.st_size > 1000);
  assert_int_equal(unlink(path), 0);
}

static void pictures_are_written(void **state) {
  (void)state;
  const bl_frontier_point_t points[] = {
      {.schedule = "1f1b", .memory = 4, .t_end = 33, .best_plain = true},
      {.schedule = "1f1b", .memory = 3, .cap = 3, .t_end = 33, .best = true, .evictions = 12, .pooled = true},
      {.schedule = "adaptive", .asked = 2, .memory = 2, .t_end = 90, .best = true, .best_plain = true}};
  draw(points, 3, "many.svg"); // three times as long: a logarithmic axis
  draw(points, 3, "many.png");
  draw(points, 2, "one-time.svg");
  draw(points, 1, "one.svg");
  bl_error_t err;
  assert_int_equal(bl_frontier_plot(&(bl_frontier_t){0}, "title", "/nowhere.svg", &err), BL_INVALID);
}

static void names_keep_apart(void **state) {
  (void)state;
  char path[128];
  bl_error_t err;
  bl_canvas_t *canvas;
  bl_labels_t *labels;
  snprintf(path, sizeof path, "%s/names.svg", folder);
  assert_int_equal(bl_canvas_open(path, 400, 300, &canvas, &err), BL_OK);
  const bl_area_t area = {0, 0, 400, 300};
  assert_int_equal(bl_labels_create(canvas, area, &labels), BL_OK);
  uint32_t written = 0;
  while (written < 1000 && bl_labels_put(labels, 200, 150, "interleaved", 10, BL_COLOR(0))) {
    written++; // all at one point: further and further away, until there is no room
  }
  assert_in_range(written, 6, 100);
  assert_true(bl_labels_put(labels, 20, 20, "elsewhere", 10, BL_COLOR(0)));
  bl_labels_avoid(labels, area); // there is no better place
  assert_true(bl_labels_put(labels, 20, 280, "anywhere", 10, BL_COLOR(0)));
  bl_labels_block(labels, area);
  assert_false(bl_labels_put(labels, 380, 280, "none", 10, BL_COLOR(0)));
  bl_labels_destroy(labels);
  assert_int_equal(bl_canvas_close(canvas, &err), BL_OK);
  assert_int_equal(unlink(path), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(pictures_are_written), cmocka_unit_test(names_keep_apart)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
