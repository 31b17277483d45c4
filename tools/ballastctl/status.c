// SPDX-License-Identifier: Apache-2.0
// ballastctl status, stages and health: what a run does now, asked of its driver.
#include "ask.h"
#include "verbs.h"

static bl_status_t printed(bl_status_t status, bl_error_t *err) {
  return status == BL_OK ? BL_OK : bl_error_set(err, status, "cannot print: %s", bl_status_text(status));
}

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
    status = printed(bl_ctl_print_object(output, columns, sizeof columns / sizeof columns[0], answer, stdout), &err);
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
      {.key = "waits", .title = "WAITS", .wide = true},
  };
  bl_error_t err;
  bl_ctl_output_t output;
  json_t *answer;
  bl_status_t status = bl_ctl_ask_status("ballastctl stages", "Lists the stages of a run and what each does now.", argc,
                                         argv, &output, &answer, &err);
  if (status == BL_OK && answer != NULL) {
    status = printed(bl_ctl_print_rows(output, columns, sizeof columns / sizeof columns[0],
                                       json_object_get(answer, "stages"), stdout),
                     &err);
  }
  json_decref(answer);
  return bl_ctl_finish(status, &err);
}

// One row per service; a row that is not serving makes the whole unhealthy.
static json_t *health_rows(const json_t *answer, bool *healthy) {
  json_t *rows = json_array(), *stage;
  size_t i;
  json_array_append_new(rows, json_pack("{s:s, s:s}", "service", "driver", "state", "serving"));
  *healthy = true;
  json_array_foreach(json_object_get(answer, "stages"), i, stage) {
    char name[32];
    bool reachable = json_is_true(json_object_get(stage, "reachable"));
    snprintf(name, sizeof name, "stage-%lld", (long long)json_integer_value(json_object_get(stage, "stage")));
    json_array_append_new(rows,
                          json_pack("{s:s, s:s, s:O?}", "service", name, "state", reachable ? "serving" : "unreachable",
                                    "address", json_object_get(stage, "address")));
    *healthy = *healthy && reachable;
  }
  json_t *store;
  json_array_foreach(json_object_get(answer, "stores"), i, store) {
    char name[32];
    bool reachable = json_is_true(json_object_get(store, "reachable"));
    bool draining = json_is_true(json_object_get(store, "draining"));
    snprintf(name, sizeof name, "store-%lld", (long long)json_integer_value(json_object_get(store, "store")));
    json_array_append_new(rows, json_pack("{s:s, s:s, s:O?}", "service", name, "state",
                                          !reachable ? "unreachable"
                                          : draining ? "draining"
                                                     : "serving",
                                          "address", json_object_get(store, "address")));
    *healthy = *healthy && reachable;
  }
  return rows;
}

static int health_run(int argc, char *const *argv) {
  static const bl_ctl_column_t columns[] = {
      {.key = "service", .title = "SERVICE"},
      {.key = "state", .title = "STATE"},
      {.key = "address", .title = "ADDRESS", .wide = true},
  };
  bl_error_t err;
  bl_ctl_output_t output;
  json_t *answer;
  bl_status_t status =
      bl_ctl_ask_status("ballastctl health",
                        "Asks whether the driver answers and reaches all its stages and stores; exit code "
                        "9 when it does not reach one.",
                        argc, argv, &output, &answer, &err);
  if (status == BL_OK && answer != NULL) {
    bool healthy;
    json_t *rows = health_rows(answer, &healthy);
    status = printed(bl_ctl_print_rows(output, columns, sizeof columns / sizeof columns[0], rows, stdout), &err);
    json_decref(rows);
    if (status == BL_OK && !healthy) {
      status = bl_error_set(&err, BL_UNHEALTHY, "a stage or a store cannot be reached");
    }
  }
  json_decref(answer);
  return bl_ctl_finish(status, &err);
}

const bl_ctl_verb_t bl_ctl_status_verb = {"status", "what a run does now", status_run};
const bl_ctl_verb_t bl_ctl_stages_verb = {"stages", "the stages of a run and what each does now", stages_run};
const bl_ctl_verb_t bl_ctl_health_verb = {"health", "does everything of a run answer", health_run};
