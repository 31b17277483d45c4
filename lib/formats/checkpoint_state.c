// SPDX-License-Identifier: Apache-2.0
#include "formats/checkpoint_state.h"

#include "base/hash.h"
#include "formats/file_name.h"

#include <jansson.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT        "ballast-checkpoint"
#define CHECKSUM_TEXT 17 // 16 hexadecimal digits
#define NAME_SHOWN    160

uint64_t bl_checkpoint_checksum(const uint8_t *bytes, uint64_t size_bytes, uint64_t tile_bytes) {
  const uint64_t tile = tile_bytes == 0 ? size_bytes : tile_bytes;
  uint64_t sum = 0, number = 0;
  for (uint64_t at = 0; at < size_bytes || number == 0; at += tile, number++) {
    sum += bl_hash64(bytes + at, size_bytes - at < tile ? size_bytes - at : tile, number);
  }
  return sum;
}

// ---- reading -------------------------------------------------------------------------------------------------------

static bool read_checksum(const json_t *value, uint64_t *checksum) {
  const char *text = json_string_value(value);
  if (text == NULL || strlen(text) != CHECKSUM_TEXT - 1 || strspn(text, "0123456789abcdef") != CHECKSUM_TEXT - 1) {
    return false;
  }
  *checksum = strtoull(text, NULL, 16);
  return true;
}

static bl_status_t read_tensors(const char *file_name, json_t *tensors, const json_t *tiles, bl_checkpoint_file_t *file,
                                bl_error_t *err) {
  file->tensors = calloc(json_object_size(tensors) + 1, sizeof *file->tensors);
  if (file->tensors == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the tensors of '%.*s'", NAME_SHOWN, file_name);
  }
  const char *name;
  json_t *value;
  json_object_foreach(tensors, name, value) {
    bl_checkpoint_tensor_t *tensor = &file->tensors[file->tensor_count];
    tensor->name = name;
    if (!read_checksum(value, &tensor->checksum)) {
      return bl_error_set(err, BL_INVALID, "files: '%.*s': tensor '%.*s' needs a checksum of 16 hexadecimal digits",
                          NAME_SHOWN, file_name, NAME_SHOWN, name);
    }
    const json_t *tile = json_object_get(tiles, name);
    if (tile != NULL && (!json_is_integer(tile) || json_integer_value(tile) < 1)) {
      return bl_error_set(err, BL_INVALID, "files: '%.*s': tiles of tensor '%.*s' need a size in bytes", NAME_SHOWN,
                          file_name, NAME_SHOWN, name);
    }
    tensor->tile_bytes = (uint64_t)json_integer_value(tile); // 0 if absent
    file->tensor_count++;
  }
  return BL_OK;
}

static bl_status_t read_file(const char *name, json_t *entry, bl_checkpoint_file_t *file, bl_error_t *err) {
  const json_t *size = json_object_get(entry, "size");
  json_t *tensors = json_object_get(entry, "tensors");
  file->name = name;
  if (!bl__file_name_is_plain(name)) {
    return bl_error_set(err, BL_INVALID, "files: '%.*s' is not the name of a file in the same folder", NAME_SHOWN,
                        name);
  }
  if (!json_is_integer(size) || json_integer_value(size) < 0) {
    return bl_error_set(err, BL_INVALID, "files: '%.*s' needs a size in bytes", NAME_SHOWN, name);
  }
  file->size_bytes = (uint64_t)json_integer_value(size);
  if (!read_checksum(json_object_get(entry, "head"), &file->head_checksum)) {
    return bl_error_set(err, BL_INVALID, "files: '%.*s' needs a head checksum of 16 hexadecimal digits", NAME_SHOWN,
                        name);
  }
  if (tensors == NULL) {
    return BL_OK;
  }
  if (!json_is_object(tensors)) {
    return bl_error_set(err, BL_INVALID, "files: '%.*s': tensors must be an object", NAME_SHOWN, name);
  }
  return read_tensors(name, tensors, json_object_get(entry, "tiles"), file, err);
}

static bl_status_t read_version(const json_t *document, bl_error_t *err) {
  const char *format = json_string_value(json_object_get(document, "format"));
  const json_t *version = json_object_get(document, "version");
  if (format == NULL || strcmp(format, FORMAT) != 0) {
    return bl_error_set(err, BL_INVALID, "not the state of a Ballast checkpoint (its format is not '" FORMAT "')");
  }
  if (!json_is_integer(version) || json_integer_value(version) < 1) {
    return bl_error_set(err, BL_INVALID, "version: must be a whole number from 1 on");
  }
  if (json_integer_value(version) > BL_CHECKPOINT_VERSION) {
    const char *writer = json_string_value(json_object_get(document, "ballast"));
    return bl_error_set(err, BL_UNIMPLEMENTED,
                        "written in format version %" JSON_INTEGER_FORMAT
                        " by Ballast %.40s; this program reads up to version %d: use a newer one",
                        json_integer_value(version), writer != NULL ? writer : "(unknown)", BL_CHECKPOINT_VERSION);
  }
  return BL_OK;
}

static bl_status_t read_state(bl_checkpoint_state_t *state, json_t *document, bl_error_t *err) {
  bl_status_t status = read_version(document, err);
  if (status != BL_OK) {
    return status;
  }
  const json_t *step = json_object_get(document, "step"), *seed = json_object_get(document, "seed");
  json_t *files = json_object_get(document, "files");
  if (!json_is_integer(step) || json_integer_value(step) < 1) {
    return bl_error_set(err, BL_INVALID, "step: must be a whole number from 1 on");
  }
  if (!json_is_integer(seed)) {
    return bl_error_set(err, BL_INVALID, "seed: must be a whole number");
  }
  if (!json_is_object(files) || json_object_size(files) == 0) {
    return bl_error_set(err, BL_INVALID, "files: must name the files of the checkpoint");
  }
  state->step = (uint64_t)json_integer_value(step);
  const json_t *tensor_parts = json_object_get(document, "tensor_parts");
  state->tensor_parts = json_is_integer(tensor_parts) ? json_integer_value(tensor_parts) : 1;
  const json_t *parts = json_object_get(document, "data_parts");
  state->seed = json_integer_value(seed);
  state->data_parts = json_is_integer(parts) ? json_integer_value(parts) : 1;
  const json_t *slices = json_object_get(document, "slices");
  state->slices = json_is_integer(slices) ? json_integer_value(slices) : 0;
  state->attention = json_string_value(json_object_get(document, "attention"));
  state->attention = state->attention != NULL ? state->attention : "";
  state->writer = json_string_value(json_object_get(document, "ballast"));
  state->writer = state->writer != NULL ? state->writer : "";
  state->files = calloc(json_object_size(files), sizeof *state->files);
  if (state->files == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the files of a checkpoint");
  }
  const char *name;
  json_t *entry;
  json_object_foreach(files, name, entry) {
    status = read_file(name, entry, &state->files[state->file_count++], err);
    if (status != BL_OK) {
      return status;
    }
  }
  return BL_OK;
}

bl_status_t bl_checkpoint_state_parse(bl_checkpoint_state_t *state, const char *bytes, size_t size_bytes,
                                      bl_error_t *err) {
  json_error_t fault;
  json_t *document = json_loadb(bytes, size_bytes, JSON_REJECT_DUPLICATES, &fault);
  if (document == NULL) {
    return bl_error_set(err, BL_INVALID, "not JSON: line %d, column %d: %s", fault.line, fault.column, fault.text);
  }
  bl_checkpoint_state_t parsed = {.document = document};
  bl_status_t status = read_state(&parsed, document, err);
  if (status != BL_OK) {
    bl_checkpoint_state_cleanup(&parsed);
    return status;
  }
  *state = parsed;
  return BL_OK;
}

void bl_checkpoint_state_cleanup(bl_checkpoint_state_t *state) {
  for (size_t i = 0; i < state->file_count; i++) {
    free(state->files[i].tensors);
  }
  free(state->files);
  json_decref(state->document);
  *state = (bl_checkpoint_state_t){0};
}

// ---- writing -------------------------------------------------------------------------------------------------------

static json_t *checksum_text(uint64_t checksum) {
  char text[CHECKSUM_TEXT];
  snprintf(text, sizeof text, "%016" PRIx64, checksum);
  return json_string(text);
}

// Returns NULL if there is no memory or a name is not UTF-8.
static json_t *describe_file(const bl_checkpoint_file_t *file) {
  json_t *entry =
      json_pack("{s:I, s:o}", "size", (json_int_t)file->size_bytes, "head", checksum_text(file->head_checksum));
  if (entry == NULL || file->tensor_count == 0) {
    return entry;
  }
  json_t *tensors = json_object(), *tiles = json_object();
  bool good = json_object_set_new(entry, "tensors", tensors) == 0;
  for (size_t i = 0; i < file->tensor_count && good; i++) {
    const bl_checkpoint_tensor_t *tensor = &file->tensors[i];
    good = json_object_set_new(tensors, tensor->name, checksum_text(tensor->checksum)) == 0 &&
           (tensor->tile_bytes == 0 ||
            json_object_set_new(tiles, tensor->name, json_integer((json_int_t)tensor->tile_bytes)) == 0);
  }
  good = good && (json_object_size(tiles) == 0 || json_object_set(entry, "tiles", tiles) == 0);
  json_decref(tiles);
  if (!good) {
    json_decref(entry);
    return NULL;
  }
  return entry;
}

static bool has_tiles(const bl_checkpoint_state_t *state) {
  for (size_t i = 0; i < state->file_count; i++) {
    for (size_t k = 0; k < state->files[i].tensor_count; k++) {
      if (state->files[i].tensors[k].tile_bytes > 0) {
        return true;
      }
    }
  }
  return false;
}

bl_status_t bl_checkpoint_state_write(const bl_checkpoint_state_t *state, char **text, size_t *text_bytes,
                                      bl_error_t *err) {
  json_t *files = json_object();
  json_t *document = json_pack("{s:s, s:i, s:s, s:I, s:I, s:I, s:I, s:s, s:o}", "format", FORMAT, "version",
                               has_tiles(state) ? 2 : 1, "ballast", state->writer, "step", (json_int_t)state->step,
                               "seed", (json_int_t)state->seed, "data_parts", (json_int_t)state->data_parts, "slices",
                               (json_int_t)state->slices, "attention", state->attention, "files", files);
  bool good = document != NULL &&
              (state->tensor_parts <= 1 ||
               json_object_set_new(document, "tensor_parts", json_integer((json_int_t)state->tensor_parts)) == 0);
  for (size_t i = 0; i < state->file_count && good; i++) {
    good = json_object_set_new(files, state->files[i].name, describe_file(&state->files[i])) == 0;
  }
  char *made = good ? json_dumps(document, JSON_INDENT(1)) : NULL;
  json_decref(document);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the state of a checkpoint, or a name in it is not UTF-8");
  }
  *text = made;
  *text_bytes = strlen(made);
  return BL_OK;
}
