// SPDX-License-Identifier: Apache-2.0
// Grouped interleaved 1F1B with split backward (PipeOffload, Wan et al., ICML 2025). The chunks of a stage follow each
// other G micro-batches apart, in a timetable of unit-time cells that repeats every 3 v cells. G from ceil(p / 2) to p
// trades memory, G (v - 1) + p blocks on stage 0 and one less on each stage after it, for bubble. The order is then
// improved with real costs, within the memory of stage 0. If it will be balanced (request->pooled), every stage stays
// within its own memory in the timetable.
#include "schedule/generate/timetable.h"
#include "schedule/ir/validate.h"
#include "schedule/search/search.h"
#include "schedule/search/searched.h"

#include <stdlib.h>

// Fills the list of a stage from the passes of one group. Its micro-batches follow each other 3 cells apart, with F, I
// and W in turn.
static bl_status_t fill_stage(bl_schedule_t *base, uint32_t stage, uint32_t group, bl__timetable_entry_t *passes) {
  uint32_t p = base->stages, v = base->chunks, behind = p - 1 - stage, n = 0;
  uint32_t first_backward = 3 * group * (v - 1) + stage + 3 * behind + 1;
  for (uint32_t c = 0; c < v; c++) {
    for (uint32_t i = 0; i < group; i++) {
      uint32_t offset = 3 * group * c + 3 * i, reversed = (v - 1 - c) * p + stage;
      passes[n++] = (bl__timetable_entry_t){BL_OP_F, c * p + stage, offset + stage, i};
      passes[n++] = (bl__timetable_entry_t){BL_OP_I, reversed, first_backward + offset, i};
      passes[n++] = (bl__timetable_entry_t){BL_OP_W, reversed, first_backward + offset + 1, i};
    }
  }
  return bl__timetable_fill(base, stage, passes, n, 3 * v * group, group);
}

bl_status_t bl__grouped_interleaved_base(bl_schedule_t *base, uint32_t group) {
  bl__timetable_entry_t *passes = malloc(3 * (size_t)base->chunks * group * sizeof *passes);
  bl_status_t status = passes != NULL ? BL_OK : BL_EXHAUSTED;
  for (uint32_t s = 0; s < base->stages && status == BL_OK; s++) {
    status = fill_stage(base, s, group, passes);
  }
  free(passes);
  return status == BL_OK ? bl_schedule_validate(base, NULL, NULL) : status;
}

bl_status_t bl__generate_grouped_interleaved(const bl_schedule_request_t *request, bl_schedule_t *schedule,
                                             bl_error_t *err) {
  uint32_t group = request->group != 0 ? request->group : request->stages;
  bl_schedule_t *base;
  bl_status_t status = bl_schedule_create_like(schedule, &base, err);
  if (status != BL_OK) {
    return status;
  }
  status = bl__grouped_interleaved_base(base, group);
  if (status == BL_OK) {
    status = bl__improve_within(base, request->pooled, (bl__orders_t){&base, 1, bl__generate_grouped_interleaved},
                                request, schedule);
  } else if (status == BL_INVALID) {
    status = bl_error_set(err, BL_INVALID,
                          "schedule grouped-interleaved: groups of %u cannot run on %u stages; use %u to %u", group,
                          request->stages, (request->stages + 1) / 2, request->stages);
  }
  bl_schedule_destroy(base);
  return status;
}
