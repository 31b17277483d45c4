// SPDX-License-Identifier: Apache-2.0
// Shared by the commands that make one call to a driver: flags, connection, loop, printing.
#ifndef BALLAST_BALLASTCTL_ASK_H
#define BALLAST_BALLASTCTL_ASK_H

#include "ballastctl/output.h"

#include "config/flags.h"

typedef struct bl_ctl_ask_arguments {
  char *endpoint;
  int output; // bl_ctl_output_t
  double timeout_seconds;
} bl_ctl_ask_arguments_t;

// The flags --endpoint, --output, --timeout.
extern const bl_option_t bl_ctl_ask_rows[];
#define BL_CTL_ASK_ROWS 3

// Reads the command line and asks the driver for its status. *status_json is a new reference. With --help it prints
// that and sets *status_json to NULL.
BL_MUST_USE bl_status_t bl_ctl_ask_status(const char *program, const char *about, int argc, char *const *argv,
                                          bl_ctl_output_t *output, json_t **status_json, bl_error_t *err);
// Gets the status of the driver at `address`; *answer is a new reference.
BL_MUST_USE bl_status_t bl_ctl_driver_ask(const char *address, double timeout_seconds, json_t **answer,
                                          bl_error_t *err);

#endif
