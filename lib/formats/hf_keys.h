// SPDX-License-Identifier: Apache-2.0
// Values of a config.json by key, each of one type. Shared inside lib/formats.
// What is absent or null leaves *value as it is. BL_INVALID names the key, what it holds and what was expected.
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

// The value as JSON for a message, "something long" where it does not fit.
const char *bl__hf_show(const json_t *value, char text[BL__HF_VALUE_TEXT]);
// Whether `text` is one of `texts`, which '|' separates.
bool bl__hf_among(const char *texts, const char *text);

// A whole number from `least` to BL__HF_SIZE_MAX.
BL_MUST_USE bl_status_t bl__hf_size_read(const json_t *object, const char *key, uint32_t least, uint32_t *value,
                                         bl_error_t *err);
// A finite number above 0.
BL_MUST_USE bl_status_t bl__hf_number_read(const json_t *object, const char *key, double *value, bl_error_t *err);
BL_MUST_USE bl_status_t bl__hf_flag_read(const json_t *object, const char *key, bool *value, bl_error_t *err);

#endif
