// SPDX-License-Identifier: Apache-2.0
#include "schedule/generate/timetable.h"

#include "base/heap.h"
#include "schedule/generate/generators.h"

#include <stdlib.h>

// A pass and the cell in which it runs next.
typedef struct repetition {
  uint64_t at;
  uint32_t pass, round;
} repetition_t;

static bool before(const void *none, repetition_t a, repetition_t b) {
  (void)none;
  return a.at < b.at || (a.at == b.at && a.pass < b.pass);
}

BL_HEAP(repetitions, repetition_t, const void *, before)

bl_status_t bl__timetable_fill(bl_schedule_t *schedule, uint32_t stage, const bl__timetable_entry_t *passes,
                               uint32_t pass_count, uint32_t period, uint32_t step) {
  repetition_t *heap = malloc((pass_count + 1) * sizeof *heap);
  bl_status_t status = heap != NULL ? BL_OK : BL_EXHAUSTED;
  size_t count = 0;
  schedule->lists[stage].count = 0;
  for (uint32_t k = 0; k < pass_count && status == BL_OK; k++) {
    if (passes[k].first < schedule->micro_batches) {
      repetitions_push(NULL, heap, &count, (repetition_t){passes[k].at, k, 0});
    }
  }
  while (status == BL_OK && count > 0) {
    repetition_t repetition = heap[0];
    const bl__timetable_entry_t *pass = &passes[repetition.pass];
    status = bl__schedule_emit(schedule, pass->type, pass->virtual_stage, pass->first + step * repetition.round);
    repetition.round++;
    repetition.at = pass->at + (uint64_t)period * repetition.round;
    if (pass->first + (uint64_t)step * repetition.round >= schedule->micro_batches) {
      repetition = heap[--count]; // its last run
    }
    if (count > 0) {
      repetitions_put(NULL, heap, count, 0, repetition);
    }
  }
  free(heap);
  return status;
}
