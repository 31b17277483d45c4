// SPDX-License-Identifier: Apache-2.0
// Help of one row for a terminal. Shared inside lib/config.
#ifndef BALLAST_CONFIG_OPTION_HELP_H
#define BALLAST_CONFIG_OPTION_HELP_H

#include "config/options.h"

// "  --listen ADDR     Where to serve." wrapped at 100 columns; `prefix` is "--" for flags, "" for keys.
void bl__option_print_help(const bl_option_t *row, const char *prefix, FILE *stream);
// Prints `text` wrapped, the first line beginning at `column`, the next ones indented by `indent`.
void bl__print_wrapped(const char *text, size_t column, size_t indent, FILE *stream);
// What stands for the value of a row: "ADDR", "N".
const char *bl__option_argument(const bl_option_t *row);

#endif
