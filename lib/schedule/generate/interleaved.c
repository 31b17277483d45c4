// SPDX-License-Identifier: Apache-2.0
// Interleaved 1F1B over v chunks a stage (Narayanan et al., SC 2021), in the order of Megatron-LM: forwards run in
// groups of p micro-batches, each group through all chunks of the stage before the next group.
#include "schedule/generate/generators.h"

#include <stdlib.h>

// The n-th forward of a stage is {chunk, micro-batch}; the n-th backward is the same with the chunks reversed.
typedef struct unit {
  uint32_t chunk, micro_batch;
} unit_t;

// Divides m micro-batches into groups of p; the remainder is spread over the groups, larger groups first. (With a group
// of fewer than p - 1 the first stage would wait for a forward that the last stage runs after a backward that waits for
// the first stage.)
static void fill_units(unit_t *units, uint32_t p, uint32_t m, uint32_t v) {
  uint32_t groups = m / p > 0 ? m / p : 1, n = 0, first = 0;
  for (uint32_t g = 0; g < groups; g++) {
    uint32_t count = m / groups + (g < m % groups);
    for (uint32_t chunk = 0; chunk < v; chunk++) {
      for (uint32_t i = 0; i < count; i++) {
        units[n++] = (unit_t){chunk, first + i};
      }
    }
    first += count;
  }
}

static uint32_t largest_group(uint32_t p, uint32_t m) {
  uint32_t groups = m / p > 0 ? m / p : 1;
  return (m + groups - 1) / groups;
}

static bl_status_t emit_unit(bl_schedule_t *schedule, uint32_t stage, bl_op_type_t type, const unit_t *unit) {
  uint32_t chunk = type == BL_OP_F ? unit->chunk : schedule->chunks - 1 - unit->chunk;
  return bl__schedule_emit(schedule, type, chunk * schedule->stages + stage, unit->micro_batch);
}

bl_status_t bl__generate_interleaved(const bl_schedule_request_t *request, bl_schedule_t *schedule, bl_error_t *err) {
  (void)err;
  uint32_t p = request->stages, m = request->micro_batches, v = request->chunks, total = m * v;
  unit_t *units = calloc(total, sizeof *units);
  bl_status_t status = units != NULL ? BL_OK : BL_EXHAUSTED;
  if (status == BL_OK) {
    fill_units(units, p, m, v);
  }
  for (uint32_t s = 0; s < p && status == BL_OK; s++) {
    uint32_t warm_up = (p - 1 - s) * 2 + (v - 1) * largest_group(p, m);
    warm_up = m < p || warm_up > total ? total : warm_up; // with less than one group: all forwards first
    for (uint32_t n = 0; n < total + warm_up && status == BL_OK; n++) {
      if (n < total) {
        status = emit_unit(schedule, s, BL_OP_F, &units[n]);
      }
      if (n >= warm_up && status == BL_OK) {
        status = emit_unit(schedule, s, BL_OP_B, &units[n - warm_up]);
      }
    }
  }
  free(units);
  return status;
}
