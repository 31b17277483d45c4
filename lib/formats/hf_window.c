// SPDX-License-Identifier: Apache-2.0
#include "formats/hf_window.h"

#include <inttypes.h>
#include <string.h>

#define LIST "layer_types"

static const char *const kinds[] = {"full_attention", "sliding_attention"}; // indexed by whether there is a window

static bool has_window(const json_t *list, uint32_t layer) {
  return strcmp(json_string_value(json_array_get(list, layer)), kinds[true]) == 0;
}

static bl_status_t check_list(const json_t *list, uint32_t layers, bl_error_t *err) {
  char text[BL__HF_VALUE_TEXT];
  if (!json_is_array(list)) {
    return bl_error_set(err, BL_INVALID, LIST ": must be a list or null, is %s", bl__hf_show(list, text));
  }
  if (json_array_size(list) != layers) {
    return bl_error_set(err, BL_INVALID, LIST ": must have an entry for each of %" PRIu32 " layers, has %zu", layers,
                        json_array_size(list));
  }
  for (uint32_t layer = 0; layer < layers; layer++) {
    const json_t *kind = json_array_get(list, layer);
    if (!json_is_string(kind)) {
      return bl_error_set(err, BL_INVALID, LIST ": layer %" PRIu32 ": must be a text, is %s", layer,
                          bl__hf_show(kind, text));
    }
    if (strcmp(json_string_value(kind), kinds[false]) != 0 && strcmp(json_string_value(kind), kinds[true]) != 0) {
      return bl_error_set(err, BL_UNIMPLEMENTED,
                          LIST ": layer %" PRIu32 ": %s is not supported and would change what the model computes; "
                               "supported: %s|%s",
                          layer, bl__hf_show(kind, text), kinds[false], kinds[true]);
    }
  }
  return BL_OK;
}

// Returns the first layer for which first and period contradict the list; `layers`: none.
static uint32_t first_misfit(const json_t *list, uint32_t layers, uint32_t first, uint32_t period) {
  uint32_t layer = 0;
  while (layer < layers && has_window(list, layer) == bl_window_is_of(first, period, layer)) {
    layer++;
  }
  return layer;
}

// Returns the first layer, from `from` on, that has a window (`window`) or has none (!window); `layers`: there is no
// such layer.
static uint32_t find(const json_t *list, uint32_t layers, uint32_t from, bool window) {
  while (from < layers && has_window(list, from) != window) {
    from++;
  }
  return from;
}

// Finds first and period for the list. If several periods fit, takes the shortest.
static bl_status_t fit_list(const json_t *list, bl_model_t *model, bl_error_t *err) {
  const uint32_t layers = model->layers, first = find(list, layers, 0, true), next = find(list, layers, first, false);
  model->window_first = first;
  model->window_period = 0;
  if (next == layers) {
    return BL_OK;
  }
  // Layer `next` is a multiple of the period, counted from 1, and no layer from `first` to it is.
  uint32_t misfit = 0;
  for (uint32_t period = next - first + 1; period <= next + 1; period++) {
    const uint32_t found = (next + 1) % period == 0 ? first_misfit(list, layers, first, period) : 0;
    if (found == layers) {
      model->window_period = period;
      return BL_OK;
    }
    misfit = found > misfit ? found : misfit;
  }
  return bl_error_set(err, BL_UNIMPLEMENTED,
                      LIST ": layer %" PRIu32 " is %s, which does not go on as the layers before it; supported: "
                           "sliding_attention from some layer on, in all layers or in all but every so many-th",
                      misfit, kinds[has_window(list, misfit)]);
}

// Checks the list in families whose layers are all alike. transformers does not read it there, so it must agree with
// what is computed.
static bl_status_t check_alike(const json_t *list, const bl__hf_family_t *family, const bl_model_t *model,
                               bl_error_t *err) {
  const bool window = model->window != 0;
  const uint32_t other = find(list, model->layers, 0, !window);
  if (other < model->layers) {
    return bl_error_set(err, BL_UNIMPLEMENTED,
                        LIST ": layer %" PRIu32 " is %s, which is not supported in %s; supported: %s in every layer%s",
                        other, kinds[!window], family->model_type, kinds[window],
                        window ? ", as there is a sliding_window" : "");
  }
  return BL_OK;
}

static void forget_windows(bl_model_t *model) {
  model->window = 0;
  model->window_first = 0;
  model->window_period = 0;
}

// Sets all three numbers to 0 if no layer has a window. Sets the period to 0 if all layers from window_first on have
// one.
static void normalise(bl_model_t *model) {
  if (model->window == 0 || model->window_first >= model->layers || model->window_period == 1) {
    forget_windows(model);
  } else if (model->window_period > model->layers) {
    model->window_period = 0;
  }
}

static bl_status_t read_numbers(const json_t *document, const bl__hf_family_t *family, bl_model_t *model,
                                bl_error_t *err) {
  bool used = family->windows != BL__HF_WINDOWS_NONE;
  bl_status_t status = BL_OK;
  if (family->windows == BL__HF_WINDOWS_FROM) {
    used = false;
    status = bl__hf_flag_read(document, "use_sliding_window", &used, err);
    if (status == BL_OK) {
      status = bl__hf_size_read(document, "max_window_layers", 0, &model->window_first, err);
    }
  }
  if (status == BL_OK && model->variant == BL_VARIANT_GEMMA3) {
    status = bl__hf_size_read(document, "sliding_window_pattern", 1, &model->window_period, err);
  }
  const json_t *window = json_object_get(document, "sliding_window");
  if (!used || (window != NULL && json_is_null(window))) { // absent: the default; null: no window
    model->window = 0;
  } else if (status == BL_OK) {
    status = bl__hf_size_read(document, "sliding_window", 1, &model->window, err);
  }
  return status;
}

bl_status_t bl__hf_window_read(const json_t *document, const bl__hf_family_t *family, bl_model_t *model,
                               bl_error_t *err) {
  bl_status_t status = read_numbers(document, family, model, err);
  if (status != BL_OK) {
    return status;
  }
  const json_t *list = json_object_get(document, LIST);
  const bool listed = !bl__hf_absent(list);
  if (listed && (status = check_list(list, model->layers, err)) != BL_OK) {
    return status;
  }
  if (family->windows == BL__HF_WINDOWS_NONE || family->windows == BL__HF_WINDOWS_ALL) {
    return listed ? check_alike(list, family, model, err) : BL_OK;
  }
  if (listed && (status = fit_list(list, model, err)) != BL_OK) {
    return status;
  }
  const bool wanted = listed ? model->window_first < model->layers : family->windows == BL__HF_WINDOWS_BETWEEN;
  if (wanted && model->window == 0) {
    return bl_error_set(err, BL_INVALID,
                        "sliding_window: layer %" PRIu32 " is sliding_attention, and there is no window%s",
                        listed ? model->window_first : 0,
                        family->windows == BL__HF_WINDOWS_FROM ? " (use_sliding_window, sliding_window)" : "");
  }
  normalise(model);
  return BL_OK;
}

static json_t *describe_layers(const bl_model_t *model) {
  json_t *list = json_array();
  int failed = 0;
  for (uint32_t layer = 0; layer < model->layers && failed == 0; layer++) {
    const bool window = model->window != 0 && bl_window_is_of(model->window_first, model->window_period, layer);
    failed = json_array_append_new(list, json_string(kinds[window]));
  }
  if (failed != 0) {
    json_decref(list);
    return NULL;
  }
  return list;
}

int bl__hf_window_write(json_t *document, const bl__hf_family_t *family, const bl_model_t *model) {
  const bool any = model->window != 0;
  int failed = 0;
  switch (family->windows) {
  case BL__HF_WINDOWS_NONE:
    return 0;
  case BL__HF_WINDOWS_ALL:
    return json_object_set_new(document, "sliding_window", any ? json_integer(model->window) : json_null());
  case BL__HF_WINDOWS_FROM:
    failed |= json_object_set_new(document, "use_sliding_window", json_boolean(any));
    failed |= json_object_set_new(document, "sliding_window", any ? json_integer(model->window) : json_null());
    failed |=
        json_object_set_new(document, "max_window_layers", json_integer(any ? model->window_first : model->layers));
    break;
  case BL__HF_WINDOWS_BETWEEN: // transformers creates the mask of a window even if no layer uses it
    failed |=
        json_object_set_new(document, "sliding_window", json_integer(any ? model->window : family->preset.window));
    if (model->variant == BL_VARIANT_GEMMA3 && any && model->window_first == 0 && model->window_period != 0) {
      failed |= json_object_set_new(document, "sliding_window_pattern", json_integer(model->window_period));
    }
    break;
  }
  return failed | json_object_set_new(document, LIST, describe_layers(model));
}
