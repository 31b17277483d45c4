// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include "measure.h"

#include <stdio.h>

int bl_bench_program(const bl_flags_t *flags, void *settings, bl_bench_run_fn run, int argc, char **argv) {
  bl_error_t err;
  bl_error_clear(&err);
  bl_flags_result_t result;
  bl_status_t status = bl_flags_parse(flags, argc, argv, settings, &result, &err);
  if (status != BL_OK) {
    fprintf(stderr, "%s\n", err.text); // err includes the program's name
  } else if (result.help) {
    bl_flags_print_help(flags, stdout);
  } else if ((status = run(settings, &err)) != BL_OK) {
    fprintf(stderr, "%s: %s\n", flags->program, err.text);
  }
  bl_options_cleanup(&flags->table, settings);
  return bl_status_exit_code(status);
}

bl_status_t bl_bench_pin(int64_t processor, int64_t threads, bl_error_t *err) {
  if (processor >= 0 && threads == 1 && !bl_measure_pin((int)processor)) {
    return bl_error_set(err, BL_INVALID, "cannot run on processor %lld", (long long)processor);
  }
  return BL_OK;
}
