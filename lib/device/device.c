// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"

#include "sys/clock.h"

#include <stddef.h>
#include <time.h>

#define SPIN_NS        50000u // shorter waits end without a sleep
#define FIRST_NAP_NS   10000u // doubled up to the longest nap
#define LONGEST_NAP_NS 500000u

bl_status_t bl_arena_create(bl_device_t *device, bl_memory_account_t *account, bl_memory_tag_t tag,
                            bl_arena_kind_t kind, uint64_t bytes, bl_arena_t *arena, bl_error_t *err) {
  return bl_arena_create_at(device, account, tag, kind, bytes, NULL, arena, err);
}

bl_status_t bl_arena_create_at(bl_device_t *device, bl_memory_account_t *account, bl_memory_tag_t tag,
                               bl_arena_kind_t kind, uint64_t bytes, uint8_t *place, bl_arena_t *arena,
                               bl_error_t *err) {
  bl_arena_t made = {.fd = -1, .bytes = bytes, .kind = kind, .tag = tag, .account = account, .device = device};
  made.place = place;
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

bl_status_t bl_arena_fill(const bl_arena_t *arena, uint64_t offset, uint64_t bytes, bl_error_t *err) {
  if (arena->kind != BL_ARENA_SHAREABLE_LATER || arena->device->ops->arena_fill == NULL) {
    return BL_OK;
  }
  return arena->device->ops->arena_fill(arena->device, arena, offset, bytes, err);
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

const char *bl_device_describe(const bl_device_t *device) {
  return device->ops->describe == NULL ? device->ops->name : device->ops->describe(device);
}

bl_status_t bl_device_copy(bl_device_t *device, bl_device_stream_t *stream, void *to, const void *from, uint64_t bytes,
                           bl_error_t *err) {
  return bytes == 0 ? BL_OK : device->ops->copy(device, stream, to, from, bytes, err);
}

bl_status_t bl_device_fill(bl_device_t *device, bl_device_stream_t *stream, void *to, uint8_t value, uint64_t bytes,
                           bl_error_t *err) {
  return bytes == 0 ? BL_OK : device->ops->fill(device, stream, to, value, bytes, err);
}

bl_status_t bl_device_stream_create(bl_device_t *device, bl_device_stream_kind_t kind, bl_device_stream_t **stream,
                                    bl_error_t *err) {
  if (device->ops->stream_create == NULL) {
    *stream = NULL;
    return BL_OK;
  }
  return device->ops->stream_create(device, kind, stream, err);
}

void bl_device_stream_destroy(bl_device_t *device, bl_device_stream_t *stream) {
  if (stream != NULL) {
    device->ops->stream_destroy(device, stream);
  }
}

bl_status_t bl_device_stream_wait_event(bl_device_t *device, bl_device_stream_t *stream, bl_device_event_t *event,
                                        bl_error_t *err) {
  return stream == NULL || event == NULL ? BL_OK : device->ops->stream_wait_event(device, stream, event, err);
}

bl_status_t bl_device_event_create(bl_device_t *device, bool timed, bl_device_event_t **event, bl_error_t *err) {
  if (device->ops->event_create == NULL) {
    *event = NULL;
    return BL_OK;
  }
  return device->ops->event_create(device, timed, event, err);
}

void bl_device_event_destroy(bl_device_t *device, bl_device_event_t *event) {
  if (event != NULL) {
    device->ops->event_destroy(device, event);
  }
}

bl_status_t bl_device_event_record(bl_device_t *device, bl_device_event_t *event, bl_device_stream_t *stream,
                                   bl_error_t *err) {
  return event == NULL ? BL_OK : device->ops->event_record(device, event, stream, err);
}

bl_status_t bl_device_event_query(bl_device_t *device, bl_device_event_t *event, bool *done, bl_error_t *err) {
  if (event == NULL) {
    *done = true;
    return BL_OK;
  }
  return device->ops->event_query(device, event, done, err);
}

static void nap(uint64_t ns) {
  struct timespec time = {.tv_nsec = (long)ns};
  (void)nanosleep(&time, NULL);
}

bl_status_t bl_device_event_wait(bl_device_t *device, bl_device_event_t *event, uint64_t deadline_ns, bl_error_t *err) {
  const uint64_t start_ns = event == NULL ? 0 : bl_clock_now_ns();
  uint64_t nap_ns = FIRST_NAP_NS;
  for (;;) {
    bool done;
    bl_status_t status = bl_device_event_query(device, event, &done, err);
    if (status != BL_OK || done) {
      return status;
    }
    uint64_t now_ns = bl_clock_now_ns();
    if (now_ns >= deadline_ns) {
      return bl_error_set(err, BL_DEADLINE, "%s: work that was queued is not over after %llu ms", device->ops->name,
                          (unsigned long long)((now_ns - start_ns) / BL_NS_PER_MS));
    }
    if (now_ns - start_ns > SPIN_NS) {
      nap(nap_ns < deadline_ns - now_ns ? nap_ns : deadline_ns - now_ns);
      nap_ns = 2 * nap_ns < LONGEST_NAP_NS ? 2 * nap_ns : LONGEST_NAP_NS;
    }
  }
}

bl_status_t bl_device_event_elapsed(bl_device_t *device, bl_device_event_t *from, bl_device_event_t *to, uint64_t *ns,
                                    bl_error_t *err) {
  if (from == NULL || to == NULL) {
    *ns = 0;
    return BL_OK;
  }
  return device->ops->event_elapsed(device, from, to, ns, err);
}
