// SPDX-License-Identifier: Apache-2.0
#include "schedule/timetable.h"

#include "schedule/generators.h"

#include <stdlib.h>

bl_status_t bl__timetable_fill(bl_schedule_t *schedule, uint32_t stage, const bl__pass_t *passes, uint32_t pass_count,
                               uint32_t period, uint32_t step) {
  uint32_t *rounds = calloc(pass_count, sizeof *rounds); // how often each pass has run
  bl_status_t status = rounds != NULL ? BL_OK : BL_EXHAUSTED;
  schedule->lists[stage].count = 0;
  while (status == BL_OK) {
    uint32_t first = 0;
    uint64_t first_at = UINT64_MAX;
    for (uint32_t k = 0; k < pass_count; k++) {
      uint64_t at = passes[k].at + (uint64_t)period * rounds[k];
      uint64_t micro_batch = passes[k].first + (uint64_t)step * rounds[k];
      if (micro_batch < schedule->micro_batches && at < first_at) {
        first = k;
        first_at = at;
      }
    }
    if (first_at == UINT64_MAX) {
      break;
    }
    status = bl__schedule_emit(schedule, passes[first].verb, passes[first].virtual_stage,
                               passes[first].first + step * rounds[first]);
    rounds[first]++;
  }
  free(rounds);
  return status;
}
