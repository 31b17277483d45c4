// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/restore.h"

#include <stdlib.h>

// Reads elements of a part into their place. `buffer`: for a place that the CPU cannot write; else NULL.
static bl_status_t restore(const bl_checkpoint_t *checkpoint, const bl_chunk_parameter_t *p, bl_checkpoint_part_t part,
                           bl_shard_range_t range, bl_device_t *device, float *buffer, float *to, bl_error_t *err) {
  bl_status_t status = bl_checkpoint_read_range(checkpoint, &p->parameter, part, &p->slice, range.first, range.count,
                                                buffer == NULL ? to : buffer, err);
  if (status == BL_OK && buffer != NULL) {
    status = bl_device_copy(device, NULL, to, buffer, range.count * sizeof(float), err);
  }
  return status;
}

static uint64_t largest(const bl_chunk_t *chunk) {
  uint64_t elements = 0;
  for (uint32_t i = 0; i < bl_chunk_parameter_count(chunk); i++) {
    bl_chunk_parameter_t p = bl_chunk_parameter(chunk, i);
    elements = p.elements > elements ? p.elements : elements;
  }
  return elements;
}

bl_status_t bl_chunk_restore(bl_chunk_t *chunk, const bl_checkpoint_t *checkpoint, bl_device_t *device,
                             bl_error_t *err) {
  bl_status_t status = BL_OK;
  float *buffer = device->host_memory ? NULL : malloc((largest(chunk) + 1) * sizeof *buffer);
  if (buffer == NULL && !device->host_memory) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory to read the largest tensor of a checkpoint into");
  }
  for (uint32_t i = 0; i < bl_chunk_parameter_count(chunk) && status == BL_OK; i++) {
    bl_chunk_parameter_t p = bl_chunk_parameter(chunk, i);
    float *parts[BL_CHECKPOINT_PARTS] = {[BL_CHECKPOINT_WEIGHT] = p.weight,
                                         [BL_CHECKPOINT_FIRST_MOMENT] = p.first_moment,
                                         [BL_CHECKPOINT_SECOND_MOMENT] = p.second_moment};
    for (int part = 0; part < BL_CHECKPOINT_PARTS && status == BL_OK; part++) {
      const bl_shard_range_t all = {.count = p.elements};
      if (parts[part] != NULL) { // otherwise another copy has it
        status = restore(checkpoint, &p, (bl_checkpoint_part_t)part, part == BL_CHECKPOINT_WEIGHT ? all : p.range,
                         device, buffer, parts[part], err);
      }
    }
  }
  free(buffer);
  if (status == BL_OK) {
    bl_chunk_weights_changed(chunk);
  }
  return status;
}
