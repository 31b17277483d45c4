// SPDX-License-Identifier: Apache-2.0
// The rooms of the session, sorted by id. Every bl__ function here is called with the client's mutex held.
#include "client/client_core.h"

#include <stdlib.h>
#include <string.h>

// The first entry with an id of at least `id`.
static size_t lower_bound(const bl_client_t *client, uint64_t id) {
  size_t low = 0, high = client->room_count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (client->rooms[middle].id < id) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

bl__room_t *bl__room_find(bl_client_t *client, uint64_t id) {
  size_t at = lower_bound(client, id);
  return at < client->room_count && client->rooms[at].id == id ? &client->rooms[at] : NULL;
}

void bl__room_settle(bl_client_t *client, uint64_t id, bl__room_state_t state, uint64_t generation) {
  bl__room_t *room = bl__room_find(client, id);
  if (room != NULL && generation == 0) {
    size_t index = (size_t)(room - client->rooms);
    memmove(room, room + 1, (client->room_count - index - 1) * sizeof *room);
    client->room_count--;
  } else if (room != NULL) {
    room->state = state;
    room->generation = generation;
  }
}

bl_client_room_state_t bl_client_room_state(bl_client_t *client, uint64_t room) {
  static const bl_client_room_state_t states[] = {[BL__ROOM_EMPTY] = BL_CLIENT_ROOM_EMPTY,
                                                  [BL__ROOM_EVICTING] = BL_CLIENT_ROOM_EVICTING,
                                                  [BL__ROOM_FULL] = BL_CLIENT_ROOM_FULL,
                                                  [BL__ROOM_LOADING] = BL_CLIENT_ROOM_LOADING,
                                                  [BL__ROOM_UNKNOWN] = BL_CLIENT_ROOM_UNKNOWN};
  pthread_mutex_lock(&client->mutex);
  const bl__room_t *found = bl__room_find(client, room);
  bl_client_room_state_t state = found != NULL ? states[found->state] : BL_CLIENT_ROOM_NONE;
  pthread_mutex_unlock(&client->mutex);
  return state;
}

void bl__rooms_begin(bl_client_t *client) {
  for (size_t i = 0; i < client->room_count; i++) {
    client->rooms[i].listed = false;
  }
}

bool bl__rooms_add(bl_client_t *client, uint64_t id, uint64_t generation, uint64_t bytes, bool empty) {
  size_t at = lower_bound(client, id);
  if (at < client->room_count && client->rooms[at].id == id) {
    bl__room_t *room = &client->rooms[at];
    room->listed = true;
    if (room->state == BL__ROOM_UNKNOWN && empty) {
      room->state = BL__ROOM_EMPTY;
      room->generation = generation;
    }
    return true;
  }
  if (client->room_count == client->room_capacity) {
    size_t capacity = client->room_capacity == 0 ? 64 : 2 * client->room_capacity;
    bl__room_t *rooms = capacity <= BL_CLIENT_ROOMS ? realloc(client->rooms, capacity * sizeof *rooms) : NULL;
    if (rooms == NULL) {
      return false;
    }
    client->rooms = rooms;
    client->room_capacity = capacity;
  }
  memmove(&client->rooms[at + 1], &client->rooms[at], (client->room_count - at) * sizeof *client->rooms);
  client->rooms[at] = (bl__room_t){.id = id,
                                   .generation = generation,
                                   .bytes = bytes,
                                   .state = empty ? BL__ROOM_EMPTY : BL__ROOM_UNKNOWN,
                                   .listed = true};
  client->room_count++;
  return true;
}

void bl__rooms_end(bl_client_t *client) {
  size_t kept = 0;
  for (size_t i = 0; i < client->room_count; i++) {
    if (client->rooms[i].listed) {
      client->rooms[kept++] = client->rooms[i];
    }
  }
  client->room_count = kept;
}
