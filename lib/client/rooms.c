// SPDX-License-Identifier: Apache-2.0
#include "client/rooms.h"

#include "client/client.h"

#include <stdlib.h>
#include <string.h>

// The first entry with an id of at least `id`.
static size_t lower_bound(const bl__rooms_t *rooms, uint64_t id) {
  size_t low = 0, high = rooms->count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (rooms->rooms[middle].id < id) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

bl__room_t *bl__room_find(const bl__rooms_t *rooms, uint64_t id) {
  size_t at = lower_bound(rooms, id);
  return at < rooms->count && rooms->rooms[at].id == id ? &rooms->rooms[at] : NULL;
}

void bl__room_settle(bl__rooms_t *rooms, uint64_t id, bl__room_state_t state, uint64_t generation) {
  bl__room_t *room = bl__room_find(rooms, id);
  if (room != NULL && generation == 0) {
    size_t index = (size_t)(room - rooms->rooms);
    memmove(room, room + 1, (rooms->count - index - 1) * sizeof *room);
    rooms->count--;
  } else if (room != NULL) {
    room->state = state;
    room->generation = generation;
  }
}

void bl__rooms_begin(bl__rooms_t *rooms) {
  for (size_t i = 0; i < rooms->count; i++) {
    rooms->rooms[i].listed = false;
  }
}

bool bl__rooms_add(bl__rooms_t *rooms, uint64_t id, uint64_t generation, uint64_t bytes, bool empty) {
  size_t at = lower_bound(rooms, id);
  if (at < rooms->count && rooms->rooms[at].id == id) {
    bl__room_t *room = &rooms->rooms[at];
    room->listed = true;
    if (room->state == BL__ROOM_UNKNOWN && empty) {
      room->state = BL__ROOM_EMPTY;
      room->generation = generation;
    }
    return true;
  }
  if (rooms->count == rooms->capacity) {
    size_t capacity = rooms->capacity == 0 ? 64 : 2 * rooms->capacity;
    bl__room_t *larger = capacity <= BL_CLIENT_ROOMS ? realloc(rooms->rooms, capacity * sizeof *larger) : NULL;
    if (larger == NULL) {
      return false;
    }
    rooms->rooms = larger;
    rooms->capacity = capacity;
  }
  memmove(&rooms->rooms[at + 1], &rooms->rooms[at], (rooms->count - at) * sizeof *rooms->rooms);
  rooms->rooms[at] = (bl__room_t){.id = id,
                                  .generation = generation,
                                  .bytes = bytes,
                                  .state = empty ? BL__ROOM_EMPTY : BL__ROOM_UNKNOWN,
                                  .listed = true};
  rooms->count++;
  return true;
}

void bl__rooms_end(bl__rooms_t *rooms) {
  size_t kept = 0;
  for (size_t i = 0; i < rooms->count; i++) {
    if (rooms->rooms[i].listed) {
      rooms->rooms[kept++] = rooms->rooms[i];
    }
  }
  rooms->count = kept;
}
