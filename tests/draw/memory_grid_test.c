// SPDX-License-Identifier: Apache-2.0
// Verifies that the memory of a grid of ranks becomes whole SVG and PNG files, that a rank of which nothing is known and one
// that has more look otherwise, and that bad paths and grids beyond a picture are refused.
#include "draw/memory_grid.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RANKS 8
#define USES  3

// Fontconfig, which cairo asks for fonts, keeps some memory to the end of the process. Named for the leak checker.
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
  return "leak:libfontconfig";
}

static const char *const uses[USES] = {"weights", "slots", "staging"};

static char *drawn(const double *bytes) {
  const char *const path = BALLAST_BINARY_DIR "/memory.svg";
  const bl_memory_grid_t grid = {.title = "a run",
                                 .subtitle = "now",
                                 .stages = 2,
                                 .tensor = 2,
                                 .data = 2,
                                 .uses = uses,
                                 .use_count = USES,
                                 .bytes = bytes};
  bl_error_t err;
  assert_int_equal(bl_memory_grid_draw(&grid, path, &err), BL_OK);
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  char *text = malloc(1 << 20);
  assert_non_null(text);
  text[fread(text, 1, (1 << 20) - 1, file)] = '\0';
  fclose(file);
  assert_non_null(strstr(text, "</svg>"));
  return text;
}

static size_t boxes_of(const char *text) {
  size_t boxes = 0;
  for (const char *at = text; (at = strstr(at, "<path")) != NULL; at++) {
    boxes++;
  }
  return boxes;
}

static void ranks_become_bars(void **state) {
  (void)state;
  double bytes[RANKS * USES];
  for (int i = 0; i < RANKS * USES; i++) {
    bytes[i] = i % USES == 2 ? 0 : 1e6;
  }
  char *same = drawn(bytes);
  bytes[4 * USES + 1] *= 2;
  char *more = drawn(bytes);
  bytes[4 * USES] = -1;
  char *unknown = drawn(bytes);
  assert_true(boxes_of(same) >= (size_t)RANKS * 2);
  assert_true(strcmp(same, more) != 0);
  assert_true(strcmp(more, unknown) != 0);
  free(same);
  free(more);
  free(unknown);
}

static void rows_of_runs_have_their_names(void **state) {
  (void)state;
  static const char *const rows[] = {"with", "without"};
  static const double bytes[2 * 2 * USES] = {3, 2, 1, 3, 2, 1, 3, 2, 1, 6, 4, 2};
  const bl_memory_grid_t grid = {.title = "runs",
                                 .stages = 2,
                                 .tensor = 1,
                                 .data = 2,
                                 .uses = uses,
                                 .use_count = USES,
                                 .rows = rows,
                                 .bytes = bytes};
  bl_memory_grid_t ranks = grid;
  ranks.rows = NULL;
  bl_error_t err;
  assert_int_equal(bl_memory_grid_draw(&grid, BALLAST_BINARY_DIR "/runs.svg", &err), BL_OK);
  assert_int_equal(bl_memory_grid_draw(&ranks, BALLAST_BINARY_DIR "/ranks.svg", &err), BL_OK);
  assert_int_not_equal(system("cmp -s " BALLAST_BINARY_DIR "/runs.svg " BALLAST_BINARY_DIR "/ranks.svg"), 0);
}

static void what_cannot_be_drawn_is_refused(void **state) {
  (void)state;
  static const double bytes[USES] = {1, 2, 3};
  bl_memory_grid_t grid = {
      .title = "a run", .stages = 1, .tensor = 1, .data = 1, .uses = uses, .use_count = USES, .bytes = bytes};
  bl_error_t err;
  assert_int_equal(bl_memory_grid_draw(&grid, BALLAST_BINARY_DIR "/memory.png", &err), BL_OK);
  assert_int_equal(bl_memory_grid_draw(&grid, BALLAST_BINARY_DIR "/memory.jpg", &err), BL_INVALID);
  assert_int_equal(bl_memory_grid_draw(&grid, BALLAST_BINARY_DIR "/none/memory.svg", &err), BL_NOT_FOUND);
  grid.stages = 100000;
  assert_int_equal(bl_memory_grid_draw(&grid, BALLAST_BINARY_DIR "/memory.svg", &err), BL_EXHAUSTED);
  assert_non_null(strstr(err.text, "100000 stages"));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_become_bars),
                                     cmocka_unit_test(rows_of_runs_have_their_names),
                                     cmocka_unit_test(what_cannot_be_drawn_is_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
