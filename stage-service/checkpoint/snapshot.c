// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/snapshot.h"

#include "base/copy.h"
#include "job/checkpoint_image.h"

#include <stdlib.h>
#include <string.h>

#define SHARDS 2 // weights, optimizer

typedef struct {
  bl_shard_image_t image;
  bl_tensor_entry_t *entries;
  uint64_t *tiles;
  bl_shard_piece_t *pieces;
  const float **sources; // [image.piece_count]
  char (*names)[BL_CHECKPOINT_NAME_BYTES];
  char *head; // [image.head_bytes]
} shard_t;

struct bl_snapshot {
  shard_t shards[SHARDS];
  bl_device_t *device;
};

static bl_status_t no_memory(bl_error_t *err) {
  return bl_error_set(err, BL_EXHAUSTED, "no memory for the tables of a checkpoint");
}

// Returns the tensor's number in the file, after adding it if it is missing.
static size_t number_of(shard_t *shard, const bl_snapshot_tensor_t *tensor, bl_checkpoint_part_t part) {
  char name[BL_CHECKPOINT_NAME_BYTES];
  bl_checkpoint_tensor_name(&tensor->parameter, part, name);
  for (size_t i = 0; i < shard->image.tensor_count; i++) {
    if (strcmp(shard->names[i], name) == 0) {
      return i;
    }
  }
  const size_t i = shard->image.tensor_count++;
  memcpy(shard->names[i], name, sizeof name);
  shard->entries[i] = (bl_tensor_entry_t){.name = shard->names[i],
                                          .dtype = BL_TENSOR_F32,
                                          .rank = tensor->parameter.rank,
                                          .shape = {tensor->parameter.shape[0], tensor->parameter.shape[1]}};
  shard->tiles[i] = tensor->tile;
  return i;
}

static void add(shard_t *shard, const bl_snapshot_tensor_t *tensor, bl_checkpoint_part_t part) {
  const size_t number = number_of(shard, tensor, part);
  if (tensor->parts[part] != NULL) {
    const size_t i = shard->image.piece_count++;
    shard->pieces[i] = (bl_shard_piece_t){.tensor = number, .slice = tensor->slice};
    shard->sources[i] = tensor->parts[part];
  }
}

static uint64_t piece_bytes(const bl_shard_piece_t *piece) {
  return bl_slice_elements(&piece->slice) * sizeof(float);
}

static bl_status_t make_shard(shard_t *shard, const bl_snapshot_tensor_t *tensors, size_t count,
                              bl_checkpoint_part_t first, bl_checkpoint_part_t last, bl_error_t *err) {
  size_t capacity = count * (size_t)(last - first + 1);
  shard->entries = calloc(capacity + 1, sizeof *shard->entries);
  shard->tiles = calloc(capacity + 1, sizeof *shard->tiles);
  shard->pieces = calloc(capacity + 1, sizeof *shard->pieces);
  shard->sources = calloc(capacity + 1, sizeof *shard->sources);
  shard->names = calloc(capacity + 1, sizeof *shard->names);
  if (shard->entries == NULL || shard->tiles == NULL || shard->pieces == NULL || shard->sources == NULL ||
      shard->names == NULL) {
    return no_memory(err);
  }
  for (int part = (int)first; part <= (int)last; part++) {
    for (size_t i = 0; i < count; i++) {
      add(shard, &tensors[i], (bl_checkpoint_part_t)part);
    }
  }
  bl_shard_image_t *image = &shard->image;
  size_t head_bytes;
  bl_status_t status = bl_safetensors_write_header(shard->entries, image->tensor_count, &shard->head, &head_bytes, err);
  if (status != BL_OK) {
    return status;
  }
  image->tensors = shard->entries;
  image->tiles = shard->tiles;
  image->pieces = shard->pieces;
  image->head_bytes = head_bytes;
  image->size_bytes = image->image_bytes = head_bytes;
  for (size_t i = 0; i < image->tensor_count; i++) {
    image->size_bytes += shard->entries[i].size_bytes;
  }
  for (size_t i = 0; i < image->piece_count; i++) {
    shard->pieces[i].offset_bytes = image->image_bytes;
    image->image_bytes += piece_bytes(&shard->pieces[i]);
  }
  return BL_OK;
}

bl_status_t bl_snapshot_create(const bl_snapshot_tensor_t *tensors, size_t count, bool writes_head, bl_device_t *device,
                               bl_snapshot_t **snapshot, bl_error_t *err) {
  bl_snapshot_t *made = calloc(1, sizeof *made);
  if (made == NULL) {
    return no_memory(err);
  }
  made->device = device;
  bl_status_t status = make_shard(&made->shards[BL_CHECKPOINT_SHARD_WEIGHTS], tensors, count, BL_CHECKPOINT_WEIGHT,
                                  BL_CHECKPOINT_WEIGHT, err);
  if (status == BL_OK) {
    status = make_shard(&made->shards[BL_CHECKPOINT_SHARD_OPTIMIZER], tensors, count, BL_CHECKPOINT_FIRST_MOMENT,
                        BL_CHECKPOINT_SECOND_MOMENT, err);
  }
  if (status != BL_OK) {
    bl_snapshot_destroy(made);
    return status;
  }
  for (size_t i = 0; i < SHARDS; i++) {
    made->shards[i].image.writes_head = writes_head;
  }
  *snapshot = made;
  return BL_OK;
}

void bl_snapshot_destroy(bl_snapshot_t *snapshot) {
  if (snapshot == NULL) {
    return;
  }
  for (size_t i = 0; i < SHARDS; i++) {
    shard_t *shard = &snapshot->shards[i];
    free(shard->entries);
    free(shard->tiles);
    free(shard->pieces);
    free(shard->sources);
    free(shard->names);
    free(shard->head);
  }
  free(snapshot);
}

static uint64_t buffer_bytes_of(const shard_t *shard) {
  return bl_checkpoint_image_buffer_bytes(shard->image.head_bytes, shard->image.image_bytes);
}

uint64_t bl_snapshot_bytes(const bl_snapshot_t *snapshot) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < SHARDS; i++) {
    bytes += buffer_bytes_of(&snapshot->shards[i]);
  }
  return bytes;
}

void bl_snapshot_use_memory(bl_snapshot_t *snapshot, uint8_t *memory) {
  for (size_t i = 0; i < SHARDS; i++) {
    shard_t *shard = &snapshot->shards[i];
    shard->image.bytes = memory + bl_checkpoint_image_gap(shard->image.head_bytes);
    memcpy(shard->image.bytes, shard->head, shard->image.head_bytes);
    memory += buffer_bytes_of(shard);
  }
}

// Copies a tensor to its bytes in the image.
static bl_status_t copy(bl_device_t *device, uint8_t *to, const float *from, uint64_t bytes, bl_error_t *err) {
  if (!device->host_memory) {
    return bl_device_copy(device, NULL, to, from, bytes, err);
  }
  bl_copy_past_cache(to, from, bytes);
  return BL_OK;
}

bl_status_t bl_snapshot_take(bl_snapshot_t *snapshot, bl_error_t *err) {
  bl_status_t status = BL_OK;
  for (size_t i = 0; i < SHARDS; i++) {
    const shard_t *shard = &snapshot->shards[i];
    for (size_t k = 0; k < shard->image.piece_count && status == BL_OK; k++) {
      status = copy(snapshot->device, shard->image.bytes + shard->pieces[k].offset_bytes, shard->sources[k],
                    piece_bytes(&shard->pieces[k]), err);
    }
  }
  return status;
}

const bl_shard_image_t *bl_snapshot_image(const bl_snapshot_t *snapshot, bl_checkpoint_shard_kind_t kind) {
  return &snapshot->shards[kind].image;
}
