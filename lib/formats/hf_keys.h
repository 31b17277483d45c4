// SPDX-License-Identifier: Apache-2.0
// Private to lib/formats: readers of config.json values by key, one for each type. If the key is absent or null, *value
// is unchanged. BL_INVALID names the key, its value and what was expected.
//
// Thread: pure functions.
#ifndef BALLAST_FORMATS_HF_KEYS_H
#define BALLAST_FORMATS_HF_KEYS_H

#include "base/error.h"
#include "base/status.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdint.h>

#define BL__HF_SIZE_MAX   INT32_MAX
#define BL__HF_VALUE_TEXT 80

static inline bool bl__hf_absent(const json_t *value) {
  return value == NULL || json_is_null(value);
}

// Writes the value as JSON to `text`, or "something long" if it does not fit, and returns `text`.
const char *bl__hf_show(const json_t *value, char text[BL__HF_VALUE_TEXT]);
// True if `text` is one of `texts`, which are separated by '|'.
bool bl__hf_among(const char *texts, const char *text);

// Reads a whole number from `least` to BL__HF_SIZE_MAX.
BL_MUST_USE bl_status_t bl__hf_size_read(const json_t *object, const char *key, uint32_t least, uint32_t *value,
                                         bl_error_t *err);
// Reads a finite number above 0.
BL_MUST_USE bl_status_t bl__hf_number_read(const json_t *object, const char *key, double *value, bl_error_t *err);
BL_MUST_USE bl_status_t bl__hf_flag_read(const json_t *object, const char *key, bool *value, bl_error_t *err);

#endif
