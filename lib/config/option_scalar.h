// SPDX-License-Identifier: Apache-2.0
// Private to lib/config: reads one scalar of a job file or command line, strictly as the type that its row declares. On
// BL_INVALID `err` says what was expected and what was found, without the key, and *value is untouched.
// Thread: pure functions.
#ifndef BALLAST_CONFIG_OPTION_SCALAR_H
#define BALLAST_CONFIG_OPTION_SCALAR_H

#include "config/options.h"

typedef struct bl__scalar {
  const char *text; // terminated at `length`
  size_t length;
  bool quoted; // a quoted scalar is text, never a number, a truth value or null
} bl__scalar_t;

// Returns true for plain `null`, `Null`, `NULL` or `~`, which request the default.
bool bl__scalar_is_null(const bl__scalar_t *scalar);
// Returns whether a text has the form of a number: [-+]? digits, fraction, exponent; no inf, nan or hexadecimal.
bool bl__scalar_is_real_text(const char *text);

BL_MUST_USE bl_status_t bl__scalar_read_bool(const bl__scalar_t *scalar, bool *value, bl_error_t *err);
BL_MUST_USE bl_status_t bl__scalar_read_integer(const bl_option_t *row, const bl__scalar_t *scalar, int64_t *value,
                                                bl_error_t *err);
BL_MUST_USE bl_status_t bl__scalar_read_real(const bl_option_t *row, const bl__scalar_t *scalar, double *value,
                                             bl_error_t *err);
BL_MUST_USE bl_status_t bl__scalar_read_bytes(const bl_option_t *row, const bl__scalar_t *scalar, int64_t *value,
                                              bl_error_t *err);
BL_MUST_USE bl_status_t bl__scalar_read_choice(const bl_option_t *row, const bl__scalar_t *scalar, int *value,
                                               bl_error_t *err);
// *value is malloc'd. Paths are joined to `folder` (NULL: they stay as they are).
BL_MUST_USE bl_status_t bl__scalar_read_text(const bl_option_t *row, const bl__scalar_t *scalar, const char *folder,
                                             char **value, bl_error_t *err);

// Formats a number for the dump and for messages. Reading the text gives the same bits.
#define BL__REAL_TEXT 32
const char *bl__real_format(double value, char text[BL__REAL_TEXT]);

// Writes 'text' truncated to a length that suits a message, with control characters shown as '?'.
#define BL__QUOTE_TEXT 64
const char *bl__quote(const char *text, size_t length, char quoted[BL__QUOTE_TEXT]);

// Formats the range of a row: "[1, 4096]", "(0, 1)", ">= 1"; "" if unbounded.
#define BL__RANGE_TEXT 80
const char *bl__range_format(const bl_option_t *row, char text[BL__RANGE_TEXT]);

#endif
