// SPDX-License-Identifier: Apache-2.0
// The last steps of a run, as drawn by the page: the memory of every device and its use.
// Thread: one owner. Memory: allocated once.
#ifndef BALLAST_DRIVER_PAGE_HISTORY_H
#define BALLAST_DRIVER_PAGE_HISTORY_H

#include "driver.h"

#include <jansson.h>

// What is drawn of a device: X(key of its list, array of a step event that has it, field in that array)
#define BL_PAGE_DEVICE(X)                                                                                              \
  X(own, stage, counters.own_slots)                                                                                    \
  X(peak, stage, counters.peak_slots)                                                                                  \
  X(lent, store, lent_slots)                                                                                           \
  X(leased, store, peak_leased)                                                                                        \
  X(evicted, stage, counters.evicted)                                                                                  \
  X(loaded, stage, counters.loaded)                                                                                    \
  X(recomputed, stage, counters.recomputed)
// The same for a host store.
#define BL_PAGE_HOST(X)                                                                                                \
  X(lent, lent_slots)                                                                                                  \
  X(leased, peak_leased)

#define BL__PAGE_FIELD(key, array, field) uint32_t key;
typedef struct bl_page_device {
  BL_PAGE_DEVICE(BL__PAGE_FIELD)
} bl_page_device_t;

#define BL__PAGE_HOST_FIELD(key, field) uint32_t key;
typedef struct bl_page_host {
  BL_PAGE_HOST(BL__PAGE_HOST_FIELD)
} bl_page_host_t;

typedef struct bl_page_step {
  uint64_t step, policy_version;
  double loss, seconds;
} bl_page_step_t;

typedef struct bl_page_history {
  size_t capacity, devices, hosts, first, count;
  bl_page_step_t *steps;        // ring, [capacity]
  bl_page_device_t *per_device; // [capacity * devices]
  bl_page_host_t *per_host;     // [capacity * hosts]
  uint64_t revision;            // of the journal
} bl_page_history_t;

BL_MUST_USE bl_status_t bl_page_history_init(bl_page_history_t *history, size_t capacity, size_t devices, size_t hosts);
void bl_page_history_cleanup(bl_page_history_t *history);
// Takes the events of the driver's journal that are new.
void bl_page_history_take(bl_page_history_t *history, const bl_driver_t *driver);
// Returns {"step": [...], "loss": [...], "seconds": [...], "policy_version": [...], "devices": [{"own": [...], ...},
// ...], "hosts": [{"lent": [...], "leased": [...]}, ...]}.
json_t *bl_page_history_json(const bl_page_history_t *history);

#endif
