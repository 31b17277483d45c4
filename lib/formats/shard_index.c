// SPDX-License-Identifier: Apache-2.0
#include "formats/shard_index.h"

#include "formats/file_name.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define NAME_IN_MESSAGES 200 // maximum bytes of a name of a file that a message repeats

static int by_text(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int by_tensor(const void *a, const void *b) {
  return strcmp(((const bl_shard_entry_t *)a)->tensor, ((const bl_shard_entry_t *)b)->tensor);
}

// Collects the distinct file names of the map, sorted.
static bl_status_t read_files(bl_shard_index_t *index, json_t *map, bl_error_t *err) {
  const char *tensor;
  json_t *value;
  json_object_foreach(map, tensor, value) {
    const char *file = json_string_value(value);
    if (file == NULL || !bl__file_name_is_plain(file)) {
      return bl_error_set(err, BL_INVALID,
                          "weight_map: tensor '%.*s' needs the name of a file in the same folder, has %s%.*s%s",
                          NAME_IN_MESSAGES, tensor, file != NULL ? "'" : "", NAME_IN_MESSAGES,
                          file != NULL ? file : "no text", file != NULL ? "'" : "");
    }
    index->files[index->file_count++] = file;
  }
  qsort(index->files, index->file_count, sizeof *index->files, by_text);
  size_t kept = 0;
  for (size_t i = 0; i < index->file_count; i++) {
    if (kept == 0 || strcmp(index->files[i], index->files[kept - 1]) != 0) {
      index->files[kept++] = index->files[i];
    }
  }
  index->file_count = kept;
  return BL_OK;
}

static void read_entries(bl_shard_index_t *index, json_t *map) {
  const char *tensor;
  json_t *value;
  json_object_foreach(map, tensor, value) {
    const char *file = json_string_value(value);
    const char **place = bsearch(&file, index->files, index->file_count, sizeof *index->files, by_text);
    index->entries[index->count++] = (bl_shard_entry_t){.tensor = tensor, .file = (size_t)(place - index->files)};
  }
  qsort(index->entries, index->count, sizeof *index->entries, by_tensor);
}

bl_status_t bl_shard_index_parse(bl_shard_index_t *index, const char *bytes, size_t size_bytes, bl_error_t *err) {
  json_error_t fault;
  json_t *document = json_loadb(bytes, size_bytes, JSON_REJECT_DUPLICATES, &fault);
  if (document == NULL) {
    return bl_error_set(err, BL_INVALID, "is no JSON: line %d column %d: %s", fault.line, fault.column, fault.text);
  }
  bl_shard_index_t parsed = {.document = document};
  bl_status_t status;
  json_t *map = json_object_get(document, "weight_map");
  if (!json_is_object(map) || json_object_size(map) == 0) {
    status = bl_error_set(err, BL_INVALID, "needs a \"weight_map\" that names the file of each tensor");
    goto cleanup;
  }
  parsed.entries = calloc(json_object_size(map), sizeof *parsed.entries);
  parsed.files = calloc(json_object_size(map), sizeof *parsed.files);
  if (parsed.entries == NULL || parsed.files == NULL) {
    status = bl_error_set(err, BL_EXHAUSTED, "no memory for %zu tensors", json_object_size(map));
    goto cleanup;
  }
  status = read_files(&parsed, map, err);
  if (status != BL_OK) {
    goto cleanup;
  }
  read_entries(&parsed, map);
  *index = parsed;
  return BL_OK;
cleanup:
  bl_shard_index_cleanup(&parsed);
  return status;
}

void bl_shard_index_cleanup(bl_shard_index_t *index) {
  free(index->entries);
  free(index->files);
  json_decref(index->document);
  *index = (bl_shard_index_t){0};
}

const bl_shard_entry_t *bl_shard_index_find(const bl_shard_index_t *index, const char *tensor) {
  if (index->count == 0) {
    return NULL;
  }
  bl_shard_entry_t wanted = {.tensor = tensor};
  return bsearch(&wanted, index->entries, index->count, sizeof *index->entries, by_tensor);
}

bl_status_t bl_shard_index_write(const bl_shard_entry_t *entries, size_t count, const char *const *files,
                                 uint64_t total_bytes, char **text, size_t *text_bytes, bl_error_t *err) {
  json_t *map = json_object();
  json_t *document = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total_bytes, "weight_map", map);
  bool good = document != NULL;
  for (size_t i = 0; i < count && good; i++) {
    good = json_object_set_new(map, entries[i].tensor, json_string(files[entries[i].file])) == 0;
  }
  char *made = good ? json_dumps(document, JSON_INDENT(1)) : NULL;
  json_decref(document);
  if (made == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for an index of shards, or a name in it is not UTF-8");
  }
  *text = made;
  *text_bytes = strlen(made);
  return BL_OK;
}
