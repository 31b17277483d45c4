// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/saved_model.h"

#include "sys/file.h"

#include <stdlib.h>
#include <string.h>

static const bl_model_t tiny = {.family = BL_FAMILY_GPT2,
                                .layers = 2,
                                .hidden = 8,
                                .heads = 2,
                                .kv_heads = 2,
                                .head_dim = 4,
                                .ffn = 32,
                                .vocab = 40,
                                .seq = 16,
                                .tied = true,
                                .norm_epsilon = 1e-5};

static float value_of(uint64_t step, uint32_t parameter, int part, uint64_t element) {
  return (float)(step * 1000 + parameter * 10 + (uint64_t)part) + (float)element / 1024;
}

// Where a part of a parameter begins in `values`: parameters in order, parts of each one after the other.
static float *part_of(const saved_model_t *saved, uint32_t parameter, int part) {
  uint64_t offset = 0;
  for (uint32_t i = 0; i < parameter; i++) {
    offset += BL_CHECKPOINT_PARTS * bl_parameter_get(&saved->model, i).elements;
  }
  return saved->values + offset + (uint64_t)part * bl_parameter_get(&saved->model, parameter).elements;
}

void saved_model_set(saved_model_t *saved, uint64_t step) {
  for (uint32_t i = 0; i < bl_parameter_count(&saved->model); i++) {
    bl_parameter_t parameter = bl_parameter_get(&saved->model, i);
    for (int part = 0; part < BL_CHECKPOINT_PARTS; part++) {
      float *values = part_of(saved, i, part);
      for (uint64_t k = 0; k < parameter.elements; k++) {
        values[k] = value_of(step, i, part, k);
      }
    }
  }
  for (int stage = 0; stage < SAVED_STAGES; stage++) {
    bl_error_t err = {0};
    if (bl_snapshot_take(saved->snapshots[stage], &err) != BL_OK) {
      abort();
    }
  }
}

static bool make_snapshot(saved_model_t *saved, int stage, uint32_t first, uint32_t last) {
  bl_snapshot_tensor_t *tensors = calloc(last - first, sizeof *tensors);
  bl_error_t err;
  for (uint32_t i = first; tensors != NULL && i < last; i++) {
    tensors[i - first].parameter = bl_parameter_get(&saved->model, i);
    tensors[i - first].slice = bl_layer_part_slice(&saved->model, &tensors[i - first].parameter, 1, 0);
    tensors[i - first].tile = tensors[i - first].parameter.elements;
    for (int part = 0; part < BL_CHECKPOINT_PARTS; part++) {
      tensors[i - first].parts[part] = part_of(saved, i, part);
    }
  }
  bool made = tensors != NULL && bl_snapshot_create(tensors, last - first, true, bl_device_host(),
                                                    &saved->snapshots[stage], &err) == BL_OK;
  free(tensors);
  saved->memory[stage] = made ? aligned_alloc(64, bl_snapshot_bytes(saved->snapshots[stage])) : NULL;
  if (saved->memory[stage] == NULL) {
    return false;
  }
  bl_snapshot_use_memory(saved->snapshots[stage], saved->memory[stage]);
  return true;
}

bool saved_model_init(saved_model_t *saved, uint64_t step) {
  *saved = (saved_model_t){.model = tiny};
  uint32_t count = bl_parameter_count(&saved->model);
  saved->values = calloc(BL_CHECKPOINT_PARTS * bl_model_parameter_elements(&saved->model), sizeof *saved->values);
  if (saved->values == NULL || !make_snapshot(saved, 0, 0, count / 2) || !make_snapshot(saved, 1, count / 2, count)) {
    saved_model_cleanup(saved);
    return false;
  }
  saved_model_set(saved, step);
  return true;
}

void saved_model_cleanup(saved_model_t *saved) {
  for (int stage = 0; stage < SAVED_STAGES; stage++) {
    bl_snapshot_destroy(saved->snapshots[stage]);
    free(saved->memory[stage]);
  }
  free(saved->values);
  *saved = (saved_model_t){0};
}

typedef struct {
  char names[2 * SAVED_STAGES][BL_CHECKPOINT_SHARD_BYTES];
  bl_checkpoint_file_t files[2 * SAVED_STAGES];
  size_t count;
} written_t;

static bl_status_t write_shard(const saved_model_t *saved, int stage, int kind, const char *partial, written_t *written,
                               bl_error_t *err) {
  const bl_shard_image_t *image = bl_snapshot_image(saved->snapshots[stage], (bl_checkpoint_shard_kind_t)kind);
  char path[PATH_MAX], *name = written->names[written->count];
  bl_checkpoint_shard_name((bl_checkpoint_shard_kind_t)kind, (uint32_t)stage, SAVED_STAGES, name);
  bl_shard_checksums_t checksums = {.tensors = calloc(image->tensor_count, sizeof *checksums.tensors)};
  bl_checkpoint_file_t *file = &written->files[written->count++];
  *file = (bl_checkpoint_file_t){.name = name, .size_bytes = image->size_bytes};
  file->tensors = calloc(image->tensor_count, sizeof *file->tensors);
  if (checksums.tensors == NULL || file->tensors == NULL) {
    free(checksums.tensors);
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  bl_status_t status = bl_path_join(path, sizeof path, partial, name);
  if (status == BL_OK) {
    status = bl_shard_write(image, path, &checksums, err);
  }
  file->head_checksum = checksums.head;
  file->tensor_count = image->tensor_count;
  for (size_t i = 0; i < image->tensor_count; i++) {
    file->tensors[i] = (bl_checkpoint_tensor_t){.name = image->tensors[i].name, .checksum = checksums.tensors[i]};
  }
  free(checksums.tensors);
  return status;
}

// As if the run had begun with a model that has a tokenizer.
static char tokenizer[] = "{\"model\": {\"type\": \"BPE\"}}", template[] = "{{ messages }}",
            config[] = "{\"eos_token_id\": 39}";
static const bl_companions_t companions = {.files = {{"tokenizer.json", tokenizer, sizeof tokenizer - 1},
                                                     {"chat_template.jinja", template, sizeof template - 1}},
                                           .count = 2,
                                           .config = config,
                                           .config_bytes = sizeof config - 1};

bl_status_t saved_model_write(const saved_model_t *saved, const char *folder, uint64_t step, uint64_t keep,
                              bl_error_t *err) {
  char partial[PATH_MAX], path[PATH_MAX];
  written_t written = {.count = 0};
  bl_status_t status = bl_checkpoint_folder_begin(folder, step, 7, partial, err);
  if (status != BL_OK) {
    return status;
  }
  for (int stage = 0; stage < SAVED_STAGES && status == BL_OK; stage++) {
    for (int kind = 0; kind < 2 && status == BL_OK; kind++) {
      status = write_shard(saved, stage, kind, partial, &written, err);
    }
  }
  bl_checkpoint_contents_t contents = {.step = step,
                                       .seed = 1,
                                       .attention = "flash",
                                       .writer = "test",
                                       .job = "name: test\n",
                                       .model = &saved->model,
                                       .shards = written.files,
                                       .shard_count = written.count,
                                       .companions = &companions};
  if (status == BL_OK) {
    status = bl_checkpoint_seal(partial, &contents, err);
  }
  if (status == BL_OK) {
    status = bl_checkpoint_folder_commit(folder, partial, step, path, err);
  } else {
    bl_checkpoint_folder_discard(partial);
  }
  for (size_t i = 0; i < written.count; i++) {
    free(written.files[i].tensors);
  }
  return status == BL_OK ? bl_checkpoint_folder_prune(folder, keep, err) : status;
}

static bl_status_t compare(const bl_checkpoint_t *checkpoint, uint32_t index, int part, bl_error_t *err) {
  bl_parameter_t parameter = bl_parameter_get(&tiny, index);
  float *values = calloc(parameter.elements, sizeof *values);
  if (values == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory");
  }
  bl_status_t status = bl_checkpoint_read(checkpoint, &parameter, (bl_checkpoint_part_t)part, values, err);
  for (uint64_t k = 0; k < parameter.elements && status == BL_OK; k++) {
    float expected = value_of(checkpoint->state.step, index, part, k);
    if (values[k] != expected) {
      status = bl_error_set(err, BL_INTERNAL, "%s, part %d, element %lu: %.9g, written %.9g", parameter.name, part,
                            (unsigned long)k, (double)values[k], (double)expected);
    }
  }
  free(values);
  return status;
}

// Every companion is there as it was, and the token ids stand in config.json.
static bl_status_t check_companions(const char *folder, bl_error_t *err) {
  char path[PATH_MAX], *bytes = NULL;
  size_t size_bytes;
  bl_status_t status = BL_OK;
  for (size_t i = 0; i <= companions.count && status == BL_OK; i++) {
    const bool last = i == companions.count;
    const char *name = last ? "config.json" : companions.files[i].name;
    status = bl_path_join(path, sizeof path, folder, name);
    status = status == BL_OK ? bl_file_read(path, 1 << 20, &bytes, &size_bytes, err) : status;
    if (status == BL_OK &&
        (last ? strstr(bytes, "\"eos_token_id\": 39") == NULL : strcmp(bytes, companions.files[i].bytes) != 0)) {
      status = bl_error_set(err, BL_INTERNAL, "%s: is not what was written: %.100s", path, bytes);
    }
    free(bytes);
    bytes = NULL;
  }
  return status;
}

uint64_t saved_model_read(const char *folder, bl_error_t *err) {
  char path[PATH_MAX];
  uint64_t step;
  bl_checkpoint_t checkpoint;
  if (bl_checkpoint_folder_newest(folder, path, &step, err) != BL_OK ||
      bl_checkpoint_open(&checkpoint, path, err) != BL_OK) {
    return 0;
  }
  bl_status_t status = bl_checkpoint_check(&checkpoint, &tiny, err);
  if (status == BL_OK && checkpoint.state.step != step) {
    status = bl_error_set(err, BL_INTERNAL, "%s: holds step %lu", path, (unsigned long)checkpoint.state.step);
  }
  if (status == BL_OK) {
    status = check_companions(path, err);
  }
  for (uint32_t i = 0; i < bl_parameter_count(&tiny) && status == BL_OK; i++) {
    for (int part = 0; part < BL_CHECKPOINT_PARTS && status == BL_OK; part++) {
      status = compare(&checkpoint, i, part, err);
    }
  }
  bl_checkpoint_close(&checkpoint);
  return status == BL_OK ? step : 0;
}
