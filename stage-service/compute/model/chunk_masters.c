// SPDX-License-Identifier: Apache-2.0
// A chunk whose copies share out the masters (bl_resident_shares_masters). Of weights that operations read in fp32
// every copy has all, in `weights`, and updates its range there. Of others it has the masters of its range, in
// `masters`.
//
// Weights that come from elsewhere, from a folder, a checkpoint or other copies, are written to the place of their
// gradients. From there products' weights are packed, as with options.host (chunk_host.c). The next step clears the
// place.
#include "compute/model/chunk_internal.h"
#include "model/resident.h"

static bool copy(bl_chunk_t *chunk, float *to, const float *from, uint64_t elements) {
  bl_error_t err;
  bl_status_t status = bl_device_copy(chunk->device, bl__chunk_stream(chunk), to, from, elements * sizeof(float), &err);
  return bl__chunk_keep(chunk, status, &err);
}

void bl__chunk_take_weights(bl_chunk_t *chunk) {
  bool copied = chunk->sharded;
  for (uint32_t i = 0; i < chunk->parameter_count && copied; i++) {
    const float *from = bl__chunk_gradient(chunk, i);
    const bl_shard_range_t range = bl__chunk_range(chunk, i);
    if (chunk->resident[i] != BL_RESIDENT_NOWHERE) {
      copied = copy(chunk, bl__chunk_weight(chunk, i), from, chunk->places[i].elements);
    } else if (range.count > 0) {
      copied = copy(chunk, bl__chunk_updated(chunk, i), from + range.first, range.count);
    }
  }
}

void bl_chunk_show_weights(bl_chunk_t *chunk) {
  bool copied = chunk->sharded;
  for (uint32_t i = 0; i < chunk->parameter_count && copied; i++) {
    const bl_shard_range_t range = bl__chunk_range(chunk, i);
    if (range.count > 0) {
      copied = copy(chunk, bl__chunk_gradient(chunk, i) + range.first, bl__chunk_updated(chunk, i), range.count);
    }
  }
}
