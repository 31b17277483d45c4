// SPDX-License-Identifier: Apache-2.0
// A checkpoint as a reader sees it: a folder whose ballast.json (formats/checkpoint_state.h) describes its content.
//
//   step-000120/
//     config.json, model-00001-of-00002.safetensors, ..., model.safetensors.index.json     as transformers reads them
//     optimizer-00001-of-00002.safetensors, ...      "<parameter>.exp_avg" and "<parameter>.exp_avg_sq", fp32
//     ballast.json, job.yaml
//
//   bl_checkpoint_open(&checkpoint, "/runs/a/step-000120", err);
//   bl_checkpoint_check(&checkpoint, &model, err);
//   bl_checkpoint_read(&checkpoint, &parameter, BL_CHECKPOINT_WEIGHT, values, err);
//
// Tensors have global names, so that any partition can read what any other wrote. Nothing is trusted: sizes and heads
// of all files are checked when the folder is opened, a tensor's checksum when it is read.
//
// Reads files. Thread: one thread opens and closes; immutable in between, any thread may read.
#ifndef BALLAST_JOB_CHECKPOINT_H
#define BALLAST_JOB_CHECKPOINT_H

#include "formats/checkpoint_state.h"
#include "formats/safetensors.h"
#include "model/layer_parts.h"
#include "model/parameters.h"
#include "sys/file_map.h"

// X(identifier, suffix of the parameter's name): PyTorch's names for the state of AdamW.
#define BL_CHECKPOINT_PART_TABLE(X)                                                                                    \
  X(BL_CHECKPOINT_WEIGHT, "")                                                                                          \
  X(BL_CHECKPOINT_FIRST_MOMENT, ".exp_avg")                                                                            \
  X(BL_CHECKPOINT_SECOND_MOMENT, ".exp_avg_sq")

typedef enum bl_checkpoint_part {
#define X(identifier, suffix) identifier,
  BL_CHECKPOINT_PART_TABLE(X)
#undef X
      BL_CHECKPOINT_PARTS
} bl_checkpoint_part_t;

#define BL_CHECKPOINT_NAME_BYTES (BL_PARAMETER_NAME_BYTES + 16)
// Writes the name of a tensor in a checkpoint's files.
const char *bl_checkpoint_tensor_name(const bl_parameter_t *parameter, bl_checkpoint_part_t part,
                                      char name[BL_CHECKPOINT_NAME_BYTES]);

typedef struct bl_checkpoint_shard {
  const bl_checkpoint_file_t *file; // of `state`
  bl_file_map_t map;
  bl_safetensors_t index;
} bl_checkpoint_shard_t;

typedef struct bl_checkpoint {
  char *folder;
  bl_checkpoint_state_t state;
  uint64_t digest;               // of ballast.json: identifies the checkpoint. Never 0
  bl_checkpoint_shard_t *shards; // [shard_count], the safetensors files
  size_t shard_count;
} bl_checkpoint_t;

// BL_NOT_FOUND: no such folder, or no ballast.json in it; BL_INVALID: not such a file, or a file that contradicts it
// (names it); BL_UNIMPLEMENTED: written in a newer format; BL_DATA_LOSS: a file is missing, truncated or damaged (names
// it); BL_IO, BL_EXHAUSTED. On failure there is nothing to close.
BL_MUST_USE bl_status_t bl_checkpoint_open(bl_checkpoint_t *checkpoint, const char *folder, bl_error_t *err);
void bl_checkpoint_close(bl_checkpoint_t *checkpoint); // a zeroed one is fine

// Checks that config.json describes `model` (bl_hf_config_compare), that every parameter of it exists with its moments
// and shape, and no other tensor. BL_INVALID names file and key or tensor, what was found and what the model needs.
// BL_DATA_LOSS: config.json is missing.
BL_MUST_USE bl_status_t bl_checkpoint_check(const bl_checkpoint_t *checkpoint, const bl_model_t *model,
                                            bl_error_t *err);

// Checks the checksum of every tensor, for which it reads everything. BL_DATA_LOSS names file and tensor.
BL_MUST_USE bl_status_t bl_checkpoint_verify(const bl_checkpoint_t *checkpoint, bl_error_t *err);

// Reads one part of a parameter completely into values [parameter->elements], in the order of bl_parameter_t.
// BL_INVALID as bl_checkpoint_check; BL_DATA_LOSS: its bytes are not those that were written (names file and tensor).
BL_MUST_USE bl_status_t bl_checkpoint_read(const bl_checkpoint_t *checkpoint, const bl_parameter_t *parameter,
                                           bl_checkpoint_part_t part, float *values, bl_error_t *err);
// Reads elements [first, first + count) of a slice of it, whole rows (bl_slice_range), into values [count]. The checksum
// of the whole tensor is checked if the tensor's first element is among them: of ranks that read it in parts one checks
// it, and a run begins only if all have read what they need.
BL_MUST_USE bl_status_t bl_checkpoint_read_range(const bl_checkpoint_t *checkpoint, const bl_parameter_t *parameter,
                                                 bl_checkpoint_part_t part, const bl_slice_t *slice, uint64_t first,
                                                 uint64_t count, float *values, bl_error_t *err);

#endif
