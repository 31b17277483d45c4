// SPDX-License-Identifier: Apache-2.0
// The rooms that a session has reserved at its store, sorted by id, and what is in each.
// Pure. Thread: the client's mutex is held.
#ifndef BALLAST_CLIENT_ROOMS_H
#define BALLAST_CLIENT_ROOMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum bl__room_state {
  BL__ROOM_EMPTY,
  BL__ROOM_EVICTING,
  BL__ROOM_FULL,
  BL__ROOM_LOADING, // or being released
  BL__ROOM_UNKNOWN, // the store has not said yet
} bl__room_state_t;

typedef struct bl__room {
  uint64_t id, generation, bytes;
  uint64_t block_bytes; // of the block it holds
  bl__room_state_t state;
  bool listed; // while the rooms of an answer are taken over
} bl__room_t;

typedef struct bl__rooms {
  bl__room_t *rooms;
  size_t count, capacity;
} bl__rooms_t;

bl__room_t *bl__room_find(const bl__rooms_t *rooms, uint64_t id); // NULL: there is none
// A generation of 0 means that the room is gone.
void bl__room_settle(bl__rooms_t *rooms, uint64_t id, bl__room_state_t state, uint64_t generation);
// Takes over a list of rooms: begin, one call per room, end. False: no memory, or more than BL_CLIENT_ROOMS.
void bl__rooms_begin(bl__rooms_t *rooms);
bool bl__rooms_add(bl__rooms_t *rooms, uint64_t id, uint64_t generation, uint64_t bytes, bool empty);
void bl__rooms_end(bl__rooms_t *rooms);

#endif
