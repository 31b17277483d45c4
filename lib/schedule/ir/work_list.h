// SPDX-License-Identifier: Apache-2.0
// Private to lib/schedule: the list of stages to check (again) because what they wait for may have happened. A stage is
// in the list at most once. The stage that was added last is taken first.
//
//   bl__work_list_t work;
//   if (bl__work_list_init(&work, stages)) {     // all stages, the first on top
//     uint32_t stage;
//     while (bl__work_list_take(&work, &stage)) {
//       ... advance the stage; for each stage that this may unblock: bl__work_list_add(&work, other)
//     }
//   }
//   bl__work_list_cleanup(&work);
#ifndef BALLAST_SCHEDULE_WORK_LIST_H
#define BALLAST_SCHEDULE_WORK_LIST_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct bl__work_list {
  uint32_t *stages; // [count] a stack, top last
  bool *listed;     // [stages]
  uint32_t count;
} bl__work_list_t;

// Returns false if the stage is already in the list.
static inline bool bl__work_list_add(bl__work_list_t *list, uint32_t stage) {
  const bool added = !list->listed[stage];
  if (added) {
    list->listed[stage] = true;
    list->stages[list->count++] = stage;
  }
  return added;
}

// Returns false if the list is empty.
static inline bool bl__work_list_take(bl__work_list_t *list, uint32_t *stage) {
  if (list->count == 0) {
    return false;
  }
  *stage = list->stages[--list->count];
  list->listed[*stage] = false;
  return true;
}

// Adds all stages. Returns false without memory; the caller must call cleanup in that case, too.
static inline bool bl__work_list_init(bl__work_list_t *list, uint32_t stages) {
  *list =
      (bl__work_list_t){.stages = calloc(stages, sizeof *list->stages), .listed = calloc(stages, sizeof *list->listed)};
  if (list->stages == NULL || list->listed == NULL) {
    return false;
  }
  for (uint32_t s = stages; s-- > 0;) {
    (void)bl__work_list_add(list, s);
  }
  return true;
}

static inline void bl__work_list_cleanup(bl__work_list_t *list) {
  free(list->stages);
  free(list->listed);
}

#endif
