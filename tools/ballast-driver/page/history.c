// SPDX-License-Identifier: Apache-2.0
#include "page/history.h"

#include <math.h>
#include <stdlib.h>

bl_status_t bl_page_history_init(bl_page_history_t *history, size_t capacity, size_t devices) {
  *history = (bl_page_history_t){.capacity = capacity,
                                 .devices = devices,
                                 .steps = calloc(capacity, sizeof *history->steps),
                                 .per_device = calloc(capacity * devices, sizeof *history->per_device)};
  if (history->steps == NULL || history->per_device == NULL) {
    bl_page_history_cleanup(history);
    return BL_EXHAUSTED;
  }
  return BL_OK;
}

void bl_page_history_cleanup(bl_page_history_t *history) {
  free(history->steps);
  free(history->per_device);
  *history = (bl_page_history_t){0};
}

static void add_step(bl_page_history_t *history, const bl_step_event_t *event) {
  size_t at = (history->first + history->count) % history->capacity;
  if (history->count == history->capacity) {
    history->first = (history->first + 1) % history->capacity;
  } else {
    history->count++;
  }
  history->steps[at] = (bl_page_step_t){
      .step = event->step, .policy_version = event->policy_version, .loss = event->loss, .seconds = event->seconds};
  for (size_t d = 0; d < history->devices; d++) {
    bl_page_device_t *device = &history->per_device[at * history->devices + d];
    *device = (bl_page_device_t){0};
    if (d < event->stage_count) {
      const bl_stage_counters_t *counters = &event->stages[d].counters;
      *device = (bl_page_device_t){.own = counters->own_slots,
                                   .peak = counters->peak_slots,
                                   .evicted = counters->evicted,
                                   .loaded = counters->loaded,
                                   .recomputed = counters->recomputed};
    }
    if (d < event->store_count) {
      device->lent = event->stores[d].lent_slots;
      device->leased = event->stores[d].peak_leased;
    }
  }
}

void bl_page_history_take(bl_page_history_t *history, const bl_driver_t *driver) {
  const bl_event_t *event;
  while ((event = bl_journal_after(bl_driver_journal(driver), history->revision)) != NULL) {
    history->revision = event->revision;
    if (event->kind == BL_EVENT_STEP) {
      add_step(history, &event->step);
    }
  }
}

static json_t *number(double value) {
  return isfinite(value) ? json_real(value) : json_null(); // JSON has no NaN
}

static json_t *device_json(const bl_page_history_t *history, size_t device) {
  static const char *const names[] = {"own", "peak", "lent", "leased", "evicted", "loaded", "recomputed"};
  json_t *object = json_object(), *lists[7];
  for (int i = 0; i < 7; i++) {
    lists[i] = json_array();
    json_object_set_new(object, names[i], lists[i]);
  }
  for (size_t i = 0; i < history->count; i++) {
    const bl_page_device_t *at =
        &history->per_device[(history->first + i) % history->capacity * history->devices + device];
    const uint32_t values[] = {at->own, at->peak, at->lent, at->leased, at->evicted, at->loaded, at->recomputed};
    for (int k = 0; k < 7; k++) {
      json_array_append_new(lists[k], json_integer(values[k]));
    }
  }
  return object;
}

json_t *bl_page_history_json(const bl_page_history_t *history) {
  json_t *step = json_array(), *loss = json_array(), *seconds = json_array(), *policy = json_array();
  for (size_t i = 0; i < history->count; i++) {
    const bl_page_step_t *at = &history->steps[(history->first + i) % history->capacity];
    json_array_append_new(step, json_integer((json_int_t)at->step));
    json_array_append_new(loss, number(at->loss));
    json_array_append_new(seconds, number(at->seconds));
    json_array_append_new(policy, json_integer((json_int_t)at->policy_version));
  }
  json_t *devices = json_array();
  for (size_t d = 0; d < history->devices; d++) {
    json_array_append_new(devices, device_json(history, d));
  }
  return json_pack("{s:o, s:o, s:o, s:o, s:o}", "step", step, "loss", loss, "seconds", seconds, "policy_version",
                   policy, "devices", devices);
}
