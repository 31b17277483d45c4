// SPDX-License-Identifier: Apache-2.0
#include "schedule/generate/timetable.h"

#include "schedule/generate/generators.h"

#include <stdlib.h>

// A pass and the cell in which it runs next.
typedef struct turn {
  uint64_t at;
  uint32_t pass, round;
} turn_t;

static bool before(turn_t a, turn_t b) {
  return a.at < b.at || (a.at == b.at && a.pass < b.pass);
}

// Puts `turn` in the place of the heap's root and lets it sink.
static void sink(turn_t *heap, uint32_t count, uint32_t at, turn_t turn) {
  for (uint32_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
    child += child + 1 < count && before(heap[child + 1], heap[child]);
    if (!before(heap[child], turn)) {
      break;
    }
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = turn;
}

bl_status_t bl__timetable_fill(bl_schedule_t *schedule, uint32_t stage, const bl__timetable_entry_t *passes,
                               uint32_t pass_count, uint32_t period, uint32_t step) {
  turn_t *heap = malloc((pass_count + 1) * sizeof *heap);
  bl_status_t status = heap != NULL ? BL_OK : BL_EXHAUSTED;
  uint32_t count = 0;
  schedule->lists[stage].count = 0;
  for (uint32_t k = 0; k < pass_count && status == BL_OK; k++) {
    if (passes[k].first < schedule->micro_batches) {
      heap[count++] = (turn_t){passes[k].at, k, 0};
    }
  }
  for (uint32_t k = count / 2; k-- > 0;) {
    sink(heap, count, k, heap[k]);
  }
  while (status == BL_OK && count > 0) {
    turn_t turn = heap[0];
    const bl__timetable_entry_t *pass = &passes[turn.pass];
    status = bl__schedule_emit(schedule, pass->verb, pass->virtual_stage, pass->first + step * turn.round);
    turn.round++;
    turn.at = pass->at + (uint64_t)period * turn.round;
    if (pass->first + (uint64_t)step * turn.round >= schedule->micro_batches) {
      turn = heap[--count]; // its last round
    }
    if (count > 0) {
      sink(heap, count, 0, turn);
    }
  }
  free(heap);
  return status;
}
