// SPDX-License-Identifier: Apache-2.0
// ballastctl status and stages: what a run does now, asked of its driver.
#include "ask.h"
#include "verbs.h"

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

static int stages_run(int argc, char *const *argv) {
  static const bl_ctl_column_t columns[] = {
      {.key = "stage", .title = "STAGE", .right = true},
      {.key = "phase", .title = "PHASE"},
      {.key = "applied", .title = "APPLIED", .right = true},
      {.key = "operation", .title = "OPERATION"},
      {.key = "operations_done", .title = "DONE", .right = true},
      {.key = "operations_total", .title = "OF", .right = true},
      {.key = "peak_slots", .title = "PEAK SLOTS", .right = true},
      {.key = "own_slots", .title = "OWN SLOTS", .right = true},
      {.key = "pid", .title = "PID", .right = true},
      {.key = "address", .title = "ADDRESS", .wide = true},
      {.key = "device", .title = "DEVICE", .wide = true},
      {.key = "waits", .title = "WAITS", .wide = true},
      {.key = "paths", .title = "PATHS", .wide = true},
  };
  bl_error_t err;
  bl_ctl_output_t output;
  json_t *answer;
  bl_status_t status = bl_ctl_ask_status("ballastctl stages", "Lists the stages of a run and what each does now.", argc,
                                         argv, &output, &answer, &err);
  if (status == BL_OK && answer != NULL) {
    status = bl_ctl_printed(bl_ctl_print_rows(output, columns, sizeof columns / sizeof columns[0],
                                              json_object_get(answer, "stages"), stdout),
                            &err);
  }
  json_decref(answer);
  return bl_ctl_finish(status, &err);
}

const bl_ctl_verb_t bl_ctl_status_verb = {"status", "what a run does now", status_run};
const bl_ctl_verb_t bl_ctl_stages_verb = {"stages", "the stages of a run and what each does now", stages_run};
