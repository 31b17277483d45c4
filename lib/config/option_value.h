// SPDX-License-Identifier: Apache-2.0
// Private to lib/config: storage of one value of an option table, in the C field that its row describes.
// Thread: pure functions; the struct of values belongs to the caller.
#ifndef BALLAST_CONFIG_OPTION_VALUE_H
#define BALLAST_CONFIG_OPTION_VALUE_H

#include "config/option_scalar.h"

static inline void *bl__option_field(const bl_option_t *row, void *values) {
  return (char *)values + row->offset;
}

static inline const void *bl__option_value(const bl_option_t *row, const void *values) {
  return (const char *)values + row->offset;
}

bool bl__option_is_list(const bl_option_t *row);
bool bl__option_is_present(const bl_option_t *row, const void *values);

// Makes the value absent without reading the old one.
void bl__option_zero(const bl_option_t *row, void *values);
// Frees what the value owns and makes it absent.
void bl__option_clear(const bl_option_t *row, void *values);
// Clears the value, then sets the row's default.
BL_MUST_USE bl_status_t bl__option_preset(const bl_option_t *row, void *values, bl_error_t *err);
// Replaces the value. A list becomes a list of one entry. On BL_INVALID `err` says what was expected and what was
// found, without the key.
BL_MUST_USE bl_status_t bl__option_assign(const bl_option_t *row, void *values, const bl__scalar_t *scalar,
                                          const char *folder, bl_error_t *err);
// Adds one entry to a list.
BL_MUST_USE bl_status_t bl__option_append(const bl_option_t *row, void *values, const bl__scalar_t *scalar,
                                          const char *folder, bl_error_t *err);

#endif
