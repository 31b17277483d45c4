// SPDX-License-Identifier: Apache-2.0
#include "choices.h"

#include "driver_core.h"
#include "sys/log.h"

#include <string.h>

#define LINES 4 // per run; the number of further ones is logged

static const bl_choice_share_t *find(const bl_stage_place_t *place, const char *shape) {
  for (size_t i = 0; i < place->choice_count; i++) {
    if (strcmp(place->choices[i].shape, shape) == 0) {
      return &place->choices[i];
    }
  }
  return NULL;
}

void bl__choices_compare(const bl_driver_t *driver) {
  char name[BL__STAGE_NAME_BYTES], other[BL__STAGE_NAME_BYTES];
  size_t differences = 0;
  for (size_t i = 0; i < driver->stage_count; i++) {
    const bl_stage_place_t *place = &driver->stages[i].place;
    for (size_t k = 0; k < place->choice_count; k++) {
      const bl_choice_share_t *choice = &place->choices[k], *first = NULL;
      size_t from = 0;
      while (from < i && (first = find(&driver->stages[from].place, choice->shape)) == NULL) {
        from++;
      }
      if (first == NULL || strcmp(first->algorithm, choice->algorithm) == 0 || ++differences > LINES) {
        continue;
      }
      bl_log(BL_LOG_WARNING, "products %s are made otherwise on %s (%s) than on %s (%s): their bits may differ",
             choice->shape, bl__stage_name(&driver->stages[i], name), choice->algorithm,
             bl__stage_name(&driver->stages[from], other), first->algorithm);
    }
  }
  if (differences > LINES) {
    bl_log(BL_LOG_WARNING, "and %zu more products are made otherwise on one stage than on another",
           differences - LINES);
  }
}
