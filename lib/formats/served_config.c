// SPDX-License-Identifier: Apache-2.0
#include "formats/served_config.h"

#include <jansson.h>

#include <stdbool.h>
#include <string.h>

static bool is_id(const json_t *value) {
  return json_is_integer(value) && json_integer_value(value) >= 0;
}

static bool are_ids(const json_t *value) {
  for (size_t i = 0; i < json_array_size(value); i++) {
    if (!is_id(json_array_get(value, i))) {
      return false;
    }
  }
  return is_id(value) || json_is_null(value) || json_array_size(value) > 0;
}

// Rotary models have no position table: the number is the length that the model was made for, and shorter sequences are
// still valid.
static bool keep_positions(const json_t *source, json_t *target) {
  static const char key[] = "max_position_embeddings";
  json_t *whole = json_object_get(source, key), *trained = json_object_get(target, key);
  return !is_id(whole) || trained == NULL || json_integer_value(whole) <= json_integer_value(trained) ||
         json_object_set(target, key, whole) == 0;
}

static json_t *parse(const char *bytes, size_t size_bytes, bl_error_t *err) {
  json_error_t fault;
  json_t *object = json_loadb(bytes, size_bytes, JSON_DECODE_ANY, &fault);
  if (!json_is_object(object)) {
    (void)bl_error_set(err, BL_INVALID, "config.json: %s", object == NULL ? fault.text : "it is no object");
    json_decref(object);
    return NULL;
  }
  return object;
}

bl_status_t bl_served_config_keep(const char *from, size_t from_bytes, const char *to, size_t to_bytes, char **text,
                                  size_t *text_bytes, bl_error_t *err) {
  static const char *const keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
  json_t *source = parse(from, from_bytes, err), *target = source != NULL ? parse(to, to_bytes, err) : NULL;
  if (target == NULL) {
    json_decref(source);
    return BL_INVALID;
  }
  bool kept = keep_positions(source, target);
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
    json_t *value = json_object_get(source, keys[i]);
    kept = kept && (value == NULL || !are_ids(value) || json_object_set(target, keys[i], value) == 0);
  }
  char *made = kept ? json_dumps(target, JSON_INDENT(2)) : NULL;
  json_decref(source);
  json_decref(target);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a config.json");
  }
  *text = made;
  *text_bytes = strlen(made);
  return BL_OK;
}
