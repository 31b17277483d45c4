// SPDX-License-Identifier: Apache-2.0
// Verifies what a person sees: plain lines at a bounded rate, a picture redrawn in place on a terminal, bars in
// proportion to bytes, no line wider than the terminal. The clock is an argument.
#include "ballastctl/run/progress.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmocka.h>

#define SECOND 1000000000ull

static const bl_ctl_stage_plan_t stages[] = {{.stage = 0, .own_slots = 4, .slot_bytes = 1 << 20},
                                             {.stage = 1, .own_slots = 2, .slot_bytes = 1 << 20}};
static const bl_ctl_plan_t plan = {.steps = 100, .stages = stages, .stage_count = 2};
static const bl_ctl_stage_step_t used[] = {{.stage = 0, .counters = {.own_slots = 4, .peak_slots = 4}},
                                           {.stage = 1, .counters = {.own_slots = 2, .peak_slots = 2}}};

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

// A terminal of that size; *master is its other end.
static FILE *open_terminal(uint16_t columns, uint16_t rows, int *master) {
  *master = posix_openpt(O_RDWR | O_NOCTTY);
  assert_true(*master >= 0 && grantpt(*master) == 0 && unlockpt(*master) == 0);
  int terminal = open(ptsname(*master), O_RDWR | O_NOCTTY);
  assert_true(terminal >= 0);
  struct winsize size = {.ws_col = columns, .ws_row = rows};
  assert_int_equal(ioctl(terminal, TIOCSWINSZ, &size), 0);
  FILE *stream = fdopen(terminal, "w");
  assert_non_null(stream);
  return stream;
}

// What is drawn on a terminal of that size, in bytes; the escape sequences are taken out, "\n" ends a row.
static void draw_plan(const bl_ctl_plan_t *drawn, uint16_t columns, uint16_t rows, char *text, size_t text_bytes) {
  int master;
  screen_t screen = {.stream = open_terminal(columns, rows, &master)};
  assert_int_equal(bl_ctl_progress_create(screen.stream, BL_CTL_PROGRESS_ASCII, &screen.progress), BL_OK);
  bl_ctl_progress_plan(screen.progress, drawn);
  take_step(&screen, 1, SECOND);
  fputc('$', screen.stream); // the end
  fflush(screen.stream);
  size_t got = 0;
  while (got == 0 || text[got - 1] != '$') { // the kernel passes it on in pieces
    ssize_t count = read(master, text + got, text_bytes - got);
    assert_true(count > 0);
    got += (size_t)count;
  }
  text[got - 1] = '\0';
  char *to = text;
  for (const char *from = text; *from != '\0'; from++) {
    if (strncmp(from, "\033[", 2) == 0) {
      from += 1 + strcspn(from + 1, "KAJ");
    } else if (*from != '\r') {
      *to++ = *from;
    }
  }
  *to = '\0';
  bl_ctl_progress_destroy(screen.progress);
  fclose(screen.stream);
  close(master);
}

static void draw_on_terminal(uint16_t columns, uint16_t rows, char *text, size_t text_bytes) {
  draw_plan(&plan, columns, rows, text, text_bytes);
}

static void no_line_is_wider_than_the_terminal(void **state) {
  (void)state;
  char text[2048];
  draw_on_terminal(80, 24, text, sizeof text);
  assert_string_equal(text, "step 1/100  loss 2.5000  2000 tokens/s  0:50 left\n"
                            "  stage 0   ########################  4/4 slots  4.00 MiB\n"
                            "  stage 1   ############............  2/2 slots  2.00 MiB");
  draw_on_terminal(40, 24, text, sizeof text);
  assert_string_equal(text, "step 1/100  loss 2.5000  2000 tokens/s\n"
                            "  stage 0   ################  4/4 slots\n"
                            "  stage 1   ########........  2/2 slots");
  draw_on_terminal(24, 24, text, sizeof text);
  assert_string_equal(text, "step 1/100  loss 2.5000\n"
                            "  stage 0   ###########\n"
                            "  stage 1   ######.....");
  draw_on_terminal(12, 24, text, sizeof text);
  assert_string_equal(text, "step 1/100");
}

static void bars_name_ranks(void **state) {
  (void)state;
  static const bl_ctl_stage_plan_t ranks[] = {{.own_slots = 4, .slot_bytes = 1 << 20},
                                              {.tensor = 1, .own_slots = 4, .slot_bytes = 1 << 20},
                                              {.data = 1, .own_slots = 4, .slot_bytes = 1 << 20},
                                              {.tensor = 1, .data = 1, .own_slots = 4, .slot_bytes = 1 << 20}};
  const bl_ctl_plan_t grid = {.steps = 100, .stages = ranks, .stage_count = 4, .tensor_ranks = 2, .replicas = 2};
  char text[2048];
  draw_plan(&grid, 60, 24, text, sizeof text);
  assert_string_equal(text, "step 1/100  loss 2.5000  2000 tokens/s  0:50 left\n"
                            "  tensor rank 0 of stage 0 of replica 0 ########  4/4 slots\n"
                            "  tensor rank 1 of stage 0 of replica 0 ####....  2/2 slots\n"
                            "  tensor rank 0 of stage 0 of replica 1 ........  0/4 slots\n"
                            "  tensor rank 1 of stage 0 of replica 1 ........  0/4 slots");
  draw_plan(&grid, 34, 24, text, sizeof text);
  assert_string_equal(text, "step 1/100  loss 2.5000\n"
                            "  rank 0    ##########  4/4 slots\n"
                            "  rank 1    #####.....  2/2 slots\n"
                            "  rank 2    ..........  0/4 slots\n"
                            "  rank 3    ..........  0/4 slots");
  const bl_ctl_plan_t nonsense = {
      .steps = 100, .stages = ranks, .stage_count = 2, .tensor_ranks = 1u << 16, .replicas = 1u << 16};
  draw_plan(&nonsense, 60, 24, text, sizeof text);
  assert_string_equal(text, "step 1/100  loss 2.5000  2000 tokens/s  0:50 left\n"
                            "  stage 0   ########################  4/4 slots  4.00 MiB\n"
                            "  stage 1   ############............  2/2 slots  2.00 MiB");
}

static void no_more_bars_than_rows(void **state) {
  (void)state;
  char text[2048];
  draw_on_terminal(80, 2, text, sizeof text);
  assert_non_null(strstr(text, "stage 0"));
  assert_null(strstr(text, "stage 1"));
}

static void what_a_terminal_can(void **state) {
  (void)state;
  static const struct {
    const char *terminal, *locale;
    bl_ctl_progress_style_t style;
  } cases[] = {{"xterm", "C", BL_CTL_PROGRESS_ASCII},
               {"xterm", "C.UTF-8", BL_CTL_PROGRESS_UNICODE},
               {"dumb", "C.UTF-8", BL_CTL_PROGRESS_PLAIN},
               {"", "C.UTF-8", BL_CTL_PROGRESS_PLAIN}};
  int master;
  FILE *stream = open_terminal(80, 24, &master);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    setenv("TERM", cases[i].terminal, 1);
    setenv("LC_ALL", cases[i].locale, 1);
    assert_int_equal(bl_ctl_progress_style_of(stream), cases[i].style);
  }
  fclose(stream);
  close(master);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(plain_lines_come_at_a_bounded_rate),
      cmocka_unit_test(a_terminal_is_drawn_in_place),
      cmocka_unit_test(unicode_bars),
      cmocka_unit_test(no_line_is_wider_than_the_terminal),
      cmocka_unit_test(bars_name_ranks),
      cmocka_unit_test(no_more_bars_than_rows),
      cmocka_unit_test(what_a_terminal_can),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
