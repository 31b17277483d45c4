// SPDX-License-Identifier: Apache-2.0
#include "job/checkpoint_folder.h"

#include "base/hash.h"
#include "formats/hf_config.h"
#include "formats/served_config.h"
#include "formats/shard_index.h"
#include "sys/file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PLAIN_FILES 3 // config.json, job.yaml, index

// A checkpoint that is being sealed: its shards, then the plain files as they are written.
typedef struct {
  const char *folder;
  bl_checkpoint_file_t *files; // [file_count], with capacity for PLAIN_FILES and companions
  size_t file_count;
} seal_t;

static bl_status_t check_shard(const char *folder, const bl_checkpoint_file_t *shard, bl_error_t *err) {
  char path[PATH_MAX];
  struct stat info;
  if (bl_path_join(path, sizeof path, folder, shard->name) != BL_OK) {
    return bl_error_set(err, BL_INVALID, "%s/%s: the path is too long", folder, shard->name);
  }
  if (stat(path, &info) != 0) {
    int cause = errno;
    return bl_error_set(err, bl_status_from_errno(cause),
                        "%s: a stage has written it, but it cannot be seen here: %s; checkpoint.folder must be on a "
                        "file system that driver and stages share",
                        path, strerror(cause));
  }
  if ((uint64_t)info.st_size != shard->size_bytes) {
    return bl_error_set(err, BL_DATA_LOSS, "%s: has %" PRIu64 " bytes, its stage has written %" PRIu64, path,
                        (uint64_t)info.st_size, shard->size_bytes);
  }
  return BL_OK;
}

// Writes a file and records its checksum.
static bl_status_t add_plain(seal_t *seal, const char *name, const char *text, size_t text_bytes, bl_error_t *err) {
  char path[PATH_MAX];
  if (bl_path_join(path, sizeof path, seal->folder, name) != BL_OK) {
    return bl_error_set(err, BL_INVALID, "%s/%s: the path is too long", seal->folder, name);
  }
  seal->files[seal->file_count++] =
      (bl_checkpoint_file_t){.name = name, .size_bytes = text_bytes, .head_checksum = bl_hash64(text, text_bytes, 0)};
  return bl_file_replace(path, text, text_bytes, err);
}

// Keeps in *text what programs that serve the model read, as in the config.json of the model that the run began with.
static bl_status_t keep_served(const bl_companions_t *companions, char **text, size_t *text_bytes, bl_error_t *err) {
  if (companions == NULL || companions->config == NULL) {
    return BL_OK;
  }
  char *made;
  bl_status_t status =
      bl_served_config_keep(companions->config, companions->config_bytes, *text, *text_bytes, &made, text_bytes, err);
  if (status == BL_OK) {
    free(*text);
    *text = made;
  }
  return status;
}

static bl_status_t add_config(seal_t *seal, const bl_checkpoint_contents_t *contents, bl_error_t *err) {
  char *text;
  size_t text_bytes;
  bl_status_t status = bl_hf_config_write(contents->model, &text, &text_bytes, err);
  if (status != BL_OK) {
    return status;
  }
  status = keep_served(contents->companions, &text, &text_bytes, err);
  if (status == BL_OK) {
    status = add_plain(seal, "config.json", text, text_bytes, err);
  }
  free(text);
  return status;
}

// Adds the files that programs which serve the model need in addition to its weights.
static bl_status_t add_companions(seal_t *seal, const bl_companions_t *companions, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (size_t i = 0; companions != NULL && i < companions->count && status == BL_OK; i++) {
    const bl_companion_t *file = &companions->files[i];
    status = add_plain(seal, file->name, file->bytes, file->size_bytes, err);
  }
  return status;
}

static bool holds_weights(const bl_checkpoint_file_t *file) {
  return strncmp(file->name, "model-", strlen("model-")) == 0;
}

// Adds the index of the weights, for other programs.
static bl_status_t add_index(seal_t *seal, const bl_checkpoint_contents_t *contents, bl_error_t *err) {
  size_t count = 0;
  for (size_t i = 0; i < contents->shard_count; i++) {
    count += contents->shards[i].tensor_count;
  }
  bl_shard_entry_t *entries = calloc(count + 1, sizeof *entries);
  const char **names = calloc(contents->shard_count + 1, sizeof *names);
  bl_status_t status = BL_EXHAUSTED;
  if (entries == NULL || names == NULL) {
    (void)bl_error_set(err, status, "no memory for the index of a checkpoint");
    goto free_arrays;
  }
  count = 0;
  for (size_t i = 0; i < contents->shard_count; i++) {
    names[i] = contents->shards[i].name;
    for (size_t k = 0; holds_weights(&contents->shards[i]) && k < contents->shards[i].tensor_count; k++) {
      entries[count++] = (bl_shard_entry_t){.tensor = contents->shards[i].tensors[k].name, .file = i};
    }
  }
  char *text;
  size_t text_bytes;
  uint64_t total_bytes = bl_model_parameter_elements(contents->model) * sizeof(float);
  status = bl_shard_index_write(entries, count, names, total_bytes, &text, &text_bytes, err);
  if (status == BL_OK) {
    status = add_plain(seal, "model.safetensors.index.json", text, text_bytes, err);
    free(text);
  }
free_arrays:
  free(entries);
  free(names);
  return status;
}

static bl_status_t write_state(const seal_t *seal, const bl_checkpoint_contents_t *contents, bl_error_t *err) {
  bl_checkpoint_state_t state = {.writer = contents->writer,
                                 .step = contents->step,
                                 .seed = contents->seed,
                                 .tensor_parts = contents->tensor_parts,
                                 .data_parts = contents->data_parts,
                                 .slices = contents->slices,
                                 .attention = contents->attention,
                                 .files = seal->files,
                                 .file_count = seal->file_count};
  char *text, path[PATH_MAX];
  size_t text_bytes;
  if (bl_path_join(path, sizeof path, seal->folder, BL_CHECKPOINT_STATE_FILE) != BL_OK) {
    return bl_error_set(err, BL_INVALID, "%s: the path is too long", seal->folder);
  }
  bl_status_t status = bl_checkpoint_state_write(&state, &text, &text_bytes, err);
  if (status == BL_OK) {
    status = bl_file_replace(path, text, text_bytes, err);
    free(text);
  }
  return status;
}

bl_status_t bl_checkpoint_seal(const char *partial, const bl_checkpoint_contents_t *contents, bl_error_t *err) {
  seal_t seal = {.folder = partial};
  seal.files = calloc(contents->shard_count + PLAIN_FILES + BL_COMPANIONS_MOST, sizeof *seal.files);
  if (seal.files == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the state of a checkpoint");
  }
  bl_status_t status = BL_OK;
  for (size_t i = 0; i < contents->shard_count && status == BL_OK; i++) {
    status = check_shard(partial, &contents->shards[i], err);
    seal.files[seal.file_count++] = contents->shards[i];
  }
  if (status == BL_OK) {
    status = add_config(&seal, contents, err);
  }
  if (status == BL_OK) {
    status = add_companions(&seal, contents->companions, err);
  }
  if (status == BL_OK) {
    status = add_plain(&seal, BL_CHECKPOINT_JOB_FILE, contents->job, strlen(contents->job), err);
  }
  if (status == BL_OK) {
    status = add_index(&seal, contents, err);
  }
  if (status == BL_OK) {
    status = write_state(&seal, contents, err);
  }
  free(seal.files);
  return status;
}
