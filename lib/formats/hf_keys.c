// SPDX-License-Identifier: Apache-2.0
#include "formats/hf_keys.h"

#include <math.h>
#include <string.h>

const char *bl__hf_show(const json_t *value, char text[BL__HF_VALUE_TEXT]) {
  size_t bytes = json_dumpb(value, text, BL__HF_VALUE_TEXT - 1, JSON_ENCODE_ANY | JSON_COMPACT);
  if (bytes == 0 || bytes > BL__HF_VALUE_TEXT - 1) {
    return "something long";
  }
  text[bytes] = '\0';
  return text;
}

bool bl__hf_among(const char *texts, const char *text) {
  size_t length = strlen(text);
  for (const char *at = texts; length > 0 && at != NULL; at = strchr(at, '|'), at = at != NULL ? at + 1 : NULL) {
    if (strncmp(at, text, length) == 0 && (at[length] == '|' || at[length] == '\0')) {
      return true;
    }
  }
  return false;
}

bl_status_t bl__hf_size_read(const json_t *object, const char *key, uint32_t least, uint32_t *value, bl_error_t *err) {
  const json_t *found = json_object_get(object, key);
  if (bl__hf_absent(found)) {
    return BL_OK;
  }
  if (!json_is_integer(found) || json_integer_value(found) < least || json_integer_value(found) > BL__HF_SIZE_MAX) {
    char text[BL__HF_VALUE_TEXT];
    return bl_error_set(err, BL_INVALID, "%s: must be a whole number from %u to %d, is %s", key, (unsigned)least,
                        BL__HF_SIZE_MAX, bl__hf_show(found, text));
  }
  *value = (uint32_t)json_integer_value(found);
  return BL_OK;
}

bl_status_t bl__hf_number_read(const json_t *object, const char *key, double *value, bl_error_t *err) {
  const json_t *found = json_object_get(object, key);
  if (bl__hf_absent(found)) {
    return BL_OK;
  }
  const double number = json_number_value(found);
  if (!json_is_number(found) || !isfinite(number) || number <= 0) {
    char text[BL__HF_VALUE_TEXT];
    return bl_error_set(err, BL_INVALID, "%s: must be a number above 0, is %s", key, bl__hf_show(found, text));
  }
  *value = number;
  return BL_OK;
}

bl_status_t bl__hf_flag_read(const json_t *object, const char *key, bool *value, bl_error_t *err) {
  const json_t *found = json_object_get(object, key);
  if (bl__hf_absent(found)) {
    return BL_OK;
  }
  if (!json_is_boolean(found)) {
    char text[BL__HF_VALUE_TEXT];
    return bl_error_set(err, BL_INVALID, "%s: must be true or false, is %s", key, bl__hf_show(found, text));
  }
  *value = json_is_true(found);
  return BL_OK;
}
