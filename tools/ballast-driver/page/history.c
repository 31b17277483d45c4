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
#define TAKE(key, array, field) device->key = d < event->array##_count ? event->array##s[d].field : 0;
    BL_PAGE_DEVICE(TAKE)
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
  json_t *object = json_object();
#define LIST(key, array, field) json_object_set_new(object, #key, json_array());
  BL_PAGE_DEVICE(LIST)
  for (size_t i = 0; i < history->count; i++) {
    const bl_page_device_t *at =
        &history->per_device[(history->first + i) % history->capacity * history->devices + device];
#define APPEND(key, array, field) json_array_append_new(json_object_get(object, #key), json_integer(at->key));
    BL_PAGE_DEVICE(APPEND)
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
