// SPDX-License-Identifier: Apache-2.0
#include "job/weights.h"

#include "formats/shard_index.h"
#include "sys/file.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SINGLE_FILE       "model.safetensors"
#define INDEX_FILE        "model.safetensors.index.json"
#define INDEX_LIMIT_BYTES (64u << 20) // the largest public models have indexes of a few MiB

static bl_status_t open_file(bl_weights_t *weights, const char *name, bl_error_t *err) {
  char path[PATH_MAX];
  if (bl_path_join(path, sizeof path, weights->folder, name) != BL_OK) {
    return bl_error_set(err, BL_INVALID, "%s/%s: the path is too long", weights->folder, name);
  }
  bl_weights_file_t file = {.path = strdup(path)};
  if (file.path == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to open %s", path);
  }
  bl_status_t status = bl_file_map_open(&file.map, path, err);
  if (status == BL_OK) {
    status = bl_safetensors_parse(&file.index, file.map.bytes, file.map.size_bytes, err);
    if (status != BL_OK) {
      bl_error_prefix(err, "%s", path);
      bl_file_map_close(&file.map);
    }
  }
  if (status != BL_OK) {
    free(file.path);
    return status;
  }
  weights->files[weights->file_count++] = file;
  return BL_OK;
}

static bl_status_t reserve_files(bl_weights_t *weights, size_t count, bl_error_t *err) {
  weights->files = calloc(count, sizeof *weights->files);
  return weights->files != NULL ? BL_OK : bl_error_set(err, BL_EXHAUSTED, "no memory for %zu weight files", count);
}

// Opens every shard and checks that each has the tensors that the index assigns to it.
static bl_status_t open_shards(bl_weights_t *weights, const bl_shard_index_t *index, bl_error_t *err) {
  bl_status_t status = reserve_files(weights, index->file_count, err);
  for (size_t i = 0; i < index->file_count && status == BL_OK; i++) {
    status = open_file(weights, index->files[i], err);
    if (status == BL_NOT_FOUND) {
      bl_error_prefix(err, "%s/" INDEX_FILE " names a shard that is not there", weights->folder);
    }
  }
  for (size_t i = 0; i < index->count && status == BL_OK; i++) {
    const bl_shard_entry_t *entry = &index->entries[i];
    const bl_weights_file_t *file = &weights->files[entry->file];
    if (bl_safetensors_find(&file->index, entry->tensor) == NULL) {
      status = bl_error_set(err, BL_INVALID, "%s: tensor '%s' is not in it, but " INDEX_FILE " says so", file->path,
                            entry->tensor);
    }
  }
  return status;
}

static bl_status_t open_index(bl_weights_t *weights, bl_error_t *err) {
  char path[PATH_MAX];
  if (bl_path_join(path, sizeof path, weights->folder, INDEX_FILE) != BL_OK) {
    return bl_error_set(err, BL_INVALID, "%s/" INDEX_FILE ": the path is too long", weights->folder);
  }
  char *bytes;
  size_t size_bytes;
  bl_status_t status = bl_file_read(path, INDEX_LIMIT_BYTES, &bytes, &size_bytes, err);
  if (status == BL_NOT_FOUND) {
    return bl_error_set(err, BL_NOT_FOUND, "%s: has neither " SINGLE_FILE " nor " INDEX_FILE, weights->folder);
  }
  if (status != BL_OK) {
    return status;
  }
  bl_shard_index_t index;
  status = bl_shard_index_parse(&index, bytes, size_bytes, err);
  free(bytes);
  if (status != BL_OK) {
    bl_error_prefix(err, "%s", path);
    return status;
  }
  status = open_shards(weights, &index, err);
  bl_shard_index_cleanup(&index);
  return status;
}

bl_status_t bl_weights_open(bl_weights_t *weights, const char *folder, bl_error_t *err) {
  bl_weights_t opened = {.folder = strdup(folder)};
  if (opened.folder == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to open %s", folder);
  }
  bl_status_t status = reserve_files(&opened, 1, err);
  if (status == BL_OK) {
    status = open_file(&opened, SINGLE_FILE, err);
  }
  if (status == BL_NOT_FOUND) {
    free(opened.files);
    opened.files = NULL;
    status = open_index(&opened, err);
  }
  if (status != BL_OK) {
    bl_weights_close(&opened);
    return status;
  }
  *weights = opened;
  return BL_OK;
}

void bl_weights_close(bl_weights_t *weights) {
  for (size_t i = 0; i < weights->file_count; i++) {
    bl_safetensors_cleanup(&weights->files[i].index);
    bl_file_map_close(&weights->files[i].map);
    free(weights->files[i].path);
  }
  free(weights->files);
  free(weights->folder);
  *weights = (bl_weights_t){0};
}

typedef struct {
  const bl_weights_file_t *file;
  const bl_tensor_entry_t *entry; // NULL: not found
} place_t;

static place_t find_name(const bl_weights_t *weights, const char *name) {
  for (size_t i = 0; i < weights->file_count; i++) {
    const bl_tensor_entry_t *entry = bl_safetensors_find(&weights->files[i].index, name);
    if (entry != NULL) {
      return (place_t){&weights->files[i], entry};
    }
  }
  return (place_t){0};
}

// Looks for the full name, or for the name without the prefix that base classes (GPT2Model, LlamaModel) omit.
static place_t find_parameter(const bl_weights_t *weights, const char *name) {
  static const char *const prefixes[] = {"transformer.", "model."};
  place_t place = find_name(weights, name);
  for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0] && place.entry == NULL; i++) {
    size_t length = strlen(prefixes[i]);
    if (strncmp(name, prefixes[i], length) == 0) {
      place = find_name(weights, name + length);
    }
  }
  return place;
}

static bool shape_fits(const bl_tensor_entry_t *entry, const bl_parameter_t *parameter) {
  if (entry->rank != parameter->rank) {
    return false;
  }
  for (unsigned i = 0; i < entry->rank; i++) {
    if (entry->shape[i] != parameter->shape[i]) {
      return false;
    }
  }
  return true;
}

static bool readable(bl_tensor_dtype_t dtype) {
  return dtype == BL_TENSOR_F32 || dtype == BL_TENSOR_F16 || dtype == BL_TENSOR_BF16;
}

static bl_status_t check_parameter(const bl_weights_t *weights, const bl_parameter_t *parameter, place_t *place,
                                   bl_error_t *err) {
  *place = find_parameter(weights, parameter->name);
  char expected[BL_SHAPE_TEXT], found[BL_SHAPE_TEXT];
  bl_shape_format(parameter->shape, parameter->rank, expected);
  if (place->entry == NULL) {
    bl_error_set(err, BL_INVALID, "%s: tensor '%s' of shape %s is missing", weights->folder, parameter->name, expected);
    return BL_INVALID;
  }
  const char *path = place->file->path;
  if (!shape_fits(place->entry, parameter)) {
    return bl_error_set(err, BL_INVALID, "%s: tensor '%s' has shape %s, the model needs %s", path, parameter->name,
                        bl_shape_format(place->entry->shape, place->entry->rank, found), expected);
  }
  if (!readable(place->entry->dtype)) {
    return bl_error_set(err, BL_UNIMPLEMENTED, "%s: tensor '%s' is stored as %s; F32, F16 and BF16 can be read", path,
                        parameter->name, bl_tensor_dtype_name(place->entry->dtype));
  }
  return BL_OK;
}

static const uint8_t *bytes_of(place_t place) {
  return place.file->map.bytes + place.entry->offset_bytes;
}

// Files of tied models may have the head as well, as a copy. transformers does not tie a head that is another matrix.
static bl_status_t check_tied_head(const bl_weights_t *weights, const bl_model_t *model, bl_error_t *err) {
  const place_t head = find_name(weights, "lm_head.weight");
  const bl_parameter_t embedding = bl_parameter_get(model, bl_parameter_index(model, BL_PARAMETER_TOKEN_EMBEDDING, 0));
  const place_t tied = find_parameter(weights, embedding.name);
  if (!model->tied || head.entry == NULL ||
      (head.entry->dtype == tied.entry->dtype && head.entry->size_bytes == tied.entry->size_bytes &&
       memcmp(bytes_of(head), bytes_of(tied), head.entry->size_bytes) == 0)) {
    return BL_OK;
  }
  return bl_error_set(err, BL_INVALID,
                      "%s: tensor 'lm_head.weight' is not '%s', which the head of a tied model is; if it is another "
                      "matrix, set tie_word_embeddings to false in config.json, else remove it",
                      head.file->path, embedding.name);
}

static bool ends_with(const char *text, const char *end) {
  const size_t length = strlen(text), end_length = strlen(end);
  return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

// Buffers that versions of transformers have saved beside the weights, and which it computes anew: frequencies of rotary
// positions, and masks of GPT-2.
static bool is_buffer(const char *name, const bl_model_t *model) {
  return model->family == BL_FAMILY_LLAMA ? ends_with(name, "rotary_emb.inv_freq")
                                          : ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias");
}

// Checks that the model has every tensor of the folder, or that it needs none. check_tied_head has seen a tied head.
static bl_status_t check_no_more(const bl_weights_t *weights, const bl_model_t *model, bl_error_t *err) {
  size_t count = 0;
  for (size_t i = 0; i < weights->file_count; i++) {
    count += weights->files[i].index.count;
  }
  for (size_t i = 0; i < weights->file_count && count != bl_parameter_count(model); i++) {
    const bl_weights_file_t *file = &weights->files[i];
    for (size_t k = 0; k < file->index.count; k++) {
      const bl_tensor_entry_t *entry = &file->index.tensors[k];
      bl_parameter_t parameter;
      char shape[BL_SHAPE_TEXT];
      if (!bl_parameter_find(model, entry->name, &parameter) && !is_buffer(entry->name, model) &&
          !(model->tied && strcmp(entry->name, "lm_head.weight") == 0)) {
        return bl_error_set(err, BL_INVALID,
                            "%s: tensor '%s' of shape %s is none of the %" PRIu32
                            "-layer model that config.json describes; correct config.json, or remove the tensor",
                            file->path, entry->name, bl_shape_format(entry->shape, entry->rank, shape), model->layers);
      }
    }
  }
  return BL_OK;
}

bl_status_t bl_weights_check(const bl_weights_t *weights, const bl_model_t *model, bl_error_t *err) {
  uint32_t count = bl_parameter_count(model);
  for (uint32_t i = 0; i < count; i++) {
    bl_parameter_t parameter = bl_parameter_get(model, i);
    place_t place;
    bl_status_t status = check_parameter(weights, &parameter, &place, err);
    if (status != BL_OK) {
      return status;
    }
  }
  bl_status_t status = check_tied_head(weights, model, err);
  return status == BL_OK ? check_no_more(weights, model, err) : status;
}

static float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Converts IEEE binary16 to binary32, exactly.
static float from_half(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31, fraction = half & 1023;
  if (exponent == 31) {
    return from_bits(sign | 0x7F800000u | fraction << 13);
  }
  if (exponent == 0) { // zero or subnormal: fraction * 2^-24
    float magnitude = (float)fraction * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

static uint16_t load_u16(const uint8_t *bytes) {
  return (uint16_t)(bytes[0] | bytes[1] << 8);
}

static uint32_t load_u32(const uint8_t *bytes) {
  return load_u16(bytes) | (uint32_t)load_u16(bytes + 2) << 16;
}

// `bytes` need not be aligned: a header may have any length.
static void convert(const uint8_t *bytes, bl_tensor_dtype_t dtype, uint64_t count, float *values) {
  if (dtype == BL_TENSOR_F32) {
    for (uint64_t i = 0; i < count; i++) {
      values[i] = from_bits(load_u32(bytes + 4 * i));
    }
  } else if (dtype == BL_TENSOR_F16) {
    for (uint64_t i = 0; i < count; i++) {
      values[i] = from_half(load_u16(bytes + 2 * i));
    }
  } else {
    for (uint64_t i = 0; i < count; i++) {
      values[i] = from_bits((uint32_t)load_u16(bytes + 2 * i) << 16);
    }
  }
}

bl_status_t bl_weights_read(const bl_weights_t *weights, const bl_parameter_t *parameter, uint64_t first,
                            uint64_t count, float *values, bl_error_t *err) {
  place_t place;
  bl_status_t status = check_parameter(weights, parameter, &place, err);
  if (status != BL_OK) {
    return status;
  }
  uint64_t element_bytes = bl_tensor_dtype_bits(place.entry->dtype) / 8;
  convert(bytes_of(place) + first * element_bytes, place.entry->dtype, count, values);
  for (uint64_t i = 0; i < count; i++) {
    if (!isfinite(values[i])) {
      return bl_error_set(err, BL_INVALID, "%s: tensor '%s': element %" PRIu64 " is not finite", place.file->path,
                          parameter->name, first + i);
    }
  }
  return BL_OK;
}
