// SPDX-License-Identifier: Apache-2.0
// `model.safetensors.index.json`: which file of a sharded model holds which tensor.
//
//   {"metadata": {"total_size": n}, "weight_map": {"<tensor>": "model-00001-of-00002.safetensors", ...}}
//
// PURE. Thread: any; an index is immutable after parsing and belongs to its caller.
#ifndef BALLAST_FORMATS_SHARD_INDEX_H
#define BALLAST_FORMATS_SHARD_INDEX_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct bl_shard_entry {
  const char *tensor; // owned by the index
  size_t file;        // position in `files`
} bl_shard_entry_t;

typedef struct bl_shard_index {
  bl_shard_entry_t *entries; // sorted by tensor (strcmp)
  size_t count;
  const char **files; // distinct, sorted; plain names without a folder
  size_t file_count;
  void *document; // private: owns the texts
} bl_shard_index_t;

// Parses an index. BL_INVALID: not JSON, no weight_map, or a file name that is not a plain name in the same folder (a
// foreign index must not reach outside its folder). BL_EXHAUSTED. On failure there is nothing to clean up.
BL_MUST_USE bl_status_t bl_shard_index_parse(bl_shard_index_t *index, const char *bytes, size_t size_bytes,
                                             bl_error_t *err);
void bl_shard_index_cleanup(bl_shard_index_t *index);
// Returns the entry of `tensor`, owned by the index, or NULL.
const bl_shard_entry_t *bl_shard_index_find(const bl_shard_index_t *index, const char *tensor);

// Writes an index of `count` entries in any order; their `file` is a position in `files`. total_bytes: of all tensors.
// *text is malloc'd, freed by the caller. BL_EXHAUSTED: no memory, or a name is not UTF-8.
BL_MUST_USE bl_status_t bl_shard_index_write(const bl_shard_entry_t *entries, size_t count, const char *const *files,
                                             uint64_t total_bytes, char **text, size_t *text_bytes, bl_error_t *err);

#endif
