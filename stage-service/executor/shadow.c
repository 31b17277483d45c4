// SPDX-License-Identifier: Apache-2.0
#include "executor/shadow.h"

#include "base/bytes.h"

static uint64_t aligned(uint64_t bytes) {
  return bl_align_up(bytes, BL_CACHE_LINE_BYTES);
}

// A part of the copy.
typedef struct part {
  float *live;
  uint64_t bytes;
} part_t;

#define PARTS 4

// Lists what a chunk updates.
static void list_parts(const bl_engine_t *engine, const bl_chunk_t *chunk, part_t parts[PARTS]) {
  const bl_chunk_sizes_t sizes = bl_chunk_sizes(chunk);
  const bl_chunk_arenas_t *live = bl_chunk_arenas(chunk);
  parts[0] = (part_t){live->weights, engine->host != NULL ? 0 : sizes.resident_bytes};
  parts[1] = (part_t){live->masters, sizes.master_bytes};
  parts[2] = (part_t){live->first_moments, sizes.moment_bytes};
  parts[3] = (part_t){live->second_moments, sizes.moment_bytes};
}

static bl_status_t copy(bl_engine_t *engine, void *live, uint8_t *kept, uint64_t bytes, bool back, bl_error_t *err) {
  bl_device_t *device = bl_engine_updating_device(engine);
  return bl_device_copy(device, engine->host != NULL ? NULL : engine->stream, back ? live : kept,
                        back ? (void *)kept : live, bytes, err);
}

// Copies in or out.
static bl_status_t copy_all(bl_engine_t *engine, bool back, bl_error_t *err) {
  uint8_t *kept = engine->shadow.base;
  bl_status_t status = BL_OK;
  for (uint32_t i = 0; i < engine->chunk_count && status == BL_OK; i++) {
    part_t parts[PARTS];
    list_parts(engine, engine->chunks[i].chunk, parts);
    for (size_t k = 0; k < PARTS && status == BL_OK; k++) {
      status = parts[k].bytes > 0 ? copy(engine, parts[k].live, kept, parts[k].bytes, back, err) : BL_OK;
      kept += aligned(parts[k].bytes);
    }
  }
  return status;
}

bl_status_t bl_shadow_keep(bl_engine_t *engine, bl_error_t *err) {
  return copy_all(engine, false, err);
}

bl_status_t bl_shadow_restore(bl_engine_t *engine, bl_error_t *err) {
  bl_status_t status = copy_all(engine, true, err);
  if (status != BL_OK) {
    return status;
  }
  const bool gathered = bl_engine_shares_masters(engine); // then the next run brings what products read
  for (uint32_t i = 0; i < engine->chunk_count && !gathered; i++) {
    bl_chunk_weights_changed(engine->chunks[i].chunk);
  }
  return bl_engine_finish(engine, err);
}
