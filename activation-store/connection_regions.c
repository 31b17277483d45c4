// SPDX-License-Identifier: Apache-2.0
// The memory that holders register: mapped on a transfer thread, unmapped when nothing reads it any more.
#include "connections_core.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void tell(bl_connection_t *connection, bl_frame_kind_t kind, uint32_t number, const bl_error_t *err) {
  bl_frame_t frame = {.kind = kind, .region = number, .status = err != NULL ? err->status : BL_OK};
  bl__connection_put(connection, &frame, err != NULL && err->status != BL_OK ? err->text : NULL);
}

static void unmap(bl__region_t *region) {
  bl_peer_memory_close(&region->map);
  if (region->fd >= 0) {
    close(region->fd);
  }
  region->fd = -1;
  region->used = region->up = region->unregistering = false;
}

static void finish_hiding(bl__region_t *region) {
  bool asked = region->asked;
  unmap(region);
  region->asked = false;
  if (asked && !region->connection->gone) {
    tell(region->connection, BL_FRAME_UNREGISTERED, region->number, NULL);
    bl__connection_flush(region->connection);
  }
}

void bl__region_release(bl__region_t *region) {
  region->users--;
  if (region->users == 0 && region->unregistering) {
    finish_hiding(region);
  }
}

static void map_memory(bl_work_t *work) {
  bl__region_t *region = BL_WORK_OWNER(work, bl__region_t, mapping);
  const bl_connection_t *connection = region->connection;
  bl_device_t *device = connection->by == BL_PATH_CUDA_IPC ? connection->connections->device : NULL;
  region->err.status = bl_peer_memory_open(&region->map, device, region->fd, region->bytes, &region->err);
  close(region->fd);
  region->fd = -1;
}

static void memory_mapped(bl_message_t *message) {
  bl__region_t *region = BL_MESSAGE_OWNER(message, bl__region_t, mapping.done);
  bl_connection_t *connection = region->connection;
  if (!connection->gone) {
    tell(connection, BL_FRAME_REGISTERED, region->number, &region->err);
    bl__connection_flush(connection);
  }
  region->up = region->err.status == BL_OK;
  region->unregistering = region->unregistering || !region->up;
  bl__region_release(region);
  connection->users--; // not before, because the frames above may end the connection
  bl__connection_free_if_unused(connection);
}

// Returns the entry of a number, or NULL if memory is short.
static bl__region_t *entry(bl_connection_t *connection, uint32_t number) {
  if (number >= connection->region_capacity) {
    uint32_t capacity = connection->region_capacity == 0 ? 16 : connection->region_capacity;
    while (capacity <= number) {
      capacity *= 2;
    }
    bl__region_t **regions = realloc(connection->regions, capacity * sizeof(bl__region_t *));
    if (regions == NULL) {
      return NULL;
    }
    memset(regions + connection->region_capacity, 0, (capacity - connection->region_capacity) * sizeof(bl__region_t *));
    connection->regions = regions;
    connection->region_capacity = capacity;
  }
  if (connection->regions[number] == NULL) {
    connection->regions[number] = calloc(1, sizeof(bl__region_t));
  }
  return connection->regions[number];
}

void bl__region_register(bl_connection_t *connection, const bl_frame_t *frame) {
  bl_error_t err = {0};
  int fd = bl_stream_take_descriptor(&connection->stream);
  bl__region_t *region = entry(connection, frame->region);
  if (!connection->shm) {
    (void)bl_error_set(&err, BL_PRECONDITION, "memory can be shown over a unix socket only");
  } else if (fd < 0) {
    (void)bl_error_set(&err, BL_INVALID, "source %" PRIu32 " came without a descriptor", frame->region);
  } else if (region == NULL) {
    (void)bl_error_set(&err, BL_EXHAUSTED, "the store has no memory for source %" PRIu32, frame->region);
  } else if (region->used) {
    (void)bl_error_set(&err, BL_PRECONDITION, "source %" PRIu32 " is shown already", frame->region);
  }
  if (err.status != BL_OK) {
    if (fd >= 0) {
      close(fd);
    }
    tell(connection, BL_FRAME_REGISTERED, frame->region, &err);
    return;
  }
  *region = (bl__region_t){.mapping = {.run = map_memory, .done = {.handle = memory_mapped}},
                           .connection = connection,
                           .number = frame->region,
                           .used = true,
                           .users = 1,
                           .fd = fd,
                           .bytes = frame->bytes};
  connection->users++;
  bl_pool_submit(connection->connections->pool, &region->mapping);
}

void bl__region_unregister(bl_connection_t *connection, const bl_frame_t *frame) {
  bl__region_t *region = frame->region < connection->region_capacity ? connection->regions[frame->region] : NULL;
  if (region == NULL || !region->used) {
    tell(connection, BL_FRAME_UNREGISTERED, frame->region, NULL); // gone already, as requested
    return;
  }
  region->unregistering = region->asked = true;
  if (region->users == 0) {
    finish_hiding(region);
  }
}

bl__region_t *bl__region_at(const bl_connection_t *connection, uint32_t number, uint64_t offset, uint64_t bytes) {
  bl__region_t *region = number < connection->region_capacity ? connection->regions[number] : NULL;
  const bool is_up = region != NULL && region->used && region->up && !region->unregistering;
  return is_up && bytes > 0 && offset <= region->map.bytes && bytes <= region->map.bytes - offset ? region : NULL;
}

void bl__regions_free(bl_connection_t *connection) {
  for (uint32_t i = 0; i < connection->region_capacity; i++) {
    if (connection->regions[i] != NULL && connection->regions[i]->used) {
      unmap(connection->regions[i]);
    }
    free(connection->regions[i]);
  }
  free(connection->regions);
  connection->regions = NULL;
  connection->region_capacity = 0;
}
