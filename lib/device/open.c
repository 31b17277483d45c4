// SPDX-License-Identifier: Apache-2.0
#include "device/open.h"

#include "base/bytes.h"
#include "base/words.h"
#include "device/module.h"

#include <stdio.h>
#include <string.h>

#define SURVEYED 8 // the most devices that a survey names

const char *bl_device_kind_name(bl_device_kind_t kind) {
  return kind == BL_DEVICE_CUDA ? "cuda" : "host";
}

static const bl_device_driver_t *driver_of(bl_device_kind_t kind, bl_error_t *err) {
  const bl_module_info_t *module;
  if (bl_module_open(bl_device_kind_name(kind), &module, err) != BL_OK) {
    return NULL;
  }
  return bl_module_interface(module, "device", sizeof(bl_device_driver_t), err);
}

bl_status_t bl_device_open(bl_device_kind_t kind, uint32_t ordinal, bl_device_t **device, bl_error_t *err) {
  if (kind == BL_DEVICE_HOST) {
    *device = bl_device_host();
    return BL_OK;
  }
  const bl_device_driver_t *driver = driver_of(kind, err);
  return driver == NULL ? BL_UNIMPLEMENTED : driver->open(ordinal, device, err);
}

void bl_device_close(bl_device_t *device) {
  if (device == NULL || device == bl_device_host()) {
    return;
  }
  const bl_device_driver_t *driver = driver_of(BL_DEVICE_CUDA, NULL);
  if (driver != NULL) {
    driver->close(device);
  }
}

bl_status_t bl_device_list(bl_device_kind_t kind, bl_device_summary_t *summaries, uint32_t capacity, uint32_t *count,
                           bl_error_t *err) {
  *count = 0;
  if (kind == BL_DEVICE_HOST) {
    return BL_OK;
  }
  const bl_device_driver_t *driver = driver_of(kind, err);
  return driver == NULL ? BL_UNIMPLEMENTED : driver->list(summaries, capacity, count, err);
}

bl_status_t bl_device_choose(bl_device_kind_t kind, int32_t wanted, uint32_t number, uint32_t *ordinal,
                             bl_error_t *err) {
  uint32_t count = 0;
  bl_status_t status = bl_device_list(kind, NULL, 0, &count, err);
  if (status == BL_OK) {
    *ordinal = wanted >= 0 || count == 0 ? (uint32_t)(wanted < 0 ? 0 : wanted) : number % count;
  }
  return status;
}

void bl_device_survey(bl_device_kind_t kind, char *text, size_t text_bytes) {
  bl_device_summary_t summaries[SURVEYED];
  uint32_t count;
  bl_error_t err;
  bl_error_clear(&err);
  if (bl_device_list(kind, summaries, SURVEYED, &count, &err) != BL_OK) {
    snprintf(text, text_bytes, "%s: %s", bl_device_kind_name(kind), err.text);
    return;
  }
  int used = snprintf(text, text_bytes, "%s: %u device%s", bl_device_kind_name(kind), count, bl_plural(count));
  for (uint32_t i = 0; i < count && i < SURVEYED && used >= 0 && (size_t)used < text_bytes; i++) {
    char bytes[BL_BYTES_TEXT];
    used += snprintf(text + used, text_bytes - (size_t)used, "%s %u %s (%s, compute capability %u.%u, %s)",
                     i == 0 ? ":" : ",", i, summaries[i].name, bl_bytes_format(summaries[i].total_bytes, bytes),
                     summaries[i].major, summaries[i].minor, summaries[i].address);
  }
}
