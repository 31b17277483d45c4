// SPDX-License-Identifier: Apache-2.0
// `ballast.json`: the list of the files of a checkpoint folder, with the checksums that prove their contents.
//
//   {"format": "ballast-checkpoint", "version": 1, "ballast": "0.1.0", "step": 120, "seed": 1,
//    "data_parts": 1, "slices": 1, "attention": "flash",
//    "files": {"model-00001-of-00002.safetensors": {"size": 4096, "head": "00ff...", "tensors": {"<name>": "00ff..."}},
//              "config.json": {"size": 512, "head": "00ff..."}, ...}}
//
// Every byte of every file is covered by exactly one XXH3 checksum. `head` covers a safetensors file up to its data, or
// a whole file without tensors. `tensors` has the checksum of each tensor's bytes. So a reader checks only what it
// reads and can name a damaged tensor.
//
// A tensor that several ranks wrote together (model/layer_parts.h, model/shard.h) is covered by equal tiles, the last
// of which may be shorter; "tiles": {"<name>": BYTES} follows "tensors". The tensor's checksum is the sum, modulo 2^64,
// of the checksums of its tiles, each seeded with the tile's number, so that every rank contributes what it knows. A
// file with tiles has version 2.
//
// PURE. Thread: any; a parsed state is immutable and belongs to its caller.
#ifndef BALLAST_FORMATS_CHECKPOINT_STATE_H
#define BALLAST_FORMATS_CHECKPOINT_STATE_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

#define BL_CHECKPOINT_STATE_FILE "ballast.json"
#define BL_CHECKPOINT_JOB_FILE   "job.yaml"
// The newest version that this code reads. It writes the oldest version that can hold the state.
#define BL_CHECKPOINT_VERSION 2

typedef struct bl_checkpoint_tensor {
  const char *name;
  uint64_t checksum;
  uint64_t tile_bytes; // 0: one tile
} bl_checkpoint_tensor_t;

typedef struct bl_checkpoint_file {
  const char *name; // a plain name, without a folder
  uint64_t size_bytes;
  uint64_t head_checksum;
  bl_checkpoint_tensor_t *tensors; // [tensor_count]
  size_t tensor_count;             // 0: not a safetensors file
} bl_checkpoint_file_t;

// A state to write borrows all its data. A parsed state owns its arrays and texts.
typedef struct bl_checkpoint_state {
  const char *writer; // version of the program that wrote it
  uint64_t step;      // the last step whose update is in the weights
  int64_t seed;
  int64_t tensor_parts;        // parts of a layer (parallel.tensor_parts); 1 if absent
  int64_t data_parts;          // parts of a step's gradient (parallel.data_parts); 1 if absent
  int64_t slices;              // of a sequence (pipeline.slices); 0 if absent: not known
  const char *attention;       // pipeline.attention; "" if absent: not known
  bl_checkpoint_file_t *files; // [file_count]
  size_t file_count;
  void *document; // private
} bl_checkpoint_state_t;

// Parses a ballast.json. BL_INVALID: not JSON, a file of another program, a value missing or of the wrong kind, a file
// name with a folder in it. BL_UNIMPLEMENTED: written in a newer version. BL_EXHAUSTED. On failure there is nothing to
// clean up.
BL_MUST_USE bl_status_t bl_checkpoint_state_parse(bl_checkpoint_state_t *state, const char *bytes, size_t size_bytes,
                                                  bl_error_t *err);
void bl_checkpoint_state_cleanup(bl_checkpoint_state_t *state); // accepts a zeroed state

// Returns the checksum of a tensor [size_bytes] in tiles; tile_bytes 0: one tile.
uint64_t bl_checkpoint_checksum(const uint8_t *bytes, uint64_t size_bytes, uint64_t tile_bytes);

// Writes the text of the file to *text, which is malloc'd and freed by the caller. BL_EXHAUSTED: no memory, or a name
// is not UTF-8.
BL_MUST_USE bl_status_t bl_checkpoint_state_write(const bl_checkpoint_state_t *state, char **text, size_t *text_bytes,
                                                  bl_error_t *err);

#endif
