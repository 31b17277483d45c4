// SPDX-License-Identifier: Apache-2.0
// Private to lib/config: help of one row for a terminal.
#ifndef BALLAST_CONFIG_OPTION_HELP_H
#define BALLAST_CONFIG_OPTION_HELP_H

#include "config/options.h"

// Prints "  --listen ADDR     Where to serve.", wrapped at 100 columns. `prefix` is "--" for flags, "" for keys.
void bl__option_print_help(const bl_option_t *row, const char *prefix, FILE *stream);
// Prints `text` wrapped. The first line begins at `column`, further lines are indented by `indent`.
void bl__print_wrapped(const char *text, size_t column, size_t indent, FILE *stream);
// Returns the placeholder for the value of a row: "ADDR", "N".
const char *bl__option_argument(const bl_option_t *row);

#endif
