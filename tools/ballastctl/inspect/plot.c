// SPDX-License-Identifier: Apache-2.0
// ballastctl plot: the losses of a report as a picture.
#include "ballastctl/input_file.h"
#include "ballastctl/output_path.h"
#include "ballastctl/verbs.h"

#include "config/flags.h"
#include "draw/curve.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REPORT_BYTES (1u << 30) // a line is about 1 KiB: a million steps

typedef struct arguments {
  char *to;
} arguments_t;

static const bl_option_t rows[] = {{.name = "to",
                                    .type = BL_OPTION_PATH,
                                    .offset = offsetof(arguments_t, to),
                                    .argument = "FILE.svg",
                                    .required = true,
                                    .help = "Where to draw it; the ending .svg or .png says how."}};
static const bl_flags_t flags = {.program = "ballastctl plot",
                                 .usage = "REPORT --to FILE.svg|FILE.png",
                                 .about = "Draws the training and held-out losses of a report (run --report) over its "
                                          "steps. A report that is still being written is drawn as far as it goes.",
                                 .table = {rows, sizeof rows / sizeof rows[0], "command line"},
                                 .positional_minimum = 1,
                                 .positional_maximum = 1};

typedef struct points {
  bl_curve_point_t *items;
  size_t count, capacity;
} points_t;

static bool add_point(points_t *points, const json_t *event) {
  const json_t *loss = json_object_get(event, "loss"), *step = json_object_get(event, "step");
  if (points->count == points->capacity) {
    size_t capacity = points->capacity == 0 ? 1024 : 2 * points->capacity;
    bl_curve_point_t *items = realloc(points->items, capacity * sizeof *items);
    if (items == NULL) {
      return false;
    }
    points->items = items;
    points->capacity = capacity;
  }
  points->items[points->count++] = (bl_curve_point_t){.step = (double)json_integer_value(step),
                                                      .loss = json_is_number(loss) ? json_number_value(loss) : NAN};
  return true;
}

// Whoever joins reports, or edits one, may leave an empty line.
static bool is_empty(const char *line, const char *end) {
  while (line < end && (*line == ' ' || *line == '\t' || *line == '\r')) {
    line++;
  }
  return line == end;
}

static bl_status_t read_line(const char *line, const char *end, points_t *train, points_t *held_out, bl_error_t *err) {
  json_error_t fault;
  json_t *event = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, &fault);
  const char *kind = json_string_value(json_object_get(event, "event"));
  if (kind == NULL) {
    json_decref(event);
    return bl_error_set(err, BL_INVALID, "not a line of a report: %s",
                        event == NULL ? fault.text : "it has no \"event\"");
  }
  bool added = strcmp(kind, "step") == 0         ? add_point(train, event)
               : strcmp(kind, "validation") == 0 ? add_point(held_out, event)
                                                 : true;
  json_decref(event);
  return added ? BL_OK : bl_error_set(err, BL_EXHAUSTED, "no memory for the report");
}

// The last line may be half written.
static bl_status_t read_report(const char *path, char *text, size_t size, points_t *train, points_t *held_out,
                               bl_error_t *err) {
  size_t line = 1;
  for (char *end; (end = memchr(text, '\n', size)) != NULL; line++) {
    if (!is_empty(text, end) && read_line(text, end, train, held_out, err) != BL_OK) {
      return bl_error_prefix(err, "%s:%zu", path, line);
    }
    size -= (size_t)(end + 1 - text);
    text = end + 1;
  }
  return BL_OK;
}

static bl_status_t plot(const char *report, const char *to, bl_error_t *err) {
  char *text = NULL;
  size_t size;
  points_t train = {0}, held_out = {0};
  bl_status_t status = bl_ctl_input_file_read(NULL, report, REPORT_BYTES, &text, &size, err);
  if (status == BL_OK) {
    status = read_report(report, text, size, &train, &held_out, err);
  }
  if (status == BL_OK) {
    const char *slash = strrchr(report, '/');
    const bl_curve_t curve = {.title = slash != NULL ? slash + 1 : report,
                              .train = train.items,
                              .train_count = train.count,
                              .held_out = held_out.items,
                              .held_out_count = held_out.count};
    bl_error_t fault;
    status = bl_curve_draw(&curve, to, &fault);
    if (status != BL_OK) { // of the file to be written it is known by its own name
      const bool drawn = status != BL_INVALID;
      status = bl_error_set(err, status, "%s%s%s", drawn ? "" : report, drawn ? "" : ": ", fault.text);
    }
  }
  free(train.items);
  free(held_out.items);
  free(text);
  return status;
}

static bl_status_t body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  const arguments_t *a = arguments;
  bl_status_t status = bl_ctl_picture_path_check("to", a->to, err);
  return status == BL_OK ? plot(words->positional[0], a->to, err) : status;
}

static int run(int argc, char *const *argv) {
  arguments_t arguments = {0};
  return bl_ctl_run(&flags, &arguments, body, argc, argv);
}

const bl_ctl_verb_t bl_ctl_plot_verb = {"plot", "the losses of a report as a picture", run};
