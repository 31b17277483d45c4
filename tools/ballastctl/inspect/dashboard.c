// SPDX-License-Identifier: Apache-2.0
// ballastctl dashboard: prints the address of a run's dashboard.
#include "ballastctl/commands.h"
#include "ballastctl/inspect/ask.h"

static int run(int argc, char *const *argv) {
  static const bl_ctl_column_t columns[] = {
      {.key = "page", .title = "PAGE"}, {.key = "run", .title = "RUN"}, {.key = "phase", .title = "PHASE"}};
  bl_error_t err;
  bl_ctl_output_t output;
  json_t *answer;
  bl_status_t status = bl_ctl_ask_status(
      "ballastctl dashboard",
      "Prints the address of the page that the driver of a run serves: memory of every device over the steps, leases, "
      "the last step's timeline. Exit code 3 when it serves none.",
      argc, argv, &output, &answer, &err);
  if (status == BL_OK && answer != NULL) {
    const char *page = json_string_value(json_object_get(answer, "page"));
    if (page == NULL || page[0] == '\0') {
      status = bl_error_set(&err, BL_NOT_FOUND,
                            "the driver serves no page; start it with --metrics-listen 127.0.0.1:0 or another address");
    } else {
      json_t *row = json_pack("{s:s, s:O, s:O}", "page", page, "run", json_object_get(answer, "run"), "phase",
                              json_object_get(answer, "phase"));
      status = bl_ctl_print_object(output, columns, sizeof columns / sizeof columns[0], row, stdout);
      json_decref(row);
      status = bl_ctl_printed(status, &err);
    }
  }
  json_decref(answer);
  return bl_ctl_finish(status, &err);
}

const bl_ctl_command_t bl_ctl_dashboard_command = {"dashboard", "where the page of a run is", run};
