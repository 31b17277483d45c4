// SPDX-License-Identifier: Apache-2.0
#include "executor/shadow.h"

#include "base/bytes.h"

static uint64_t aligned(uint64_t bytes) {
  return bl_align_up(bytes, BL_CACHE_LINE_BYTES);
}

// Bytes of a chunk's copy.
static uint64_t bytes_of(const bl_chunk_t *chunk) {
  bl_chunk_sizes_t sizes = bl_chunk_sizes(chunk);
  return aligned(sizes.weight_bytes) + 2 * aligned(sizes.moment_bytes);
}

static bl_status_t copy(bl_engine_t *engine, void *live, uint8_t *kept, uint64_t bytes, bool back, bl_error_t *err) {
  bl_device_t *device = bl_engine_updating_device(engine);
  return bl_device_copy(device, engine->host != NULL ? NULL : engine->stream, back ? live : kept,
                        back ? (void *)kept : live, bytes, err);
}

// Copies in or out. Weights and moments of a chunk are contiguous each.
static bl_status_t copy_all(bl_engine_t *engine, bool back, bl_error_t *err) {
  uint8_t *kept = engine->shadow.base;
  bl_status_t status = BL_OK;
  for (uint32_t i = 0; i < engine->chunk_count && status == BL_OK; i++) {
    bl_chunk_t *chunk = engine->chunks[i].chunk;
    bl_chunk_sizes_t sizes = bl_chunk_sizes(chunk);
    const bl_chunk_arenas_t *live = bl_chunk_arenas(chunk);
    uint8_t *moments = kept + aligned(sizes.weight_bytes), *second = moments + aligned(sizes.moment_bytes);
    float *weights = engine->host != NULL ? live->masters : live->weights;
    status = copy(engine, weights, kept, sizes.weight_bytes, back, err);
    if (status == BL_OK) {
      status = copy(engine, live->first_moments, moments, sizes.moment_bytes, back, err);
    }
    if (status == BL_OK) {
      status = copy(engine, live->second_moments, second, sizes.moment_bytes, back, err);
    }
    kept += bytes_of(chunk);
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
  for (uint32_t i = 0; i < engine->chunk_count; i++) {
    bl_chunk_weights_changed(engine->chunks[i].chunk);
  }
  return bl_engine_finish(engine, err);
}
