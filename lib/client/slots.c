// SPDX-License-Identifier: Apache-2.0
#include "client/slots.h"

#include "client/client.h"

#include <stdlib.h>
#include <string.h>

// Returns the first entry with an id of at least `id`.
static size_t lower_bound(const bl__slots_t *slots, uint64_t id) {
  size_t low = 0, high = slots->count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (slots->slots[middle].id < id) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

bl__slot_t *bl__slot_find(const bl__slots_t *slots, uint64_t id) {
  size_t at = lower_bound(slots, id);
  return at < slots->count && slots->slots[at].id == id ? &slots->slots[at] : NULL;
}

void bl__slot_set_state(bl__slots_t *slots, uint64_t id, bl__slot_state_t state, uint64_t generation) {
  bl__slot_t *slot = bl__slot_find(slots, id);
  if (slot != NULL && generation == 0) {
    size_t index = (size_t)(slot - slots->slots);
    memmove(slot, slot + 1, (slots->count - index - 1) * sizeof *slot);
    slots->count--;
  } else if (slot != NULL) {
    slot->state = state;
    slot->generation = generation;
  }
}

void bl__slots_begin(bl__slots_t *slots) {
  for (size_t i = 0; i < slots->count; i++) {
    slots->slots[i].listed = false;
  }
}

bool bl__slots_add(bl__slots_t *slots, uint64_t id, uint64_t generation, uint64_t bytes, bool empty) {
  size_t at = lower_bound(slots, id);
  if (at < slots->count && slots->slots[at].id == id) {
    bl__slot_t *slot = &slots->slots[at];
    slot->listed = true;
    if (slot->state == BL__SLOT_UNKNOWN && empty) {
      slot->state = BL__SLOT_EMPTY;
      slot->generation = generation;
    }
    return true;
  }
  if (slots->count == slots->capacity) {
    size_t capacity = slots->capacity == 0 ? 64 : 2 * slots->capacity;
    bl__slot_t *larger = capacity <= BL_CLIENT_SLOTS ? realloc(slots->slots, capacity * sizeof *larger) : NULL;
    if (larger == NULL) {
      return false;
    }
    slots->slots = larger;
    slots->capacity = capacity;
  }
  memmove(&slots->slots[at + 1], &slots->slots[at], (slots->count - at) * sizeof *slots->slots);
  slots->slots[at] = (bl__slot_t){.id = id,
                                  .generation = generation,
                                  .bytes = bytes,
                                  .state = empty ? BL__SLOT_EMPTY : BL__SLOT_UNKNOWN,
                                  .listed = true};
  slots->count++;
  return true;
}

void bl__slots_end(bl__slots_t *slots) {
  size_t kept = 0;
  for (size_t i = 0; i < slots->count; i++) {
    if (slots->slots[i].listed) {
      slots->slots[kept++] = slots->slots[i];
    }
  }
  slots->count = kept;
}
