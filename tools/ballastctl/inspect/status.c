// SPDX-License-Identifier: Apache-2.0
// ballastctl status and stages: what a run does now, asked of its driver.
#include "ballastctl/inspect/ask.h"
#include "ballastctl/inspect/seat.h"
#include "ballastctl/verbs.h"

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

// In a table a list is one cell for people to read: its items, separated by semicolons. Takes the reference to `item`.
static void append(json_t **cell, json_t *item) {
  json_t *joined = *cell == NULL ? item : json_sprintf("%s; %s", json_string_value(*cell), json_string_value(item));
  if (joined != item) {
    json_decref(*cell);
    json_decref(item);
  }
  *cell = joined;
}

static void lists_to_cells(json_t *stages) {
  const bl_grid_t grid = bl_ctl_seats_grid(stages);
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
      append(&paths, json_sprintf("%s: %s", bl_ctl_seat_name(&grid, item, peer),
                                  json_string_value(json_object_get(item, "reason"))));
    }
    json_object_set_new(stage, "waits", waits == NULL ? json_null() : waits);
    json_object_set_new(stage, "paths", paths == NULL ? json_null() : paths);
  }
}

static int stages_run(int argc, char *const *argv) {
  static const bl_ctl_column_t columns[] = {
      BL_CTL_SEAT_COLUMNS,
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
  bl_error_t err;
  bl_ctl_output_t output;
  json_t *answer;
  bl_status_t status = bl_ctl_ask_status("ballastctl stages",
                                         "Lists the stages of a run and what each does: as it said AGE seconds ago, "
                                         "the driver asks about once a second.",
                                         argc, argv, &output, &answer, &err);
  if (status == BL_OK && answer != NULL) {
    if (output == BL_CTL_TABLE || output == BL_CTL_WIDE) {
      lists_to_cells(json_object_get(answer, "stages"));
    }
    bl_ctl_column_t shown[sizeof columns / sizeof columns[0]];
    const json_t *stages = json_object_get(answer, "stages");
    const bl_grid_t grid = bl_ctl_seats_grid(stages);
    const size_t count =
        bl_ctl_seat_columns(columns, sizeof columns / sizeof columns[0], grid.tensor > 1, grid.data > 1, shown);
    status = bl_ctl_printed(bl_ctl_print_rows(output, shown, count, stages, stdout), &err);
  }
  json_decref(answer);
  return bl_ctl_finish(status, &err);
}

const bl_ctl_verb_t bl_ctl_status_verb = {"status", "what a run does now", status_run};
const bl_ctl_verb_t bl_ctl_stages_verb = {"stages", "the stages of a run and what each does now", stages_run};
