// SPDX-License-Identifier: Apache-2.0
#include "page/history.h"

#include <math.h>
#include <stdlib.h>

bl_status_t bl_page_history_init(bl_page_history_t *history, size_t capacity, size_t devices, size_t hosts) {
  *history = (bl_page_history_t){.capacity = capacity,
                                 .devices = devices,
                                 .hosts = hosts,
                                 .steps = calloc(capacity, sizeof *history->steps),
                                 .per_device = calloc(capacity * devices, sizeof *history->per_device),
                                 .per_host = calloc(capacity * hosts + 1, sizeof *history->per_host)};
  if (history->steps == NULL || history->per_device == NULL || history->per_host == NULL) {
    bl_page_history_cleanup(history);
    return BL_EXHAUSTED;
  }
  return BL_OK;
}

void bl_page_history_cleanup(bl_page_history_t *history) {
  free(history->steps);
  free(history->per_device);
  free(history->per_host);
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
      .step = event->step, .policy_version = event->ran_under.version, .loss = event->loss, .seconds = event->seconds};
  const size_t stage_count = event->stage_count;
  size_t store_count = 0; // device stores, which precede the host stores
  while (store_count < event->store_count && !event->stores[store_count].of_host) {
    store_count++;
  }
  for (size_t d = 0; d < history->devices; d++) {
    bl_page_device_t *device = &history->per_device[at * history->devices + d];
#define TAKE(key, array, field) device->key = d < array##_count ? event->array##s[d].field : 0;
    BL_PAGE_DEVICE(TAKE)
  }
  for (size_t h = 0; h < history->hosts; h++) {
    bl_page_host_t *host = &history->per_host[at * history->hosts + h];
    const bool there = store_count + h < event->store_count;
#define TAKE_HOST(key, field) host->key = there ? event->stores[store_count + h].field : 0;
    BL_PAGE_HOST(TAKE_HOST)
  }
}

void bl_page_history_take(bl_page_history_t *history, const bl_driver_t *driver) {
  const bl_event_t *event;
  while ((event = bl_run_journal_after(bl_driver_journal(driver), history->revision)) != NULL) {
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

static json_t *host_json(const bl_page_history_t *history, size_t host) {
  json_t *object = json_object();
#define LIST_HOST(key, field) json_object_set_new(object, #key, json_array());
  BL_PAGE_HOST(LIST_HOST)
  for (size_t i = 0; i < history->count; i++) {
    const bl_page_host_t *at = &history->per_host[(history->first + i) % history->capacity * history->hosts + host];
#define APPEND_HOST(key, field) json_array_append_new(json_object_get(object, #key), json_integer(at->key));
    BL_PAGE_HOST(APPEND_HOST)
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
  json_t *hosts = json_array();
  for (size_t h = 0; h < history->hosts; h++) {
    json_array_append_new(hosts, host_json(history, h));
  }
  return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "step", step, "loss", loss, "seconds", seconds, "policy_version",
                   policy, "devices", devices, "hosts", hosts);
}
