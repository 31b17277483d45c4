// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/run/progress.h"

#include "ballastctl/inspect/coords.h"
#include "base/bytes.h"
#include "base/minmax.h"
#include "model/grid.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define BAR_CELLS       24
#define BAR_CELLS_LEAST 8  // in a narrow terminal the bytes after the bar are left out first
#define NAME_COLUMNS    9  // of "stage 123"
#define COLUMNS_LEAST   24 // below this no bars are drawn
#define LINE_BYTES      256
#define BARS_MAX        16          // with more stages only the first ones are shown
#define DRAW_EVERY_NS   100000000u  // a terminal is redrawn at most ten times a second
#define PLAIN_EVERY_NS  2000000000u // a log gets at most one line in two seconds
#define RATE_NEW_WEIGHT 0.1         // weight of the newest step in the running mean of step times

typedef struct stage_bar {
  uint32_t own_slots, peak_slots;
  uint64_t slot_bytes;
} stage_bar_t;

struct bl_ctl_progress {
  FILE *stream;
  FILE *frame; // buffer of a drawing, written with one write, since stderr has no buffer
  char *frame_text;
  size_t frame_bytes;
  bl_ctl_progress_style_t style;
  stage_bar_t *bars; // [stage_count], of all ranks
  size_t stage_count;
  bl_grid_t grid;
  size_t name_columns; // of the longest name of a bar
  uint64_t steps;
  uint64_t step, tokens; // of the last step
  double loss, mean_seconds, validation_loss;
  bool has_validation;
  bool drawn; // the last step is on the screen
  uint64_t drawn_ns;
  int lines; // lines of the last drawing, which the next one overwrites
};

bl_ctl_progress_style_t bl_ctl_progress_style_of(FILE *stream) {
  const char *terminal = getenv("TERM");
  if (!isatty(fileno(stream)) || terminal == NULL || terminal[0] == '\0' || strcmp(terminal, "dumb") == 0) {
    return BL_CTL_PROGRESS_PLAIN;
  }
  const char *names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    const char *value = getenv(names[i]);
    if (value != NULL && value[0] != '\0') {
      bool utf8 = strstr(value, "UTF-8") != NULL || strstr(value, "utf8") != NULL;
      return utf8 ? BL_CTL_PROGRESS_UNICODE : BL_CTL_PROGRESS_ASCII;
    }
  }
  return BL_CTL_PROGRESS_ASCII;
}

bl_status_t bl_ctl_progress_create(FILE *stream, bl_ctl_progress_style_t style, bl_ctl_progress_t **result) {
  bl_ctl_progress_t *progress = calloc(1, sizeof *progress);
  if (progress == NULL) {
    return BL_EXHAUSTED;
  }
  progress->frame = open_memstream(&progress->frame_text, &progress->frame_bytes);
  if (progress->frame == NULL) {
    free(progress);
    return BL_EXHAUSTED;
  }
  progress->stream = stream;
  progress->style = style;
  progress->drawn = true;
  *result = progress;
  return BL_OK;
}

void bl_ctl_progress_destroy(bl_ctl_progress_t *progress) {
  if (progress != NULL) {
    fclose(progress->frame);
    free(progress->frame_text);
    free(progress->bars);
    free(progress);
  }
}

void bl_ctl_progress_plan(bl_ctl_progress_t *progress, const bl_ctl_plan_t *plan) {
  stage_bar_t *bars = calloc(plan->stage_count + 1, sizeof *bars);
  if (bars == NULL) {
    return; // skips this drawing
  }
  for (size_t i = 0; i < plan->stage_count; i++) {
    bars[i] = (stage_bar_t){plan->stages[i].own_slots, 0, plan->stages[i].slot_bytes};
  }
  free(progress->bars);
  const uint32_t tensor = bl_max_u32(plan->tensor_ranks, 1), data = bl_max_u32(plan->replicas, 1),
                 ranks = (uint32_t)plan->stage_count;
  if (!bl_ctl_coords_grid_of(1, tensor, data, &progress->grid)) { // a driver says nonsense
    progress->grid = (bl_grid_t){.tensor = 1, .data = 1};
  }
  progress->grid.stages = bl_max_u32(ranks / (progress->grid.tensor * progress->grid.data), 1);
  progress->bars = bars;
  progress->stage_count = plan->stage_count;
  progress->name_columns = NAME_COLUMNS;
  for (uint32_t i = 0; i < plan->stage_count && i < BARS_MAX; i++) {
    char name[BL_GRID_NAME_BYTES];
    const size_t columns = strlen(bl_grid_name(&progress->grid, i, name));
    progress->name_columns = columns > progress->name_columns ? columns : progress->name_columns;
  }
  progress->steps = plan->steps;
}

// "18.3k", "912"
static const char *rate_text(double rate, char text[24]) {
  if (rate >= 1e6) {
    snprintf(text, 24, "%.2fM", rate / 1e6);
  } else if (rate >= 1e4) {
    snprintf(text, 24, "%.1fk", rate / 1e3);
  } else {
    snprintf(text, 24, "%.0f", rate);
  }
  return text;
}

// "0:42", "1:02:03"
static const char *duration_text(double seconds, char text[24]) {
  unsigned long long whole = seconds < 0 || seconds > 1e12 ? 0 : (unsigned long long)(seconds + 0.5);
  if (whole >= 3600) {
    snprintf(text, 24, "%llu:%02llu:%02llu", whole / 3600, whole / 60 % 60, whole % 60);
  } else {
    snprintf(text, 24, "%llu:%02llu", whole / 60, whole % 60);
  }
  return text;
}

// ---- lines that fit ----

// A line with a maximum width. A terminal would wrap a longer line, and the next drawing would miss the second row.
typedef struct line {
  char text[LINE_BYTES];
  size_t used, columns; // in bytes, each of which is one column
} line_t;

static void put(line_t *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Adds a part if all of it fits.
static void put(line_t *line, const char *format, ...) {
  va_list args;
  va_start(args, format);
  int length = vsnprintf(line->text + line->used, sizeof line->text - line->used, format, args);
  va_end(args);
  if (length > 0 && line->used + (size_t)length <= line->columns) {
    line->used += (size_t)length;
  } else {
    line->columns = line->used; // nor any later part
  }
  line->text[line->used] = '\0';
}

// Returns the size of the terminal; 0 if it is not known.
static struct winsize size_of(FILE *stream) {
  struct winsize size = {0};
  int fd = fileno(stream);
  return fd >= 0 && ioctl(fd, TIOCGWINSZ, &size) == 0 ? size : (struct winsize){0};
}

static size_t columns_of(struct winsize size) {
  size_t columns = size.ws_col > 0 ? size.ws_col - 1u : LINE_BYTES; // the cursor needs a column
  return columns < LINE_BYTES ? columns : LINE_BYTES - 1;
}

static void print_line(bl_ctl_progress_t *progress, size_t columns) {
  char rate[24], left[24];
  double tokens_per_second = progress->mean_seconds > 0 ? (double)progress->tokens / progress->mean_seconds : 0;
  double seconds_left = (double)(progress->steps - progress->step) * progress->mean_seconds;
  line_t line = {.columns = columns};
  put(&line, "step %llu/%llu", (unsigned long long)progress->step, (unsigned long long)progress->steps);
  put(&line, "  loss %.4f", progress->loss);
  if (progress->has_validation) {
    put(&line, "  held-out %.4f", progress->validation_loss);
  }
  put(&line, "  %s tokens/s", rate_text(tokens_per_second, rate));
  put(&line, "  %s left", duration_text(seconds_left, left));
  fputs(line.text, progress->frame);
}

// Prints a bar. Its length is that of the fullest device; the filled part is what a stage used at its peak.
static void print_bar(const bl_ctl_progress_t *progress, size_t stage, uint64_t longest_bytes, size_t columns) {
  const stage_bar_t *bar = &progress->bars[stage];
  bool unicode = progress->style == BL_CTL_PROGRESS_UNICODE;
  uint64_t used_bytes = bar->peak_slots * bar->slot_bytes;
  char bytes[BL_BYTES_TEXT], rank[BL_GRID_NAME_BYTES], name[BL_GRID_NAME_BYTES + 4];
  size_t name_columns = progress->name_columns;
  (void)bl_grid_name(&progress->grid, (uint32_t)stage, rank);
  if (name_columns > NAME_COLUMNS && name_columns + 3 + BAR_CELLS_LEAST > columns) {
    name_columns = NAME_COLUMNS;
    snprintf(rank, sizeof rank, "rank %zu", stage);
  }
  int name_length = snprintf(name, sizeof name, "  %-*s ", (int)name_columns, rank);
  line_t tail = {.columns = columns - (size_t)name_length - BAR_CELLS_LEAST};
  put(&tail, "  %u/%u slots", bar->peak_slots, bar->own_slots);
  put(&tail, "  %s", bl_bytes_format(used_bytes, bytes));
  size_t cells = columns - (size_t)name_length - tail.used;
  cells = cells < BAR_CELLS ? cells : BAR_CELLS;
  uint64_t filled = longest_bytes > 0 ? (used_bytes * cells + longest_bytes / 2) / longest_bytes : 0;
  fprintf(progress->frame, "\n\033[K%s", name);
  for (uint64_t i = 0; i < cells; i++) {
    fputs(i < filled ? (unicode ? "\u2588" : "#") : (unicode ? "\u00b7" : "."), progress->frame);
  }
  fputs(tail.text, progress->frame);
}

// ---- drawing ----

// Returns the number of bars that fit below the line without scrolling the terminal.
static size_t bars_of(const bl_ctl_progress_t *progress, struct winsize size) {
  if (size.ws_col > 0 && size.ws_col < COLUMNS_LEAST) {
    return 0;
  }
  size_t most = size.ws_row > 0 && size.ws_row - 1u < BARS_MAX ? size.ws_row - 1u : BARS_MAX;
  return progress->stage_count < most ? progress->stage_count : most;
}

static void draw(bl_ctl_progress_t *progress) {
  struct winsize size = size_of(progress->stream);
  size_t columns = columns_of(size);
  if (progress->lines > 0) {
    fprintf(progress->frame, "\033[%dA", progress->lines);
  }
  fputs("\r\033[K", progress->frame);
  print_line(progress, columns);
  uint64_t longest_bytes = 0;
  for (size_t i = 0; i < progress->stage_count; i++) {
    uint64_t bytes = progress->bars[i].own_slots * progress->bars[i].slot_bytes;
    longest_bytes = bytes > longest_bytes ? bytes : longest_bytes;
  }
  size_t shown = bars_of(progress, size);
  for (size_t i = 0; i < shown; i++) {
    print_bar(progress, i, longest_bytes, columns);
  }
  if ((int)shown < progress->lines) {
    fputs("\033[J", progress->frame); // the terminal has become smaller
  }
  progress->lines = (int)shown;
}

static void put_out(bl_ctl_progress_t *progress) {
  if (fflush(progress->frame) == 0) { // else no memory: skips this drawing
    fwrite(progress->frame_text, 1, progress->frame_bytes, progress->stream);
    fflush(progress->stream);
  }
  rewind(progress->frame);
}

static void show(bl_ctl_progress_t *progress) {
  if (progress->style == BL_CTL_PROGRESS_PLAIN) {
    print_line(progress, LINE_BYTES - 1);
    fputc('\n', progress->frame);
  } else {
    draw(progress);
  }
  put_out(progress);
  progress->drawn = true;
}

static void show_in_time(bl_ctl_progress_t *progress, uint64_t now_ns) {
  uint64_t every_ns = progress->style == BL_CTL_PROGRESS_PLAIN ? PLAIN_EVERY_NS : DRAW_EVERY_NS;
  progress->drawn = false;
  if (progress->drawn_ns == 0 || now_ns - progress->drawn_ns >= every_ns || progress->step == progress->steps) {
    show(progress);
    progress->drawn_ns = now_ns;
  }
}

void bl_ctl_progress_step(bl_ctl_progress_t *progress, const bl_ctl_step_t *step, uint64_t now_ns) {
  progress->step = step->step;
  progress->loss = step->loss;
  progress->tokens = step->tokens;
  progress->mean_seconds = progress->mean_seconds == 0
                               ? step->seconds
                               : progress->mean_seconds + RATE_NEW_WEIGHT * (step->seconds - progress->mean_seconds);
  for (size_t i = 0; i < step->stage_count && i < progress->stage_count; i++) {
    progress->bars[i].own_slots = step->stages[i].counters.own_slots;
    progress->bars[i].peak_slots = step->stages[i].counters.peak_slots;
  }
  show_in_time(progress, now_ns);
}

void bl_ctl_progress_validation(bl_ctl_progress_t *progress, const bl_ctl_validation_t *validation, uint64_t now_ns) {
  progress->has_validation = true;
  progress->validation_loss = validation->loss;
  if (progress->step > 0) {
    show_in_time(progress, now_ns);
  }
}

void bl_ctl_progress_finish(bl_ctl_progress_t *progress) {
  if (!progress->drawn) {
    show(progress);
  }
  if (progress->lines > 0 || (progress->style != BL_CTL_PROGRESS_PLAIN && progress->drawn_ns > 0)) {
    fputc('\n', progress->stream);
    fflush(progress->stream);
  }
  progress->lines = 0;
}
