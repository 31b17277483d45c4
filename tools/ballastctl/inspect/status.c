// SPDX-License-Identifier: Apache-2.0
// ballastctl status and stages: what a run does now, asked of its driver.
#include "ballastctl/commands.h"
#include "ballastctl/inspect/ask.h"
#include "ballastctl/inspect/coords.h"
#include "ballastctl/inspect/endpoint.h"
#include "ballastctl/output_path.h"

#include "base/words.h"
#include "device/account.h"
#include "draw/memory_grid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int status_run(int argc, char *const *argv) {
  static const bl_ctl_column_t columns[] = {
      {.key = "run", .title = "RUN"},
      {.key = "phase", .title = "PHASE"},
      {.key = "step", .title = "STEP", .right = true},
      {.key = "steps", .title = "STEPS", .right = true},
      {.key = "waiting_for", .title = "WAITING FOR"},
      {.key = "waiting_seconds", .title = "SECONDS", .right = true, .wide = true},
      {.key = "error", .title = "ERROR", .wide = true},
  };
  bl_error_t err;
  bl_ctl_output_t output;
  json_t *answer;
  bl_status_t status =
      bl_ctl_ask_status("ballastctl status", "Shows what a run does now.", argc, argv, &output, &answer, &err);
  if (status == BL_OK && answer != NULL) {
    status =
        bl_ctl_printed(bl_ctl_print_object(output, columns, sizeof columns / sizeof columns[0], answer, stdout), &err);
  }
  json_decref(answer);
  return bl_ctl_finish(status, &err);
}

// Appends an item to a table cell, separated by a semicolon. Takes the reference to `item`.
static void append(json_t **cell, json_t *item) {
  json_t *joined = *cell == NULL ? item : json_sprintf("%s; %s", json_string_value(*cell), json_string_value(item));
  if (joined != item) {
    json_decref(*cell);
    json_decref(item);
  }
  *cell = joined;
}

static void lists_to_cells(json_t *stages) {
  const bl_grid_t grid = bl_ctl_coords_grid(stages);
  size_t i, k;
  json_t *stage, *item;
  json_array_foreach(stages, i, stage) {
    json_t *waits = NULL, *paths = NULL;
    json_array_foreach(json_object_get(stage, "waits"), k, item) {
      append(&waits, json_sprintf("%s (%.3g s)", json_string_value(json_object_get(item, "what")),
                                  json_number_value(json_object_get(item, "seconds"))));
    }
    json_array_foreach(json_object_get(stage, "paths"), k, item) { // the reason begins with the path
      char peer[BL_GRID_NAME_BYTES];
      append(&paths, json_sprintf("%s: %s", bl_ctl_coords_name(&grid, item, peer),
                                  json_string_value(json_object_get(item, "reason"))));
    }
    json_object_set_new(stage, "waits", waits == NULL ? json_null() : waits);
    json_object_set_new(stage, "paths", paths == NULL ? json_null() : paths);
  }
}

typedef struct arguments {
  bl_ctl_ask_arguments_t ask; // first: bl_ctl_ask_rows
  char *to;
} arguments_t;

static const bl_option_t own_rows[] = {
    {.name = "to",
     .type = BL_OPTION_TEXT,
     .offset = offsetof(arguments_t, to),
     .argument = "FILE",
     .help = "Draw the memory of every rank instead: .svg or .png, a column per stage, a row per tensor rank and "
             "replica, all on one scale."},
};
#define OWN_ROWS (sizeof own_rows / sizeof own_rows[0])

static bl_status_t draw_memory(const json_t *answer, const char *name, const char *path, bl_error_t *err) {
  static const char *uses[BL_MEMORY_TAGS];
  const json_t *stages = json_object_get(answer, "stages");
  const bl_grid_t grid = bl_ctl_coords_grid(stages);
  const size_t ranks = json_array_size(stages);
  if (ranks == 0 || ranks != bl_grid_ranks(&grid)) {
    return bl_error_set(err, BL_PRECONDITION, "%s is not written: the driver knows no stages yet", path);
  }
  double *bytes = calloc(ranks * BL_MEMORY_TAGS, sizeof *bytes);
  if (bytes == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a picture of %zu ranks", ranks);
  }
  for (size_t i = 0; i < ranks; i++) {
    const json_t *memory = json_object_get(json_array_get(stages, i), "memory");
    for (int tag = 0; tag < BL_MEMORY_TAGS; tag++) {
      uses[tag] = bl_memory_tag_name((bl_memory_tag_t)tag);
      const json_t *planned = json_object_get(memory, uses[tag]);
      bytes[i * BL_MEMORY_TAGS + (size_t)tag] = memory != NULL ? (double)json_integer_value(planned) : -1;
    }
  }
  char subtitle[64];
  snprintf(subtitle, sizeof subtitle, "memory of %zu rank%s at step %lld", ranks, bl_plural(ranks),
           (long long)json_integer_value(json_object_get(answer, "step")));
  const bl_memory_grid_t picture = {.title = name != NULL ? name : "ballast",
                                    .subtitle = subtitle,
                                    .stages = grid.stages,
                                    .tensor = grid.tensor,
                                    .data = grid.data,
                                    .uses = uses,
                                    .use_count = BL_MEMORY_TAGS,
                                    .bytes = bytes};
  bl_status_t status = bl_memory_grid_draw(&picture, path, err);
  free(bytes);
  return status;
}

static bl_status_t print_stages(const arguments_t *a, const json_t *answer, bl_error_t *err) {
  static const bl_ctl_column_t columns[] = {
      BL_CTL_COORDS_COLUMNS,
      {.key = "phase", .title = "PHASE"},
      {.key = "applied", .title = "APPLIED", .right = true},
      {.key = "operation", .title = "OPERATION"},
      {.key = "operations_done", .title = "DONE", .right = true},
      {.key = "operations_total", .title = "OF", .right = true},
      {.key = "peak_slots", .title = "PEAK SLOTS", .right = true},
      {.key = "own_slots", .title = "OWN SLOTS", .right = true},
      {.key = "pid", .title = "PID", .right = true},
      {.key = "age_seconds", .title = "AGE", .right = true},
      {.key = "address", .title = "ADDRESS", .wide = true},
      {.key = "device", .title = "DEVICE", .wide = true},
      {.key = "waits", .title = "WAITS", .wide = true},
      {.key = "paths", .title = "PATHS", .wide = true},
  };
  const bl_ctl_output_t output = (bl_ctl_output_t)a->ask.output;
  json_t *stages = json_object_get(answer, "stages");
  const bl_grid_t grid = bl_ctl_coords_grid(stages);
  bl_ctl_column_t shown[sizeof columns / sizeof columns[0]];
  const size_t count =
      bl_ctl_coords_columns(columns, sizeof columns / sizeof columns[0], grid.tensor > 1, grid.data > 1, shown);
  if (output == BL_CTL_TABLE || output == BL_CTL_WIDE) {
    lists_to_cells(stages);
  }
  return bl_ctl_printed(bl_ctl_print_rows(output, shown, count, stages, stdout), err);
}

static bl_status_t stages_body(void *arguments, const bl_flags_result_t *words, bl_error_t *err) {
  const arguments_t *a = arguments;
  json_t *endpoints = NULL, *answer = NULL;
  (void)words;
  bl_status_t status = a->to != NULL ? bl_ctl_picture_path_check("to", a->to, err) : BL_OK;
  if (status == BL_OK) {
    status = bl_ctl_endpoints_find(a->ask.endpoint, &endpoints, err);
  }
  if (status == BL_OK) {
    status = bl_ctl_driver_ask(bl_ctl_endpoints_driver(endpoints), a->ask.timeout_seconds, &answer, err);
  }
  if (status == BL_OK) {
    const char *name = json_string_value(json_object_get(endpoints, "name"));
    status = a->to != NULL ? draw_memory(answer, name, a->to, err) : print_stages(a, answer, err);
  }
  json_decref(answer);
  json_decref(endpoints);
  return status;
}

static int stages_run(int argc, char *const *argv) {
  bl_option_t rows[BL_CTL_ASK_ROWS + OWN_ROWS];
  memcpy(rows, bl_ctl_ask_rows, BL_CTL_ASK_ROWS * sizeof rows[0]);
  memcpy(rows + BL_CTL_ASK_ROWS, own_rows, sizeof own_rows);
  const bl_flags_t flags = {.program = "ballastctl stages",
                            .usage = "[--endpoint ADDRESS] [-o FORMAT] [--to FILE.svg|FILE.png]",
                            .about = "Lists the stages of a run and what each does, as it reported AGE seconds ago; "
                                     "the driver asks about once a second. With --to it draws their memory.",
                            .table = {rows, BL_CTL_ASK_ROWS + OWN_ROWS, "command line"}};
  arguments_t arguments = {0};
  return bl_ctl_run(&flags, &arguments, stages_body, argc, argv);
}

const bl_ctl_command_t bl_ctl_status_command = {"status", "what a run does now", status_run};
const bl_ctl_command_t bl_ctl_stages_command = {"stages", "the stages of a run and what each does now", stages_run};
