// SPDX-License-Identifier: Apache-2.0
// The slots that a session has reserved at its store, sorted by id, and what is in each.
// Pure. Thread: the client's mutex is held.
#ifndef BALLAST_CLIENT_SLOTS_H
#define BALLAST_CLIENT_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum bl__slot_state {
  BL__SLOT_EMPTY,
  BL__SLOT_EVICTING,
  BL__SLOT_FULL,
  BL__SLOT_LOADING, // or being released
  BL__SLOT_UNKNOWN, // the store has not reported it yet
} bl__slot_state_t;

typedef struct bl__slot {
  uint64_t id, generation, bytes;
  uint64_t block_bytes; // of the block it holds
  bl__slot_state_t state;
  bool listed; // in the store's list that is being applied
} bl__slot_t;

typedef struct bl__slots {
  bl__slot_t *slots;
  size_t count, capacity;
} bl__slots_t;

bl__slot_t *bl__slot_find(const bl__slots_t *slots, uint64_t id); // NULL: no such slot
// Sets state and generation of a slot. Generation 0: the slot no longer exists.
void bl__slot_set_state(bl__slots_t *slots, uint64_t id, bl__slot_state_t state, uint64_t generation);
// Applies a list of slots of the store: begin, one call per slot, end. False: no memory, or more than BL_CLIENT_SLOTS.
void bl__slots_begin(bl__slots_t *slots);
bool bl__slots_add(bl__slots_t *slots, uint64_t id, uint64_t generation, uint64_t bytes, bool empty);
void bl__slots_end(bl__slots_t *slots);

#endif
