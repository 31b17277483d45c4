// SPDX-License-Identifier: Apache-2.0
#include "formats/safetensors.h"

#include "base/bytes.h"
#include "base/words.h"

#include <jansson.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define METADATA_KEY     "__metadata__"
#define NAME_IN_MESSAGES 200 // maximum bytes of a tensor name of a file that a message repeats

static const struct {
  const char *name;
  unsigned bits;
} dtypes[BL_TENSOR_DTYPE_COUNT] = {
#define X(identifier, name, bits) [identifier] = {name, bits},
    BL_TENSOR_DTYPE_TABLE(X)
#undef X
};

const char *bl_tensor_dtype_name(bl_tensor_dtype_t dtype) {
  return (unsigned)dtype < BL_TENSOR_DTYPE_COUNT ? dtypes[dtype].name : "?";
}

unsigned bl_tensor_dtype_bits(bl_tensor_dtype_t dtype) {
  return (unsigned)dtype < BL_TENSOR_DTYPE_COUNT ? dtypes[dtype].bits : 0;
}

static bool find_dtype(const char *name, bl_tensor_dtype_t *dtype) {
  for (unsigned i = 0; i < BL_TENSOR_DTYPE_COUNT; i++) {
    if (strcmp(dtypes[i].name, name) == 0) {
      *dtype = (bl_tensor_dtype_t)i;
      return true;
    }
  }
  return false;
}

const char *bl_shape_format(const uint64_t *shape, unsigned rank, char text[BL_SHAPE_TEXT]) {
  size_t used = 0;
  text[used++] = '[';
  for (unsigned i = 0; i < rank && used + 24 < BL_SHAPE_TEXT; i++) {
    used += (size_t)snprintf(text + used, BL_SHAPE_TEXT - used, "%s%" PRIu64, i > 0 ? ", " : "", shape[i]);
  }
  text[used++] = ']';
  text[used] = '\0';
  return text;
}

// Sets elements and size_bytes from dtype and shape. Returns false if they do not fit 64 bits or not a whole number of
// bytes.
static bool measure(bl_tensor_entry_t *tensor) {
  uint64_t elements = 1, bits;
  for (unsigned i = 0; i < tensor->rank; i++) {
    if (!bl_mul_u64(elements, tensor->shape[i], &elements)) {
      return false;
    }
  }
  if (!bl_mul_u64(elements, bl_tensor_dtype_bits(tensor->dtype), &bits) || bits % 8 != 0) {
    return false;
  }
  tensor->elements = elements;
  tensor->size_bytes = bits / 8;
  return true;
}

#define FAIL_TENSOR(err, name, ...)                                                                                    \
  (bl_error_set(err, BL_INVALID, __VA_ARGS__),                                                                         \
   bl_error_prefix(err, "safetensors header: tensor '%.*s'", NAME_IN_MESSAGES, name), BL_INVALID)

static bool read_count(const json_t *value, uint64_t *count) {
  if (!json_is_integer(value) || json_integer_value(value) < 0) {
    return false;
  }
  *count = (uint64_t)json_integer_value(value);
  return true;
}

static bl_status_t read_shape(bl_tensor_entry_t *tensor, const json_t *shape, bl_error_t *err) {
  if (!json_is_array(shape)) {
    return FAIL_TENSOR(err, tensor->name, "needs a \"shape\" that is a list");
  }
  if (json_array_size(shape) > BL_SAFETENSORS_MAX_RANK) {
    return FAIL_TENSOR(err, tensor->name, "has %zu dimensions; at most %d are supported", json_array_size(shape),
                       BL_SAFETENSORS_MAX_RANK);
  }
  tensor->rank = (unsigned)json_array_size(shape);
  for (unsigned i = 0; i < tensor->rank; i++) {
    if (!read_count(json_array_get(shape, i), &tensor->shape[i])) {
      return FAIL_TENSOR(err, tensor->name, "dimension %u of its shape is not a whole number >= 0", i);
    }
  }
  return BL_OK;
}

// Reads one entry of the header. `data_bytes` is the size of the file after the header.
static bl_status_t read_tensor(bl_tensor_entry_t *tensor, const json_t *value, uint64_t data_offset_bytes,
                               uint64_t data_bytes, bl_error_t *err) {
  const char *dtype = json_string_value(json_object_get(value, "dtype"));
  if (dtype == NULL || !find_dtype(dtype, &tensor->dtype)) {
    return FAIL_TENSOR(err, tensor->name, "needs a known \"dtype\", has '%.32s'", dtype != NULL ? dtype : "none");
  }
  bl_status_t status = read_shape(tensor, json_object_get(value, "shape"), err);
  if (status != BL_OK) {
    return status;
  }
  const json_t *offsets = json_object_get(value, "data_offsets");
  uint64_t begin, end;
  if (json_array_size(offsets) != 2 || !read_count(json_array_get(offsets, 0), &begin) ||
      !read_count(json_array_get(offsets, 1), &end)) {
    return FAIL_TENSOR(err, tensor->name, "needs \"data_offsets\" that are two whole numbers >= 0");
  }
  char shape[BL_SHAPE_TEXT];
  bl_shape_format(tensor->shape, tensor->rank, shape);
  if (!measure(tensor)) {
    return FAIL_TENSOR(err, tensor->name, "shape %s of %s does not have a size in bytes that fits 64 bits", shape,
                       dtype);
  }
  if (end < begin || end - begin != tensor->size_bytes) {
    return FAIL_TENSOR(err, tensor->name,
                       "data_offsets [%" PRIu64 ", %" PRIu64 "] do not hold shape %s of %s, which needs %" PRIu64
                       " bytes",
                       begin, end, shape, dtype, tensor->size_bytes);
  }
  if (end > data_bytes) {
    bl_error_set(err, BL_DATA_LOSS,
                 "truncated: tensor '%.*s' ends at byte %" PRIu64 " of the data, the file has %" PRIu64
                 " (was it copied completely?)",
                 NAME_IN_MESSAGES, tensor->name, end, data_bytes);
    return BL_DATA_LOSS;
  }
  tensor->offset_bytes = data_offset_bytes + begin;
  return BL_OK;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const bl_tensor_entry_t *)a)->name, ((const bl_tensor_entry_t *)b)->name);
}

// Orders by offset. An empty tensor precedes the tensor that starts at the same offset.
static int by_offset(const void *a, const void *b) {
  const bl_tensor_entry_t *x = a, *y = b;
  if (x->offset_bytes != y->offset_bytes) {
    return x->offset_bytes < y->offset_bytes ? -1 : 1;
  }
  return x->size_bytes < y->size_bytes ? -1 : x->size_bytes > y->size_bytes;
}

// `tensors` are sorted by offset. Each must start where the previous one ends, and the last must end where the file
// does.
static bl_status_t check_cover(const bl_safetensors_t *index, uint64_t file_bytes, bl_error_t *err) {
  uint64_t end = index->data_offset_bytes;
  for (size_t i = 0; i < index->count; i++) {
    const bl_tensor_entry_t *tensor = &index->tensors[i];
    if (tensor->offset_bytes < end) {
      return FAIL_TENSOR(err, tensor->name, "its data overlaps that of tensor '%.*s'", NAME_IN_MESSAGES,
                         index->tensors[i - 1].name);
    }
    if (tensor->offset_bytes > end) {
      return FAIL_TENSOR(err, tensor->name, "starts %" PRIu64 " byte%s after the data before it ends",
                         tensor->offset_bytes - end, bl_plural(tensor->offset_bytes - end));
    }
    end += tensor->size_bytes;
  }
  if (end != file_bytes) {
    return bl_error_set(err, BL_INVALID, "safetensors: %" PRIu64 " byte%s after the last tensor", file_bytes - end,
                        bl_plural(file_bytes - end));
  }
  return BL_OK;
}

// Allocates one block for all names, and an entry for each.
static bl_status_t allocate(bl_safetensors_t *index, json_t *header, bl_error_t *err) {
  size_t names_bytes = 1;
  const char *name;
  json_t *value;
  json_object_foreach(header, name, value) {
    names_bytes += strlen(name) + 1;
  }
  index->tensors = calloc(json_object_size(header) + 1, sizeof *index->tensors);
  index->names = malloc(names_bytes);
  if (index->tensors == NULL || index->names == NULL) {
    bl_safetensors_cleanup(index);
    bl_error_set(err, BL_EXHAUSTED, "no memory for the index of %zu tensors", json_object_size(header));
    return BL_EXHAUSTED;
  }
  return BL_OK;
}

static bl_status_t read_metadata(json_t *value, bl_error_t *err) {
  const char *key;
  json_t *text;
  if (!json_is_object(value)) {
    return bl_error_set(err, BL_INVALID, "safetensors header: " METADATA_KEY " is not an object");
  }
  json_object_foreach(value, key, text) {
    if (!json_is_string(text)) {
      return bl_error_set(err, BL_INVALID, "safetensors header: " METADATA_KEY ": '%.*s' is not a text",
                          NAME_IN_MESSAGES, key);
    }
  }
  return BL_OK;
}

static bl_status_t read_header(bl_safetensors_t *index, json_t *header, uint64_t file_bytes, bl_error_t *err) {
  char *names = index->names;
  const char *name;
  json_t *value;
  json_object_foreach(header, name, value) {
    bl_status_t status;
    if (strcmp(name, METADATA_KEY) == 0) {
      status = read_metadata(value, err);
    } else {
      bl_tensor_entry_t *tensor = &index->tensors[index->count++];
      size_t name_bytes = strlen(name) + 1;
      tensor->name = memcpy(names, name, name_bytes);
      names += name_bytes;
      status = read_tensor(tensor, value, index->data_offset_bytes, file_bytes - index->data_offset_bytes, err);
    }
    if (status != BL_OK) {
      return status;
    }
  }
  qsort(index->tensors, index->count, sizeof *index->tensors, by_offset);
  bl_status_t status = check_cover(index, file_bytes, err);
  qsort(index->tensors, index->count, sizeof *index->tensors, by_name);
  return status;
}

static uint64_t read_length(const uint8_t *bytes) {
  uint64_t length = 0;
  for (int i = BL_SAFETENSORS_LENGTH_BYTES - 1; i >= 0; i--) {
    length = length << 8 | bytes[i];
  }
  return length;
}

bl_status_t bl_safetensors_parse(bl_safetensors_t *index, const uint8_t *bytes, uint64_t size_bytes, bl_error_t *err) {
  if (size_bytes < BL_SAFETENSORS_LENGTH_BYTES) {
    return bl_error_set(err, BL_DATA_LOSS, "truncated: %" PRIu64 " bytes are too few for a safetensors file",
                        size_bytes);
  }
  uint64_t length = read_length(bytes);
  if (length > BL_SAFETENSORS_MAX_HEADER_BYTES) {
    return bl_error_set(err, BL_INVALID,
                        "not a safetensors file: its header would have %" PRIu64 " bytes, the limit is %u", length,
                        BL_SAFETENSORS_MAX_HEADER_BYTES);
  }
  if (length > size_bytes - BL_SAFETENSORS_LENGTH_BYTES) {
    return bl_error_set(err, BL_DATA_LOSS,
                        "truncated: the safetensors header has %" PRIu64 " bytes, the file has %" PRIu64
                        " after its length",
                        length, size_bytes - BL_SAFETENSORS_LENGTH_BYTES);
  }
  json_error_t fault;
  json_t *header =
      json_loadb((const char *)bytes + BL_SAFETENSORS_LENGTH_BYTES, length, JSON_REJECT_DUPLICATES, &fault);
  if (header == NULL) {
    return bl_error_set(err, BL_INVALID, "safetensors header: byte %d: %s", fault.position, fault.text);
  }
  if (!json_is_object(header)) {
    json_decref(header);
    return bl_error_set(err, BL_INVALID, "safetensors header: not a JSON object");
  }
  bl_safetensors_t parsed = {.data_offset_bytes = BL_SAFETENSORS_LENGTH_BYTES + length};
  bl_status_t status = allocate(&parsed, header, err);
  if (status == BL_OK) {
    status = read_header(&parsed, header, size_bytes, err);
  }
  json_decref(header);
  if (status != BL_OK) {
    bl_safetensors_cleanup(&parsed);
    return status;
  }
  *index = parsed;
  return BL_OK;
}

void bl_safetensors_cleanup(bl_safetensors_t *index) {
  free(index->tensors);
  free(index->names);
  *index = (bl_safetensors_t){0};
}

const bl_tensor_entry_t *bl_safetensors_find(const bl_safetensors_t *index, const char *name) {
  if (index->count == 0) {
    return NULL;
  }
  bl_tensor_entry_t wanted = {.name = name};
  return bsearch(&wanted, index->tensors, index->count, sizeof *index->tensors, by_name);
}

// Returns the header entry of a tensor whose offset within data is `begin`; NULL if there is no memory or the name is
// not UTF-8.
static json_t *describe(const bl_tensor_entry_t *tensor, uint64_t begin) {
  json_t *shape = json_array();
  for (unsigned i = 0; i < tensor->rank; i++) {
    json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i]));
  }
  return json_pack("{s:s, s:o, s:[I, I]}", "dtype", bl_tensor_dtype_name(tensor->dtype), "shape", shape, "data_offsets",
                   (json_int_t)begin, (json_int_t)begin + (json_int_t)tensor->size_bytes);
}

static bl_status_t add_tensor(json_t *header, bl_tensor_entry_t *tensor, uint64_t *end, bl_error_t *err) {
  uint64_t next = 0;
  if (tensor->rank > BL_SAFETENSORS_MAX_RANK || !measure(tensor) || !bl_add_u64(*end, tensor->size_bytes, &next) ||
      next > INT64_MAX) {
    return FAIL_TENSOR(err, tensor->name, "its shape does not have a size in bytes that fits the file");
  }
  if (strcmp(tensor->name, METADATA_KEY) == 0 || json_object_get(header, tensor->name) != NULL) {
    return FAIL_TENSOR(err, tensor->name, "the name is reserved or given twice");
  }
  if (json_object_set_new(header, tensor->name, describe(tensor, *end)) != 0) {
    return FAIL_TENSOR(err, tensor->name, "the name is not valid UTF-8, or memory ran out");
  }
  tensor->offset_bytes = *end; // within data; add the length of the first bytes when it is known
  *end = next;
  return BL_OK;
}

// Puts length and padding around the header's text and returns a new block; the caller keeps `text`.
static bl_status_t with_length(const char *text, size_t text_bytes, char **bytes, size_t *size_bytes, bl_error_t *err) {
  uint64_t length = bl_align_up(text_bytes, 8);
  if (length > BL_SAFETENSORS_MAX_HEADER_BYTES) {
    return bl_error_set(err, BL_INVALID, "a safetensors header of %" PRIu64 " bytes is over the limit of %u", length,
                        BL_SAFETENSORS_MAX_HEADER_BYTES);
  }
  char *framed = malloc(BL_SAFETENSORS_LENGTH_BYTES + length);
  if (framed == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a safetensors header of %" PRIu64 " bytes", length);
  }
  for (unsigned i = 0; i < BL_SAFETENSORS_LENGTH_BYTES; i++) {
    framed[i] = (char)(length >> (8 * i));
  }
  memcpy(framed + BL_SAFETENSORS_LENGTH_BYTES, text, text_bytes);
  memset(framed + BL_SAFETENSORS_LENGTH_BYTES + text_bytes, ' ', length - text_bytes);
  *bytes = framed;
  *size_bytes = BL_SAFETENSORS_LENGTH_BYTES + length;
  return BL_OK;
}

bl_status_t bl_safetensors_write_header(bl_tensor_entry_t *tensors, size_t count, char **bytes, size_t *size_bytes,
                                        bl_error_t *err) {
  json_t *header = json_pack("{s:{s:s}}", METADATA_KEY, "format", "pt");
  if (header == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a safetensors header");
  }
  char *text = NULL;
  uint64_t end = 0;
  bl_status_t status = BL_OK;
  for (size_t i = 0; i < count && status == BL_OK; i++) {
    status = add_tensor(header, &tensors[i], &end, err);
  }
  if (status == BL_OK) {
    text = json_dumps(header, JSON_COMPACT);
    status = text != NULL ? with_length(text, strlen(text), bytes, size_bytes, err)
                          : bl_error_set(err, BL_EXHAUSTED, "no memory for a safetensors header");
  }
  for (size_t i = 0; i < count && status == BL_OK; i++) {
    tensors[i].offset_bytes += *size_bytes;
  }
  free(text);
  json_decref(header);
  return status;
}

void bl_safetensors_length_add(bl_safetensors_length_t *length, const char *name, bl_tensor_dtype_t dtype,
                               const uint64_t *shape, unsigned rank) {
  uint64_t bits = bl_tensor_dtype_bits(dtype), shape_bytes = rank > 0 ? rank - 1 : 0; // commas
  for (unsigned i = 0; i < rank; i++) {
    shape_bytes += (uint64_t)snprintf(NULL, 0, "%" PRIu64, shape[i]);
    bits *= shape[i];
  }
  const uint64_t begin = length->data_bytes;
  length->data_bytes += bits / 8;
  length->text_bytes += shape_bytes + (uint64_t)snprintf(NULL, 0,
                                                         ",\"%s\":{\"dtype\":\"%s\",\"shape\":[],"
                                                         "\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                                                         name, bl_tensor_dtype_name(dtype), begin, length->data_bytes);
}

uint64_t bl_safetensors_length_header(const bl_safetensors_length_t *length) {
  static const char rest[] = "{\"" METADATA_KEY "\":{\"format\":\"pt\"}}";
  return BL_SAFETENSORS_LENGTH_BYTES + bl_align_up(sizeof rest - 1 + length->text_bytes, 8);
}

const bl_library_t bl_formats_library = {"jansson", jansson_version_str};
