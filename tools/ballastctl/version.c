// SPDX-License-Identifier: Apache-2.0
#include "output.h"
#include "verbs.h"

#include "config/flags.h"
#include "sys/version.h"

typedef struct arguments {
  int output;
} arguments_t;

static const bl_option_t rows[] = {BL_CTL_OUTPUT_FLAG(arguments_t, output)};
static const bl_flags_t flags = {.program = "ballastctl version",
                                 .usage = "[-o FORMAT]",
                                 .about = "Prints the version of this program.",
                                 .table = {rows, 1, "command line"}};
static const bl_ctl_column_t columns[] = {{.key = "name", .title = "NAME"},
                                          {.key = "version", .title = "VERSION"},
                                          {.key = "revision", .title = "REVISION", .wide = true},
                                          {.key = "compiler", .title = "COMPILER", .wide = true}};

static int run(int argc, char *const *argv) {
  arguments_t arguments;
  bl_flags_result_t result;
  bl_error_t err;
  bl_status_t status = bl_flags_parse(&flags, argc, argv, &arguments, &result, &err);
  if (status == BL_OK && result.help) {
    bl_flags_print_help(&flags, stdout);
  } else if (status == BL_OK) {
    json_t *version = json_pack("{s:s, s:s, s:s, s:s}", "name", "ballast", "version", bl_version(), "revision",
                                bl_revision(), "compiler", "gcc " __VERSION__);
    status = version != NULL
                 ? bl_ctl_print_object(arguments.output, columns, sizeof columns / sizeof columns[0], version, stdout)
                 : BL_EXHAUSTED;
    status = bl_ctl_printed(status, &err);
    json_decref(version);
  }
  bl_options_cleanup(&flags.table, &arguments);
  return bl_ctl_finish(status, &err);
}

const bl_ctl_verb_t bl_ctl_version_verb = {"version", "the version of this program", run};
