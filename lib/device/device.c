// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"

#include <stddef.h>

bl_status_t bl_arena_create(bl_device_t *device, bl_memory_account_t *account, bl_memory_tag_t tag,
                            bl_arena_kind_t kind, uint64_t bytes, bl_arena_t *arena, bl_error_t *err) {
  return bl_arena_create_at(device, account, tag, kind, bytes, NULL, arena, err);
}

bl_status_t bl_arena_create_at(bl_device_t *device, bl_memory_account_t *account, bl_memory_tag_t tag,
                               bl_arena_kind_t kind, uint64_t bytes, uint8_t *place, bl_arena_t *arena,
                               bl_error_t *err) {
  bl_arena_t made = {
      .fd = -1, .bytes = bytes, .kind = kind, .place = place, .tag = tag, .account = account, .device = device};
  bl_status_t status = BL_OK;
  if (account != NULL && (status = bl_memory_acquire(account, tag, bytes, err)) != BL_OK) {
    return status;
  }
  if (bytes > 0 && (status = device->ops->arena_map(device, &made, err)) != BL_OK) {
    bl_error_prefix(err, "memory %s", bl_memory_tag_name(tag));
    goto release;
  }
  *arena = made;
  return BL_OK;
release:
  if (account != NULL) {
    bl_memory_release(account, tag, bytes);
  }
  return status;
}

void bl_arena_destroy(bl_arena_t *arena) {
  if (arena->base != NULL) {
    arena->device->ops->arena_unmap(arena->device, arena);
  }
  if (arena->account != NULL) {
    bl_memory_release(arena->account, arena->tag, arena->bytes);
  }
  *arena = (bl_arena_t){.fd = -1};
}

bl_status_t bl_stream_create(bl_device_t *device, bl_stream_t **stream) {
  if (device->ops->stream_create == NULL) {
    *stream = NULL;
    return BL_OK;
  }
  return device->ops->stream_create(device, stream);
}

void bl_stream_destroy(bl_device_t *device, bl_stream_t *stream) {
  if (stream != NULL) {
    device->ops->stream_destroy(device, stream);
  }
}

bl_status_t bl_stream_wait(bl_device_t *device, bl_stream_t *stream) {
  return stream == NULL ? BL_OK : device->ops->stream_wait(device, stream);
}

bl_status_t bl_device_copy(bl_device_t *device, bl_stream_t *stream, void *to, const void *from, uint64_t bytes) {
  return device->ops->copy(device, stream, to, from, bytes);
}
