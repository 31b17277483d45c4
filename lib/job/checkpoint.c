// SPDX-License-Identifier: Apache-2.0
#include "job/checkpoint.h"

#include "base/hash.h"
#include "base/words.h"
#include "formats/hf_config.h"
#include "sys/file.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATE_LIMIT_BYTES  (256u << 20) // about 100 bytes per tensor: two million tensors
#define CONFIG_FILE        "config.json"
#define CONFIG_LIMIT_BYTES (1u << 20)

static const char *const suffixes[] = {
#define X(identifier, suffix) [identifier] = (suffix),
    BL_CHECKPOINT_PART_TABLE(X)
#undef X
};

const char *bl_checkpoint_tensor_name(const bl_parameter_t *parameter, bl_checkpoint_part_t part,
                                      char name[BL_CHECKPOINT_NAME_BYTES]) {
  snprintf(name, BL_CHECKPOINT_NAME_BYTES, "%s%s", parameter->name, suffixes[part]);
  return name;
}

// ---- opening -------------------------------------------------------------------------------------------------------

static bl_status_t path_of(const bl_checkpoint_t *checkpoint, const char *name, char path[PATH_MAX], bl_error_t *err) {
  return bl_path_join(path, PATH_MAX, checkpoint->folder, name) == BL_OK
             ? BL_OK
             : bl_error_set(err, BL_INVALID, "%s/%s: the path is too long", checkpoint->folder, name);
}

static bl_status_t read_state(bl_checkpoint_t *checkpoint, bl_error_t *err) {
  char path[PATH_MAX], *bytes;
  size_t size_bytes;
  bl_status_t status = path_of(checkpoint, BL_CHECKPOINT_STATE_FILE, path, err);
  if (status != BL_OK) {
    return status;
  }
  status = bl_file_read(path, STATE_LIMIT_BYTES, &bytes, &size_bytes, err);
  if (status == BL_NOT_FOUND) {
    return bl_error_set(err, BL_NOT_FOUND,
                        "%s: has no " BL_CHECKPOINT_STATE_FILE ", so it is no checkpoint to go on from; to begin with "
                        "the weights of another program, name the folder in model.init",
                        checkpoint->folder);
  }
  if (status != BL_OK) {
    return status;
  }
  checkpoint->digest = bl_hash64(bytes, size_bytes, 0);
  checkpoint->digest = checkpoint->digest == 0 ? 1 : checkpoint->digest;
  status = bl_checkpoint_state_parse(&checkpoint->state, bytes, size_bytes, err);
  free(bytes);
  if (status != BL_OK) {
    bl_error_prefix(err, "%s", path);
  }
  return status;
}

// Checks that the file's header and the state name the same tensors.
static bl_status_t check_tensors(const bl_checkpoint_shard_t *shard, const char *path, bl_error_t *err) {
  const bl_checkpoint_file_t *file = shard->file;
  for (size_t i = 0; i < file->tensor_count; i++) {
    if (bl_safetensors_find(&shard->index, file->tensors[i].name) == NULL) {
      return bl_error_set(err, BL_INVALID, "%s: tensor '%s' is not in it, but " BL_CHECKPOINT_STATE_FILE " says so",
                          path, file->tensors[i].name);
    }
  }
  if (shard->index.count != file->tensor_count) {
    return bl_error_set(err, BL_INVALID, "%s: has %zu tensor%s, " BL_CHECKPOINT_STATE_FILE " names %zu", path,
                        shard->index.count, bl_plural(shard->index.count), file->tensor_count);
  }
  return BL_OK;
}

static bl_status_t check_head(const bl_checkpoint_shard_t *shard, const char *path, bl_error_t *err) {
  const bl_checkpoint_file_t *file = shard->file;
  uint64_t head_bytes = file->tensor_count > 0 ? shard->index.data_offset_bytes : file->size_bytes;
  if (bl_hash64(shard->map.bytes, head_bytes, 0) != file->head_checksum) {
    return bl_error_set(err, BL_DATA_LOSS,
                        "%s: its %s does not match its checksum: the file is damaged or of another step", path,
                        file->tensor_count > 0 ? "head" : "content");
  }
  return BL_OK;
}

static bl_status_t open_shard(const bl_checkpoint_t *checkpoint, const bl_checkpoint_file_t *file,
                              bl_checkpoint_shard_t *shard, bl_error_t *err) {
  char path[PATH_MAX];
  *shard = (bl_checkpoint_shard_t){.file = file};
  bl_status_t status = path_of(checkpoint, file->name, path, err);
  if (status == BL_OK) {
    status = bl_file_map_open(&shard->map, path, err);
  }
  if (status == BL_NOT_FOUND) {
    return bl_error_set(err, BL_DATA_LOSS, "%s: is missing from the checkpoint", path);
  }
  if (status != BL_OK) {
    return status;
  }
  if (shard->map.size_bytes != file->size_bytes) {
    status = bl_error_set(err, BL_DATA_LOSS, "%s: has %zu bytes, %" PRIu64 " were written: cut short or changed", path,
                          shard->map.size_bytes, file->size_bytes);
  } else if (file->tensor_count > 0) {
    status = bl_safetensors_parse(&shard->index, shard->map.bytes, shard->map.size_bytes, err);
    if (status != BL_OK) {
      bl_error_prefix(err, "%s: damaged", path);
    } else {
      status = check_tensors(shard, path, err);
    }
  }
  if (status == BL_OK) {
    status = check_head(shard, path, err);
  }
  if (status != BL_OK) {
    bl_safetensors_cleanup(&shard->index);
    bl_file_map_close(&shard->map);
  }
  return status;
}

// Opens every file of the state. Files without tensors are checked and closed.
static bl_status_t open_shards(bl_checkpoint_t *checkpoint, bl_error_t *err) {
  const bl_checkpoint_state_t *state = &checkpoint->state;
  checkpoint->shards = calloc(state->file_count, sizeof *checkpoint->shards);
  if (checkpoint->shards == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the files of %s", checkpoint->folder);
  }
  for (size_t i = 0; i < state->file_count; i++) {
    bl_checkpoint_shard_t shard;
    bl_status_t status = open_shard(checkpoint, &state->files[i], &shard, err);
    if (status != BL_OK) {
      return status;
    }
    if (state->files[i].tensor_count > 0) {
      checkpoint->shards[checkpoint->shard_count++] = shard;
    } else {
      bl_file_map_close(&shard.map);
    }
  }
  return BL_OK;
}

bl_status_t bl_checkpoint_open(bl_checkpoint_t *checkpoint, const char *folder, bl_error_t *err) {
  bl_checkpoint_t opened = {.folder = strdup(folder)};
  if (opened.folder == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to open %s", folder);
  }
  bl_status_t status = read_state(&opened, err);
  if (status == BL_OK) {
    status = open_shards(&opened, err);
  }
  if (status != BL_OK) {
    bl_checkpoint_close(&opened);
    return status;
  }
  *checkpoint = opened;
  return BL_OK;
}

void bl_checkpoint_close(bl_checkpoint_t *checkpoint) {
  for (size_t i = 0; i < checkpoint->shard_count; i++) {
    bl_safetensors_cleanup(&checkpoint->shards[i].index);
    bl_file_map_close(&checkpoint->shards[i].map);
  }
  free(checkpoint->shards);
  bl_checkpoint_state_cleanup(&checkpoint->state);
  free(checkpoint->folder);
  *checkpoint = (bl_checkpoint_t){0};
}

// ---- reading -------------------------------------------------------------------------------------------------------

typedef struct {
  const bl_checkpoint_shard_t *shard;
  const bl_tensor_entry_t *entry;
} place_t;

static bool shape_fits(const bl_tensor_entry_t *entry, const bl_parameter_t *parameter) {
  bool fits = entry->rank == parameter->rank;
  for (unsigned i = 0; fits && i < entry->rank; i++) {
    fits = entry->shape[i] == parameter->shape[i];
  }
  return fits;
}

static bl_status_t find(const bl_checkpoint_t *checkpoint, const bl_parameter_t *parameter, bl_checkpoint_part_t part,
                        place_t *place, bl_error_t *err) {
  char name[BL_CHECKPOINT_NAME_BYTES], expected[BL_SHAPE_TEXT], found[BL_SHAPE_TEXT];
  bl_checkpoint_tensor_name(parameter, part, name);
  bl_shape_format(parameter->shape, parameter->rank, expected);
  *place = (place_t){0};
  for (size_t i = 0; i < checkpoint->shard_count && place->entry == NULL; i++) {
    place->shard = &checkpoint->shards[i];
    place->entry = bl_safetensors_find(&place->shard->index, name);
  }
  if (place->entry == NULL) {
    return bl_error_set(err, BL_INVALID, "%s: tensor '%s' of shape %s is missing: a checkpoint of another model",
                        checkpoint->folder, name, expected);
  }
  if (!shape_fits(place->entry, parameter)) {
    return bl_error_set(err, BL_INVALID, "%s/%s: tensor '%s' has shape %s, the model needs %s", checkpoint->folder,
                        place->shard->file->name, name, bl_shape_format(place->entry->shape, place->entry->rank, found),
                        expected);
  }
  if (place->entry->dtype != BL_TENSOR_F32) {
    return bl_error_set(err, BL_INVALID, "%s/%s: tensor '%s' is stored as %s; checkpoints hold F32", checkpoint->folder,
                        place->shard->file->name, name, bl_tensor_dtype_name(place->entry->dtype));
  }
  return BL_OK;
}

// Checks that the model which the checkpoint describes is the one to train: tensors of the same names and shapes may be
// computed otherwise, with another number of heads for example.
static bl_status_t check_config(const bl_checkpoint_t *checkpoint, const bl_model_t *model, bl_error_t *err) {
  char path[PATH_MAX], *bytes;
  size_t size_bytes;
  bl_model_t described;
  bl_status_t status = path_of(checkpoint, CONFIG_FILE, path, err);
  if (status != BL_OK) {
    return status;
  }
  status = bl_file_read(path, CONFIG_LIMIT_BYTES, &bytes, &size_bytes, err);
  if (status == BL_NOT_FOUND) {
    return bl_error_set(err, BL_DATA_LOSS, "%s: is missing from the checkpoint", path);
  }
  if (status != BL_OK) {
    return status;
  }
  status = bl_hf_config_parse(&described, bytes, size_bytes, err);
  free(bytes);
  if (status != BL_OK) {
    bl_error_prefix(err, "%s", path);
    return status;
  }
  bl_error_t fault;
  status = bl_hf_config_compare(&described, model, &fault);
  return status == BL_OK
             ? BL_OK
             : bl_error_set(err, status,
                            "%s: %s; give the job the model of the checkpoint, or begin anew without --resume", path,
                            fault.text);
}

// Finds the parameter that a tensor of a checkpoint is a part of.
static bool is_of_model(const char *tensor, const bl_model_t *model) {
  char name[BL_CHECKPOINT_NAME_BYTES];
  bl_parameter_t parameter;
  snprintf(name, sizeof name, "%s", tensor);
  for (int part = 0; part < BL_CHECKPOINT_PARTS; part++) {
    const size_t length = strlen(name), suffix = strlen(suffixes[part]);
    if (suffix > 0 && length > suffix && strcmp(name + length - suffix, suffixes[part]) == 0) {
      name[length - suffix] = '\0';
      break;
    }
  }
  return bl_parameter_find(model, name, &parameter);
}

// Checks that the model has every tensor of the checkpoint: the next checkpoint would lack the others. All that it needs
// have been found, so that numbers tell in nearly every case.
static bl_status_t check_no_more(const bl_checkpoint_t *checkpoint, const bl_model_t *model, bl_error_t *err) {
  size_t count = 0;
  for (size_t i = 0; i < checkpoint->shard_count; i++) {
    count += checkpoint->shards[i].index.count;
  }
  if (count == (size_t)bl_parameter_count(model) * BL_CHECKPOINT_PARTS) {
    return BL_OK;
  }
  for (size_t i = 0; i < checkpoint->shard_count; i++) {
    const bl_checkpoint_shard_t *shard = &checkpoint->shards[i];
    for (size_t k = 0; k < shard->index.count; k++) {
      if (!is_of_model(shard->index.tensors[k].name, model)) {
        return bl_error_set(err, BL_INVALID,
                            "%s/%s: tensor '%s' is none of the job's model: a checkpoint of another model",
                            checkpoint->folder, shard->file->name, shard->index.tensors[k].name);
      }
    }
  }
  return BL_OK;
}

bl_status_t bl_checkpoint_check(const bl_checkpoint_t *checkpoint, const bl_model_t *model, bl_error_t *err) {
  uint32_t count = bl_parameter_count(model);
  bl_status_t checked = check_config(checkpoint, model, err);
  if (checked != BL_OK) {
    return checked;
  }
  for (uint32_t i = 0; i < count; i++) {
    bl_parameter_t parameter = bl_parameter_get(model, i);
    for (int part = 0; part < BL_CHECKPOINT_PARTS; part++) {
      place_t place;
      bl_status_t status = find(checkpoint, &parameter, (bl_checkpoint_part_t)part, &place, err);
      if (status != BL_OK) {
        return status;
      }
    }
  }
  return check_no_more(checkpoint, model, err);
}

static const bl_checkpoint_tensor_t *noted(const bl_checkpoint_file_t *file, const char *tensor) {
  size_t i = 0;
  while (strcmp(file->tensors[i].name, tensor) != 0) { // open_shard has checked that it exists
    i++;
  }
  return &file->tensors[i];
}

static bl_status_t verify(const bl_checkpoint_t *checkpoint, const bl_checkpoint_shard_t *shard,
                          const bl_tensor_entry_t *entry, bl_error_t *err) {
  const bl_checkpoint_tensor_t *tensor = noted(shard->file, entry->name);
  if (bl_checkpoint_checksum(shard->map.bytes + entry->offset_bytes, entry->size_bytes, tensor->tile_bytes) ==
      tensor->checksum) {
    return BL_OK;
  }
  return bl_error_set(err, BL_DATA_LOSS,
                      "%s/%s: tensor '%s' does not match its checksum: the file is damaged or of another step",
                      checkpoint->folder, shard->file->name, entry->name);
}

bl_status_t bl_checkpoint_verify(const bl_checkpoint_t *checkpoint, bl_error_t *err) {
  for (size_t i = 0; i < checkpoint->shard_count; i++) {
    const bl_checkpoint_shard_t *shard = &checkpoint->shards[i];
    for (size_t k = 0; k < shard->index.count; k++) {
      bl_status_t status = verify(checkpoint, shard, &shard->index.tensors[k], err);
      if (status != BL_OK) {
        return status;
      }
    }
  }
  return BL_OK;
}

static void copy_slice(const place_t *place, const bl_slice_t *slice, float *values) {
  const uint8_t *from = place->shard->map.bytes + place->entry->offset_bytes;
  for (uint64_t i = 0; i < slice->rows * slice->groups; i++) {
    memcpy(values + i * slice->run, from + bl_slice_run(slice, i) * sizeof(float), slice->run * sizeof(float));
  }
}

bl_status_t bl_checkpoint_read_range(const bl_checkpoint_t *checkpoint, const bl_parameter_t *parameter,
                                     bl_checkpoint_part_t part, const bl_slice_t *slice, uint64_t first, uint64_t count,
                                     float *values, bl_error_t *err) {
  place_t place;
  bl_status_t status = find(checkpoint, parameter, part, &place, err);
  const bool begins = count > 0 && first == 0 && bl_slice_run(slice, 0) == 0;
  if (status == BL_OK && begins) {
    status = verify(checkpoint, place.shard, place.entry, err);
  }
  for (uint64_t done = 0, taken; done < count && status == BL_OK; done += taken) {
    const bl_slice_t range = bl_slice_range(slice, first + done, count - done, &taken);
    copy_slice(&place, &range, values + done);
  }
  return status;
}

bl_status_t bl_checkpoint_read(const bl_checkpoint_t *checkpoint, const bl_parameter_t *parameter,
                               bl_checkpoint_part_t part, float *values, bl_error_t *err) {
  const bl_slice_t all = {.rows = 1, .groups = 1, .run = parameter->elements};
  return bl_checkpoint_read_range(checkpoint, parameter, part, &all, 0, parameter->elements, values, err);
}
