// SPDX-License-Identifier: Apache-2.0
// The slots that a plan takes: on every device those of its own stage and those that its store lends to other stages,
// and those of every host store. The budget rule of a device is own + lent <= K, at every instant. Slots that hosts
// lend count for no device.
//
//   bl_device_slots_t device_slots;
//   bl_device_slots_init(&device_slots, balanced, &err);    // any valid schedule; one without evictions lends nothing
//   device_slots.own[2], device_slots.lent[5], bl_device_slots_reserved(&device_slots, 2, 5)
//   bl_device_slots_cleanup(&device_slots);
//
// Driver, stages and planner derive the same numbers from the same lists. Store d lives on the device of stage d; host
// stores follow (schedule.h).
// Thread: pure functions, any thread; device slots are read-only after init.
#ifndef BALLAST_SCHEDULE_DEVICE_SLOTS_H
#define BALLAST_SCHEDULE_DEVICE_SLOTS_H

#include "schedule/ir/schedule.h"

typedef struct bl_device_slots {
  uint32_t devices;
  uint32_t stores;    // of devices and hosts
  uint32_t *own;      // [devices] maximum of blocks that the stage holds in its own slots at once
  uint32_t *lent;     // [stores] slots of the store that are reserved for stages
  uint32_t *reserved; // [devices * stores] maximum of blocks of stage s that are parked at store d at once
  uint32_t *evicted;  // [devices] E's in the stage's list
  uint32_t *dropped;  // [devices] blocks that the stage drops and recomputes (drop.h)
} bl_device_slots_t;

// Counts slots in list order, which is the order of transfers between a stage and a store: an E may take the slot of
// the L before it. BL_INVALID: an E or L names no store, the stage's own, or one that does not exist. BL_EXHAUSTED.
// Precondition: the schedule is valid.
BL_MUST_USE bl_status_t bl_device_slots_init(bl_device_slots_t *device_slots, const bl_schedule_t *schedule,
                                             bl_error_t *err);
void bl_device_slots_cleanup(bl_device_slots_t *device_slots); // a zeroed one is fine

// Slots that `stage` reserves at a store, and slots that a store lends; 0 if the plan does not have the store.
static inline uint32_t bl_device_slots_reserved(const bl_device_slots_t *device_slots, uint32_t stage, uint32_t store) {
  return store < device_slots->stores ? device_slots->reserved[(size_t)stage * device_slots->stores + store] : 0;
}
static inline uint32_t bl_device_slots_lent(const bl_device_slots_t *device_slots, uint32_t store) {
  return store < device_slots->stores ? device_slots->lent[store] : 0;
}
// Returns whether any stage evicts blocks.
bool bl_device_slots_move(const bl_device_slots_t *device_slots);
// Returns whether any stage drops blocks.
bool bl_device_slots_drop(const bl_device_slots_t *device_slots);

// BL_EXHAUSTED names the first device whose own and lent slots exceed `budget`.
BL_MUST_USE bl_status_t bl_device_slots_check(const bl_device_slots_t *device_slots, uint32_t budget, bl_error_t *err);

#endif
