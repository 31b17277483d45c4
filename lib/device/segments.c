// SPDX-License-Identifier: Apache-2.0
#include "device/segments.h"

#include "base/bytes.h"

#include <stdlib.h>

#define LARGE_STEP_BYTES (2u << 20) // so that large pieces can have large pages

// Returns the device whose addresses are reserved. Staging is always memory of the host.
static bl_device_t *addresses_of(bl_device_t *device, bl_arena_kind_t kind) {
  return bl_arena_kind_is_staging(kind) ? bl_device_host() : device;
}

bl_status_t bl_segments_init(bl_segments_t *segments, bl_device_t *device, bl_memory_account_t *account,
                             bl_memory_tag_t tag, bl_arena_kind_t kind, uint32_t capacity, uint64_t bytes,
                             bl_error_t *err) {
  bl_device_t *where = addresses_of(device, kind);
  bl_segments_t made = {.bytes = bytes,
                        .stride_bytes =
                            bl_align_up(bytes, bytes < LARGE_STEP_BYTES ? where->place_bytes : LARGE_STEP_BYTES),
                        .capacity = capacity,
                        .kind = kind,
                        .tag = tag,
                        .account = account,
                        .device = device};
  made.arenas = calloc((size_t)capacity + 1, sizeof *made.arenas);
  if (made.arenas == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for a table of %u pieces", capacity);
  }
  if (capacity > 0 && bytes > 0) {
    bl_status_t status = where->ops->range_reserve(where, capacity * made.stride_bytes, &made.base, err);
    if (status != BL_OK) {
      free(made.arenas);
      return status;
    }
  }
  *segments = made;
  return BL_OK;
}

static void drop_above(bl_segments_t *segments, uint32_t count) {
  while (segments->count > count) {
    bl_arena_destroy(&segments->arenas[--segments->count]);
  }
}

void bl_segments_cleanup(bl_segments_t *segments) {
  drop_above(segments, 0);
  if (segments->base != NULL) {
    bl_device_t *where = addresses_of(segments->device, segments->kind);
    where->ops->range_release(where, segments->base, segments->capacity * segments->stride_bytes);
  }
  free(segments->arenas);
  *segments = (bl_segments_t){0};
}

bl_status_t bl_segments_resize(bl_segments_t *segments, uint32_t count, bl_error_t *err) {
  if (count > segments->capacity) {
    return bl_error_set(err, BL_EXHAUSTED, "%u pieces of %s wanted where there are addresses for %u", count,
                        bl_memory_tag_name(segments->tag), segments->capacity);
  }
  const uint32_t before = segments->count;
  while (segments->count < count) {
    bl_status_t status =
        bl_arena_create_at(segments->device, segments->account, segments->tag, segments->kind, segments->bytes,
                           bl_segments_at(segments, segments->count), &segments->arenas[segments->count], err);
    if (status != BL_OK) {
      drop_above(segments, before);
      return status;
    }
    segments->count++;
  }
  drop_above(segments, count);
  return BL_OK;
}
