// SPDX-License-Identifier: Apache-2.0
#include "schedule/balance/device_slots.h"

#include "base/words.h"
#include "schedule/ir/peaks.h"

#include <stdlib.h>
#include <string.h>

// Counts the blocks of one stage that are evicted or dropped, and its slots at each store. `parked` [stores] is
// scratch.
static bl_status_t count_parked(const bl_schedule_t *schedule, uint32_t stage, uint32_t *parked,
                                bl_device_slots_t *device_slots, bl_error_t *err) {
  const bl_op_list_t *list = &schedule->lists[stage];
  uint32_t *peak = &device_slots->reserved[(size_t)stage * device_slots->stores];
  memset(parked, 0, device_slots->stores * sizeof *parked);
  for (size_t i = 0; i < list->count; i++) {
    bl_op_t op = list->ops[i];
    if (bl_op_type_computes((bl_op_type_t)op.type)) {
      device_slots->dropped[stage] += op.type == BL_OP_R && schedule->forward_slots;
      continue;
    }
    if (op.store >= device_slots->stores || op.store == stage) {
      char cell[BL_OP_TEXT];
      return bl_error_set(err, BL_INVALID,
                          "stage %u: %s names store %u; a block goes to the store of another of the %u devices, or to "
                          "one of the %u host stores after them",
                          stage, bl_op_format(op, cell), op.store, device_slots->devices, schedule->hosts);
    }
    if (op.type == BL_OP_E) {
      device_slots->evicted[stage]++;
      parked[op.store]++;
      peak[op.store] = parked[op.store] > peak[op.store] ? parked[op.store] : peak[op.store];
    } else {
      parked[op.store]--;
    }
  }
  for (uint32_t store = 0; store < device_slots->stores; store++) {
    device_slots->lent[store] += peak[store];
  }
  return BL_OK;
}

bl_status_t bl_device_slots_init(bl_device_slots_t *device_slots, const bl_schedule_t *schedule, bl_error_t *err) {
  const size_t devices = schedule->stages, stores = bl_schedule_stores(schedule);
  bl_device_slots_t made = {.devices = schedule->stages, .stores = bl_schedule_stores(schedule)};
  uint32_t *parked = calloc(stores, sizeof *parked);
  made.own = calloc(devices * (stores + 3) + stores, sizeof *made.own); // all five arrays
  bl_status_t status = BL_OK;
  if (parked == NULL || made.own == NULL) {
    status = bl_error_set(err, BL_EXHAUSTED, "no memory for what %u devices hold", made.devices);
    goto done;
  }
  made.lent = made.own + devices;
  made.evicted = made.lent + stores;
  made.dropped = made.evicted + devices;
  made.reserved = made.dropped + devices;
  if (bl_schedule_peak_slots(schedule, made.own) != BL_OK) {
    status = bl_error_set(err, BL_EXHAUSTED, "no memory for the peaks of %u stages", made.devices);
  }
  for (uint32_t stage = 0; stage < made.devices && status == BL_OK; stage++) {
    status = count_parked(schedule, stage, parked, &made, err);
  }
done:
  free(parked);
  if (status != BL_OK) {
    bl_device_slots_cleanup(&made);
    return status;
  }
  *device_slots = made;
  return BL_OK;
}

void bl_device_slots_cleanup(bl_device_slots_t *device_slots) {
  free(device_slots->own);
  *device_slots = (bl_device_slots_t){0};
}

bool bl_device_slots_move(const bl_device_slots_t *device_slots) {
  for (uint32_t store = 0; store < device_slots->stores; store++) {
    if (device_slots->lent[store] > 0) {
      return true;
    }
  }
  return false;
}

bool bl_device_slots_drop(const bl_device_slots_t *device_slots) {
  for (uint32_t device = 0; device < device_slots->devices; device++) {
    if (device_slots->dropped[device] > 0) {
      return true;
    }
  }
  return false;
}

bl_status_t bl_device_slots_check(const bl_device_slots_t *device_slots, uint32_t budget, bl_error_t *err) {
  for (uint32_t device = 0; device < device_slots->devices; device++) {
    uint32_t own = device_slots->own[device], lent = device_slots->lent[device];
    if (own > budget || lent > budget - own) {
      return bl_error_set(err, BL_EXHAUSTED, "device %u: %u own slot%s and %u lent are more than its budget of %u",
                          device, own, bl_plural(own), lent, budget);
    }
  }
  return BL_OK;
}
