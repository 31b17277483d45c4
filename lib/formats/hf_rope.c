// SPDX-License-Identifier: Apache-2.0
#include "formats/hf_rope.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define WHOLE_MAX 0x1p53

static const char *const kinds[] = {[BL_ROPE_DEFAULT] = "default",
                                    [BL_ROPE_LINEAR] = "linear",
                                    [BL_ROPE_LLAMA3] = "llama3",
                                    [BL_ROPE_LONG] = "longrope"};

static const char original_key[] = "original_max_position_embeddings";

// A rotation while it is read. The share of a head that rotates can be converted to dimensions only at the end.
typedef struct {
  const bl__hf_family_t *family;
  bl_rope_t *rope;
  double share;
} rotation_t;

static bl_status_t read_kind(const json_t *object, const rotation_t *rotation, bl_error_t *err) {
  static const char *const keys[] = {"rope_type", "type"}; // transformers 4 once wrote "type"
  for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
    const json_t *value = json_object_get(object, keys[k]);
    if (bl__hf_absent(value)) {
      continue;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0] && json_is_string(value); i++) {
      if (strcmp(json_string_value(value), kinds[i]) == 0 && bl__hf_among(rotation->family->rotations, kinds[i])) {
        rotation->rope->kind = (bl_rope_kind_t)i;
        return BL_OK;
      }
    }
    char text[BL__HF_VALUE_TEXT];
    return bl_error_set(err, BL_UNIMPLEMENTED,
                        "%s: %s is not supported and would change what the model computes; supported: %s", keys[k],
                        bl__hf_show(value, text), rotation->family->rotations);
  }
  return BL_OK;
}

static bl_status_t read_numbers(const json_t *object, rotation_t *rotation, bl_error_t *err) {
  bl_rope_t *rope = rotation->rope;
  const struct {
    const char *key;
    double *number;
    bool wanted;
  } numbers[] = {{"factor", &rope->factor, rope->kind == BL_ROPE_LINEAR || rope->kind == BL_ROPE_LLAMA3},
                 {"low_freq_factor", &rope->low_frequency, rope->kind == BL_ROPE_LLAMA3},
                 {"high_freq_factor", &rope->high_frequency, rope->kind == BL_ROPE_LLAMA3},
                 {original_key, &rope->original, rope->kind == BL_ROPE_LLAMA3}};
  bl_status_t status = bl__hf_number_read(object, "rope_theta", &rope->theta, err);
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && status == BL_OK; i++) {
    if (numbers[i].wanted && bl__hf_absent(json_object_get(object, numbers[i].key))) {
      status = bl_error_set(err, BL_INVALID, "%s: missing", numbers[i].key);
    } else if (numbers[i].wanted) {
      status = bl__hf_number_read(object, numbers[i].key, numbers[i].number, err);
    }
  }
  return status;
}

// Reads one list of numbers. Missing entries stay 0, which bl_rope_fault detects.
static bl_status_t read_divisors(const json_t *object, const char *key, float divisors[BL_ROPE_DIVISORS],
                                 bl_error_t *err) {
  const json_t *list = json_object_get(object, key);
  char text[BL__HF_VALUE_TEXT];
  if (!json_is_array(list) || json_array_size(list) > BL_ROPE_DIVISORS) {
    return bl_error_set(err, BL_INVALID, "%s: must be a list of at most %d numbers, is %s", key, BL_ROPE_DIVISORS,
                        list == NULL ? "missing" : bl__hf_show(list, text));
  }
  for (size_t i = 0; i < json_array_size(list); i++) {
    divisors[i] = (float)json_number_value(json_array_get(list, i));
  }
  return BL_OK;
}

// Versions of transformers take the one beside the rotation or the one in it. `beside`: the former, or its default.
static bl_status_t check_original(const json_t *object, double beside, bl_error_t *err) {
  double inside = beside;
  bl_status_t status = bl__hf_number_read(object, original_key, &inside, err);
  if (status == BL_OK && inside != beside) {
    status = bl_error_set(err, BL_INVALID,
                          "%s: is %g, and %g beside it, which transformers takes instead; give the same number twice",
                          original_key, inside, beside);
  }
  return status;
}

// The ratio of two sequence lengths determines the scale of sines and cosines (bl_rope_scale). Phi 3 has both outside of
// the rotation; a `factor` in it that differs from the ratio is in no published file, and transformers 4 ignores it.
static bl_status_t read_long(const json_t *document, const json_t *object, const bl_model_t *model, bl_rope_t *rope,
                             bl_error_t *err) {
  static const char larger[] = "attention_factor";
  char text[BL__HF_VALUE_TEXT];
  rope->original = 4096; // the default of transformers
  bl_status_t status = bl__hf_number_read(document, original_key, &rope->original, err);
  if (status == BL_OK) {
    status = check_original(object, rope->original, err);
  }
  double factor = rope->factor = fmax(1, model->seq / rope->original);
  if (status == BL_OK) {
    status = bl__hf_number_read(object, "factor", &factor, err);
  }
  if (status == BL_OK && fabs(fmax(1, factor) - rope->factor) > 1e-9 * rope->factor) {
    status = bl_error_set(err, BL_UNIMPLEMENTED,
                          "factor: %g is not supported and would change what the model computes; supported: "
                          "max_position_embeddings / %s, which is %g",
                          factor, original_key, rope->factor);
  }
  if (status == BL_OK && !bl__hf_absent(json_object_get(object, larger))) {
    status = bl_error_set(err, BL_UNIMPLEMENTED,
                          "%s: %s is not supported and would change what the model computes; supported: null", larger,
                          bl__hf_show(json_object_get(object, larger), text));
  }
  if (status == BL_OK) {
    status = read_divisors(object, "short_factor", rope->divisors[false], err);
  }
  return status == BL_OK ? read_divisors(object, "long_factor", rope->divisors[true], err) : status;
}

static bl_status_t read_share(const json_t *object, rotation_t *rotation, bl_error_t *err) {
  static const char key[] = "partial_rotary_factor";
  double share = rotation->share;
  bl_status_t status = bl__hf_number_read(object, key, &share, err);
  if (status != BL_OK) {
    return status;
  }
  char text[BL__HF_VALUE_TEXT];
  if (share > 1) {
    return bl_error_set(err, BL_INVALID, "%s: must be at most 1, is %s", key,
                        bl__hf_show(json_object_get(object, key), text));
  }
  if (share != 1 && !rotation->family->rotates_partly) {
    return bl_error_set(err, BL_UNIMPLEMENTED,
                        "%s: %s is not supported and would change what the model computes; supported: 1.0", key,
                        bl__hf_show(json_object_get(object, key), text));
  }
  rotation->share = share;
  return BL_OK;
}

// Reads one object with a rotation.
static bl_status_t read_object(const json_t *owner, const char *key, const bl_model_t *model, rotation_t *rotation,
                               bl_error_t *err) {
  json_t *object = json_object_get(owner, key);
  if (bl__hf_absent(object)) {
    return BL_OK;
  }
  char text[BL__HF_VALUE_TEXT];
  if (!json_is_object(object)) {
    return bl_error_set(err, BL_INVALID, "%s: must be an object or null, is %s", key, bl__hf_show(object, text));
  }
  const char *name;
  json_t *value;
  json_object_foreach(object, name, value) {
    if (json_is_object(value)) {
      return bl_error_set(err, BL_UNIMPLEMENTED, "%s.%.60s: a rotation per kind of layer is not supported in %s", key,
                          name, rotation->family->model_type);
    }
  }
  bl_status_t status = read_share(object, rotation, err);
  if (status == BL_OK) {
    status = read_kind(object, rotation, err);
  }
  if (status == BL_OK) {
    status = read_numbers(object, rotation, err);
  }
  if (status == BL_OK && rotation->rope->kind == BL_ROPE_LLAMA3) {
    double beside = rotation->rope->original;
    status = bl__hf_number_read(owner, original_key, &beside, err);
    status = status == BL_OK ? check_original(object, beside, err) : status;
  }
  if (status == BL_OK && rotation->rope->kind == BL_ROPE_LONG) {
    status = read_long(owner, object, model, rotation->rope, err);
  }
  const bool known = rotation->rope->kind != BL_ROPE_LONG; // the number of pairs that rotate is not known yet
  const char *fault = status == BL_OK && known ? bl_rope_fault(rotation->rope, model->head_dim) : NULL;
  if (fault != NULL) {
    status = bl_error_set(err, BL_INVALID, "%s", fault);
  }
  if (status != BL_OK) {
    bl_error_prefix(err, "%s", key);
  }
  return status;
}

static bl_status_t set_dims(const rotation_t *rotation, uint32_t head_dim, bl_error_t *err) {
  const uint32_t dims = (uint32_t)(head_dim * rotation->share); // rounds as transformers does
  rotation->rope->dims = dims == head_dim ? 0 : dims;
  const char *fault = dims % 2 == 0 ? bl_rope_fault(rotation->rope, head_dim) : NULL;
  if (dims > 0 && fault != NULL) {
    return bl_error_set(err, BL_INVALID, "%s", fault);
  }
  if (dims == 0 || dims % 2 != 0) {
    return bl_error_set(err, BL_INVALID,
                        "partial_rotary_factor: %g of a head of %" PRIu32 " are %" PRIu32
                        " dimensions; an even number must rotate",
                        rotation->share, head_dim, dims);
  }
  return BL_OK;
}

static bl_status_t read_one(const json_t *document, const bl__hf_family_t *family, bl_model_t *model, bl_error_t *err) {
  rotation_t rotation = {family, &model->rope, 1.0};
  bl_status_t status = bl__hf_number_read(document, "rope_theta", &model->rope.theta, err);
  if (status == BL_OK) {
    status = read_share(document, &rotation, err);
  }
  if (status == BL_OK) {
    const json_t *old = json_object_get(document, "rope_scaling");
    const bool holds = !bl__hf_absent(old) && !(json_is_object(old) && json_object_size(old) == 0);
    status = read_object(document, holds ? "rope_scaling" : "rope_parameters", model, &rotation, err);
  }
  return status != BL_OK ? status : set_dims(&rotation, model->head_dim, err);
}

// For gemma3: rope_scaling applies to layers without a window.
static bl_status_t read_two(const json_t *document, const bl__hf_family_t *family, bl_model_t *model, bl_error_t *err) {
  rotation_t whole = {family, &model->rope, 1.0}, window = {family, &model->window_rope, 1.0};
  bl_status_t status = bl__hf_number_read(document, "rope_theta", &model->rope.theta, err);
  if (status == BL_OK) {
    status = bl__hf_number_read(document, "rope_local_base_freq", &model->window_rope.theta, err);
  }
  static const char key[] = "rope_parameters";
  json_t *both = json_object_get(document, key), *value;
  if (status == BL_OK && !bl__hf_absent(both) && !json_is_object(both)) {
    char text[BL__HF_VALUE_TEXT];
    return bl_error_set(err, BL_INVALID, "%s: must be an object or null, is %s", key, bl__hf_show(both, text));
  }
  const char *name;
  json_object_foreach(both, name, value) {
    if (status == BL_OK && strcmp(name, "full_attention") != 0 && strcmp(name, "sliding_attention") != 0) {
      return bl_error_set(err, BL_UNIMPLEMENTED,
                          "%s.%.60s: not supported; %s has one rotation for full_attention and one for "
                          "sliding_attention",
                          key, name, family->model_type);
    }
  }
  if (status == BL_OK && (status = read_object(both, "full_attention", model, &whole, err)) != BL_OK) {
    bl_error_prefix(err, "%s", key);
  }
  if (status == BL_OK && (status = read_object(both, "sliding_attention", model, &window, err)) != BL_OK) {
    bl_error_prefix(err, "%s", key);
  }
  return status != BL_OK ? status : read_object(document, "rope_scaling", model, &whole, err);
}

bl_status_t bl__hf_rope_read(const json_t *document, const bl__hf_family_t *family, bl_model_t *model,
                             bl_error_t *err) {
  return family->rotates_by_layer ? read_two(document, family, model, err) : read_one(document, family, model, err);
}

static json_t *whole_or_real(double number) {
  return number < WHOLE_MAX && floor(number) == number ? json_integer((json_int_t)number) : json_real(number);
}

// Returns the smallest number near dims / head_dim that gives `dims` when multiplied by head_dim and truncated.
static double share_of(uint32_t dims, uint32_t head_dim) {
  double share = (double)dims / head_dim;
  while ((uint32_t)(head_dim * share) < dims) {
    share = nextafter(share, 1);
  }
  return share;
}

static json_t *describe(const bl_rope_t *rope, uint32_t head_dim) {
  json_t *object = json_object();
  int failed = json_object_set_new(object, "rope_theta", json_real(rope->theta));
  failed |= json_object_set_new(object, "rope_type", json_string(kinds[rope->kind]));
  if (rope->dims != 0) {
    failed |= json_object_set_new(object, "partial_rotary_factor", json_real(share_of(rope->dims, head_dim)));
  }
  if (rope->kind != BL_ROPE_DEFAULT) {
    failed |= json_object_set_new(object, "factor", json_real(rope->factor));
  }
  if (rope->kind == BL_ROPE_LLAMA3) {
    failed |= json_object_set_new(object, "low_freq_factor", json_real(rope->low_frequency));
    failed |= json_object_set_new(object, "high_freq_factor", json_real(rope->high_frequency));
    failed |= json_object_set_new(object, original_key, whole_or_real(rope->original));
  }
  if (failed != 0) {
    json_decref(object);
    return NULL;
  }
  return object;
}

static json_t *describe_divisors(const float *divisors, uint64_t pairs) {
  json_t *list = json_array();
  for (uint64_t i = 0; i < pairs; i++) {
    if (json_array_append_new(list, json_real((double)divisors[i])) != 0) {
      json_decref(list);
      return NULL;
    }
  }
  return list;
}

// Writes the keys as published models have them: transformers 4 requires exactly three keys.
static int write_long(json_t *document, const bl_rope_t *rope, uint32_t head_dim) {
  const uint64_t pairs = bl_rope_dims(rope, head_dim) / 2;
  json_t *object = json_object();
  int failed = json_object_set_new(object, "type", json_string(kinds[BL_ROPE_LONG]));
  failed |= json_object_set_new(object, "short_factor", describe_divisors(rope->divisors[false], pairs));
  failed |= json_object_set_new(object, "long_factor", describe_divisors(rope->divisors[true], pairs));
  failed |= json_object_set_new(document, "rope_scaling", object);
  failed |= json_object_set_new(document, original_key, whole_or_real(rope->original));
  return failed | json_object_set_new(document, "max_position_embeddings",
                                      json_integer((json_int_t)round(rope->factor * rope->original)));
}

int bl__hf_rope_write(json_t *document, const bl__hf_family_t *family, const bl_model_t *model) {
  const bl_rope_t *rope = &model->rope;
  int failed = json_object_set_new(document, "rope_theta", json_real(rope->theta));
  if (rope->dims != 0) {
    failed |= json_object_set_new(document, "partial_rotary_factor", json_real(share_of(rope->dims, model->head_dim)));
  }
  if (rope->kind == BL_ROPE_LONG) {
    return failed | write_long(document, rope, model->head_dim);
  }
  json_t *new = describe(rope, model->head_dim);
  if (family->rotates_by_layer) {
    json_t *both = json_object();
    failed |= json_object_set_new(both, "full_attention", new);
    failed |= json_object_set_new(both, "sliding_attention", describe(&model->window_rope, model->head_dim));
    new = both;
    failed |= json_object_set_new(document, "rope_local_base_freq", json_real(model->window_rope.theta));
  }
  failed |= json_object_set_new(document, "rope_parameters", new);
  if (rope->kind != BL_ROPE_DEFAULT) { // without rope_theta, which transformers 4 does not expect there
    json_t *old = describe(rope, model->head_dim);
    (void)json_object_del(old, "rope_theta");
    failed |= json_object_set_new(document, "rope_scaling", old);
  }
  return failed;
}
