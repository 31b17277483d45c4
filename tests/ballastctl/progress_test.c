// SPDX-License-Identifier: Apache-2.0
// Verifies what a person sees: plain lines at a bounded rate, a picture redrawn in place on a terminal, bars in
// proportion to bytes. The clock is an argument.
#include "progress.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SECOND 1000000000ull

static const bl_ctl_stage_plan_t stages[] = {{.stage = 0, .own_slots = 4, .slot_bytes = 1 << 20},
                                             {.stage = 1, .own_slots = 2, .slot_bytes = 1 << 20}};
static const bl_ctl_plan_t plan = {.steps = 100, .stages = stages, .stage_count = 2};
static const bl_ctl_stage_step_t used[] = {{.stage = 0, .own_slots = 4, .peak_slots = 4},
                                           {.stage = 1, .own_slots = 2, .peak_slots = 2}};

typedef struct screen {
  char *text;
  size_t text_bytes;
  FILE *stream;
  bl_ctl_progress_t *progress;
} screen_t;

static void screen_open(screen_t *screen, bl_ctl_progress_style_t style) {
  screen->stream = open_memstream(&screen->text, &screen->text_bytes);
  assert_non_null(screen->stream);
  assert_int_equal(bl_ctl_progress_create(screen->stream, style, &screen->progress), BL_OK);
  bl_ctl_progress_plan(screen->progress, &plan);
}

static void screen_close(screen_t *screen) {
  bl_ctl_progress_destroy(screen->progress);
  fclose(screen->stream);
  free(screen->text);
}

static void take_step(screen_t *screen, uint64_t number, uint64_t now_ns) {
  bl_ctl_step_t step = {.step = number, .loss = 2.5, .tokens = 1000, .seconds = 0.5, .stages = used, .stage_count = 2};
  bl_ctl_progress_step(screen->progress, &step, now_ns);
}

static size_t count_of(const char *text, const char *word) {
  size_t count = 0;
  for (; (text = strstr(text, word)) != NULL; text += strlen(word)) {
    count++;
  }
  return count;
}

static void plain_lines_come_at_a_bounded_rate(void **state) {
  (void)state;
  screen_t screen;
  screen_open(&screen, BL_CTL_PROGRESS_PLAIN);
  for (uint64_t i = 1; i <= 41; i++) {
    take_step(&screen, i, i * SECOND / 10 + SECOND); // 4 s
  }
  assert_int_equal(count_of(screen.text, "\n"), 3);
  assert_non_null(strstr(screen.text, "step 1/100  loss 2.5000  2000 tokens/s  0:50 left\n"));
  assert_non_null(strstr(screen.text, "step 21/100"));
  take_step(&screen, 42, 52 * SECOND / 10);
  bl_ctl_progress_finish(screen.progress); // what was not shown is shown
  assert_non_null(strstr(screen.text, "step 42/100"));
  assert_null(strchr(screen.text, '\033'));
  bl_ctl_progress_finish(screen.progress);
  assert_int_equal(count_of(screen.text, "step 42/100"), 1);
  screen_close(&screen);
}

static void a_terminal_is_drawn_in_place(void **state) {
  (void)state;
  screen_t screen;
  screen_open(&screen, BL_CTL_PROGRESS_ASCII);
  take_step(&screen, 1, SECOND);
  assert_non_null(strstr(screen.text, "stage 0   ########################  4/4 slots  4.00 MiB"));
  assert_non_null(strstr(screen.text, "stage 1   ############............  2/2 slots  2.00 MiB"));
  assert_int_equal(count_of(screen.text, "\033[2A"), 0);
  take_step(&screen, 2, SECOND + SECOND / 100); // too soon
  take_step(&screen, 3, 2 * SECOND);
  assert_int_equal(count_of(screen.text, "\033[2A"), 1);
  assert_null(strstr(screen.text, "step 2/"));
  bl_ctl_validation_t validation = {3, 2.625, 10};
  bl_ctl_progress_validation(screen.progress, &validation, 3 * SECOND);
  assert_non_null(strstr(screen.text, "loss 2.5000  held-out 2.6250"));
  screen_close(&screen);
}

static void unicode_bars(void **state) {
  (void)state;
  screen_t screen;
  screen_open(&screen, BL_CTL_PROGRESS_UNICODE);
  take_step(&screen, 1, SECOND);
  assert_int_equal(count_of(screen.text, "\u2588"), 24 + 12);
  assert_int_equal(count_of(screen.text, "\u00b7"), 12);
  screen_close(&screen);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(plain_lines_come_at_a_bounded_rate),
      cmocka_unit_test(a_terminal_is_drawn_in_place),
      cmocka_unit_test(unicode_bars),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
