// SPDX-License-Identifier: Apache-2.0
// ballastctl plot: the losses of a report as a picture.
#include "ballastctl/commands.h"
#include "ballastctl/inspect/report_lines.h"
#include "ballastctl/output_path.h"

#include "config/flags.h"
#include "draw/curve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct arguments {
  char *to;
} arguments_t;

static const bl_option_t rows[] = {{.name = "to",
                                    .type = BL_OPTION_PATH,
                                    .offset = offsetof(arguments_t, to),
                                    .argument = "FILE.svg",
                                    .required = true,
                                    .help = "File to draw, .svg or .png."}};
static const bl_flags_t flags = {.program = "ballastctl plot",
                                 .usage = "REPORT --to FILE.svg|FILE.png",
                                 .about = "Draws the training and held-out losses of a report (run --report) over its "
                                          "steps. A report that is still being written is drawn up to its last step.",
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

typedef struct lines {
  points_t train, held_out;
} lines_t;

static bl_status_t read_event(void *context, const char *kind, const json_t *event, bl_error_t *err) {
  lines_t *lines = context;
  bool added = strcmp(kind, "step") == 0         ? add_point(&lines->train, event)
               : strcmp(kind, "validation") == 0 ? add_point(&lines->held_out, event)
                                                 : true;
  return added ? BL_OK : bl_error_set(err, BL_EXHAUSTED, "no memory for the report");
}

static bl_status_t plot(const char *report, const char *to, bl_error_t *err) {
  lines_t lines = {0};
  bl_status_t status = bl_ctl_report_lines_read(report, read_event, &lines, err);
  if (status == BL_OK) {
    const char *slash = strrchr(report, '/');
    const bl_curve_t curve = {.title = slash != NULL ? slash + 1 : report,
                              .train = lines.train.items,
                              .train_count = lines.train.count,
                              .held_out = lines.held_out.items,
                              .held_out_count = lines.held_out.count};
    bl_error_t fault;
    status = bl_curve_draw(&curve, to, &fault);
    if (status != BL_OK) { // an error about the output file names that file already
      const bool drawn = status != BL_INVALID;
      status = bl_error_set(err, status, "%s%s%s", drawn ? "" : report, drawn ? "" : ": ", fault.text);
    }
  }
  free(lines.train.items);
  free(lines.held_out.items);
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

const bl_ctl_command_t bl_ctl_plot_command = {"plot", "the losses of a report as a picture", run};
