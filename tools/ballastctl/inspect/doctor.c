// SPDX-License-Identifier: Apache-2.0
// ballastctl doctor: which process waits for which while the job is stuck.
#include "ballastctl/commands.h"
#include "ballastctl/inspect/ask.h"
#include "ballastctl/inspect/diagnosis.h"

static int run(int argc, char *const *argv) {
  static const bl_ctl_column_t columns[] = {
      {.key = "who", .title = "WHO"},
      {.key = "state", .title = "STATE"},
      {.key = "operation", .title = "OPERATION"},
      {.key = "waits_for", .title = "WAITS FOR"},
      {.key = "seconds", .title = "SECONDS", .right = true},
      {.key = "peer", .title = "PEER", .right = true},
      {.key = "micro_batch", .title = "MICRO-BATCH", .right = true},
      {.key = "lease", .title = "LEASE"},
      {.key = "age_seconds", .title = "AGE", .right = true},
      {.key = "chunk", .title = "CHUNK", .right = true, .wide = true},
      {.key = "cause", .title = "CAUSE", .wide = true},
      {.key = "device", .title = "DEVICE", .wide = true},
  };
  bl_error_t err;
  bl_ctl_output_t output;
  json_t *answer;
  bl_status_t status =
      bl_ctl_ask_status("ballastctl doctor",
                        "Says who waits for what, since when, for which peer, store, lease and micro-batch, and who "
                        "holds everybody up; works while the job is stuck. What a stage says of itself "
                        "it said AGE seconds ago: the driver asks about once a second. Exit code 9 when a stage "
                        "or a store does not answer.",
                        argc, argv, &output, &answer, &err);
  if (status == BL_OK && answer != NULL) {
    char verdict[BL_CTL_VERDICT_BYTES];
    size_t silent;
    json_t *rows = bl_ctl_diagnose(answer, verdict, &silent);
    status = bl_ctl_print_rows(output, columns, sizeof columns / sizeof columns[0], rows, stdout);
    json_decref(rows);
    status = bl_ctl_printed(status, &err);
    if (status == BL_OK && silent > 0) {
      status = bl_error_set(&err, BL_UNHEALTHY, "%s", verdict);
    } else if (status == BL_OK) {
      fprintf(stderr, "%s\n", verdict);
    }
  }
  json_decref(answer);
  return bl_ctl_finish(status, &err);
}

const bl_ctl_command_t bl_ctl_doctor_command = {"doctor", "who waits for what, also while the job is stuck", run};
