// SPDX-License-Identifier: Apache-2.0
#include "schedule/balance/acceptors.h"

#include "base/words.h"

#include <stdlib.h>
#include <string.h>

#define UNSEEN UINT32_MAX

typedef struct table {
  const bl_balance_request_t *request;
  uint32_t stages;
  uint32_t *reserved;   // [stages * stores]
  uint32_t *free_slots; // [stores] lent and not reserved
  // Breadth-first search from the stage that lacks a slot: stage -> store that it reaches -> stage with a slot there
  uint32_t *store_from; // [stores] stage from which the store was reached
  uint32_t *stage_from; // [stages] store from which the stage was reached
  uint32_t *queue;      // [stages]
} table_t;

static uint32_t *cell(const table_t *t, uint32_t stage, uint32_t store) {
  return &t->reserved[(size_t)stage * t->request->stores + store];
}

static void take_preferred(table_t *t, uint32_t stage, uint32_t *lacking) {
  for (uint32_t r = 0; *lacking > 0 && r < t->request->reach_count; r++) {
    uint16_t store = t->request->reach[(size_t)stage * t->request->reach_count + r];
    if (store != BL_STORE_NONE) {
      uint32_t taken = *lacking < t->free_slots[store] ? *lacking : t->free_slots[store];
      *cell(t, stage, store) += taken;
      t->free_slots[store] -= taken;
      *lacking -= taken;
    }
  }
}

// Moves one reservation along the path that ends at `store`, which has a free slot.
static void shift_along(table_t *t, uint32_t store, uint32_t root) {
  t->free_slots[store]--;
  for (;;) {
    uint32_t stage = t->store_from[store];
    (*cell(t, stage, store))++;
    if (stage == root) {
      return;
    }
    store = t->stage_from[stage];
    (*cell(t, stage, store))--;
  }
}

// Finds one more slot for `root` and moves other stages' reservations if needed. False if there is none.
static bool augment(table_t *t, uint32_t root) {
  memset(t->store_from, 0xff, t->request->stores * sizeof *t->store_from);
  memset(t->stage_from, 0xff, t->stages * sizeof *t->stage_from);
  uint32_t head = 0, tail = 0;
  t->queue[tail++] = root;
  while (head < tail) {
    uint32_t stage = t->queue[head++];
    for (uint32_t r = 0; r < t->request->reach_count; r++) {
      uint16_t store = t->request->reach[(size_t)stage * t->request->reach_count + r];
      if (store == BL_STORE_NONE || t->store_from[store] != UNSEEN) {
        continue;
      }
      t->store_from[store] = stage;
      if (t->free_slots[store] > 0) {
        shift_along(t, store, root);
        return true;
      }
      for (uint32_t other = 0; other < t->stages; other++) {
        if (other != root && t->stage_from[other] == UNSEEN && *cell(t, other, store) > 0) {
          t->stage_from[other] = store;
          t->queue[tail++] = other;
        }
      }
    }
  }
  return false;
}

bl_status_t bl__reserve(const bl_balance_request_t *request, uint32_t stages, const uint32_t *wanted,
                        uint32_t *reserved, bool *rivals, bl_error_t *err) {
  table_t t = {.request = request, .stages = stages};
  bl_status_t status = BL_OK;
  t.reserved = reserved;
  t.free_slots = malloc((2 * (size_t)request->stores + 2 * (size_t)stages + 1) * sizeof *t.free_slots);
  if (t.free_slots == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "out of memory for reservations at %u stores", request->stores);
  }
  if (request->stores > 0) {
    memcpy(t.free_slots, request->lent, request->stores * sizeof *t.free_slots);
  }
  t.store_from = t.free_slots + request->stores;
  t.stage_from = t.store_from + request->stores;
  t.queue = t.stage_from + stages;
  for (uint32_t s = 0; s < stages && status == BL_OK; s++) {
    uint32_t lacking = wanted[s];
    take_preferred(&t, s, &lacking);
    for (; lacking > 0 && augment(&t, s); lacking--) {
    }
    for (uint32_t other = 0; lacking > 0 && rivals != NULL && other < stages; other++) {
      rivals[other] = other == s || t.stage_from[other] != UNSEEN; // visited by the failed search
    }
    if (lacking > 0) {
      status = bl_error_set(err, BL_EXHAUSTED,
                            "stage %u: evicts up to %u block%s at once, the stores it reaches have room for %u", s,
                            wanted[s], bl_plural(wanted[s]), wanted[s] - lacking);
    }
  }
  free(t.free_slots);
  return status;
}
