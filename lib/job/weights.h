// SPDX-License-Identifier: Apache-2.0
// The tensors of a Hugging Face folder (`model.init`): model.safetensors, or the shards that
// model.safetensors.index.json names, mapped and indexed. Values of dtype F32, F16 and BF16 are read as fp32.
//
// Names are those of the full model ("transformer.wte.weight"). In a folder saved from the base class they lack
// "transformer." or "model.", and are found too.
//
// Reads files. Thread: one thread opens and closes; immutable in between, any thread may read.
#ifndef BALLAST_JOB_WEIGHTS_H
#define BALLAST_JOB_WEIGHTS_H

#include "formats/safetensors.h"
#include "model/parameters.h"
#include "sys/file_map.h"

typedef struct bl_weights_file {
  char *path;
  bl_file_map_t map;
  bl_safetensors_t index;
} bl_weights_file_t;

typedef struct bl_weights {
  bl_weights_file_t *files;
  size_t file_count;
  char *folder;
} bl_weights_t;

// Opens the folder and checks every header. BL_NOT_FOUND (no folder, no safetensors in it, a shard that the index names
// is missing), BL_DATA_LOSS (truncated), BL_INVALID, BL_IO, BL_EXHAUSTED; the message names the file. On failure there
// is nothing to close.
BL_MUST_USE bl_status_t bl_weights_open(bl_weights_t *weights, const char *folder, bl_error_t *err);
void bl_weights_close(bl_weights_t *weights); // a zeroed one is fine

// Checks that every parameter of `model` exists with its shape and a dtype that can be read, that a head in the file of
// a tied model is a copy of the embedding, and that there are no other tensors but buffers that transformers computes
// anew. BL_INVALID and BL_UNIMPLEMENTED name the tensor, its file, what was found and what was expected.
BL_MUST_USE bl_status_t bl_weights_check(const bl_weights_t *weights, const bl_model_t *model, bl_error_t *err);

// Reads elements first .. first + count - 1 of a parameter into values [count], in the file's element order (the shape
// of bl_parameter_t: GPT-2's matrices stay [in, out]). Checks the tensor as bl_weights_check does. BL_INVALID also if a
// value is not finite.
BL_MUST_USE bl_status_t bl_weights_read(const bl_weights_t *weights, const bl_parameter_t *parameter, uint64_t first,
                                        uint64_t count, float *values, bl_error_t *err);

#endif
