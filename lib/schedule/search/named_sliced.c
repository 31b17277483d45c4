// SPDX-License-Identifier: Apache-2.0
#include "schedule/search/named_sliced.h"

#include "base/minmax.h"
#include "schedule/ir/peaks.h"
#include "schedule/ir/timing.h"
#include "schedule/search/cut.h"
#include "schedule/search/request_limits.h"

#include <stdlib.h>

#define SAME 1e-12 // share by which ends are the same

// Appends all operations of a virtual stage.
static bl_status_t fill(bl_schedule_t *shape, uint32_t virtual_stage, bool fused) {
  static const bl_op_type_t types[2][3] = {{BL_OP_F, BL_OP_I, BL_OP_W}, {BL_OP_F, BL_OP_B}};
  const uint32_t count = fused ? 2 : 3;
  bl_status_t status = BL_OK;
  for (uint32_t i = 0; i < count * shape->micro_batches * shape->slices && status == BL_OK; i++) {
    const uint32_t unit = i / count;
    const bl_op_t op = {.type = types[fused][i % count],
                        .virtual_stage = (uint16_t)virtual_stage,
                        .micro_batch = unit / shape->slices,
                        .slice = (uint8_t)(unit % shape->slices)};
    status = bl_schedule_append(shape, shape->stage_of[virtual_stage], op);
  }
  return status;
}

bl_status_t bl__sliced_may_be_faster(const bl_schedule_request_t *request, const bl__sliced_name_t *name,
                                     const bl_schedule_t *best, bl_schedule_t *shape, bool *may) {
  uint32_t *limits = malloc(2 * (size_t)shape->stages * sizeof *limits);
  bl_status_t status = limits != NULL ? BL_OK : BL_EXHAUSTED;
  double bound, t_end;
  shape->slices = best->slices;
  for (uint32_t s = 0; s < shape->virtual_stages && status == BL_OK; s++) {
    status = fill(shape, s, name->fused);
  }
  if (status == BL_OK) {
    bl__memory_limits(shape, request->memory, request->memory_of_stage, limits);
    bl__memory_limits(shape, name->memory, NULL, limits + shape->stages);
    for (uint32_t s = 0; s < shape->stages; s++) {
      limits[s] = bl_min_u32(limits[s], limits[shape->stages + s]);
    }
    status = bl__bound_within(shape, name->costs, limits, bl__recompute_options_of(request, shape), &bound);
  }
  if (status == BL_OK) {
    status = bl__makespan(best, request->costs, &t_end);
  }
  if (status == BL_OK) {
    *may = bound < t_end * (1 - SAME);
  }
  free(limits);
  return status;
}

// Sets *within: no stage exceeds the limits of the request on blocks and on slots.
static bl_status_t stays_within(const bl_schedule_request_t *request, const bl_schedule_t *made, bool *within) {
  const bl__recompute_options_t recompute = bl__recompute_options_of(request, made);
  const size_t stages = made->stages;
  uint32_t *limits = malloc(3 * stages * sizeof *limits);
  bl_status_t status = limits != NULL ? bl_schedule_peak_slots(made, limits + stages) : BL_EXHAUSTED;
  *within = status == BL_OK;
  if (status == BL_OK) {
    bl__memory_limits(made, request->memory, request->memory_of_stage, limits);
    bl_schedule_peak_blocks(made, limits + 2 * stages);
  }
  for (uint32_t s = 0; s < stages && *within; s++) {
    const uint32_t slots = limits[stages + s], blocks = limits[2 * stages + s];
    *within = blocks <= limits[s] && (recompute.slots == 0 || slots <= recompute.slots);
  }
  free(limits);
  return status;
}

bl_status_t bl__sliced_adopt_if_faster(const bl_schedule_request_t *request, const bl_schedule_t *named,
                                       bl_schedule_t **best) {
  const bl_placement_t placement = named->chunks < (*best)->chunks ? BL_PLACEMENT_CONTIGUOUS : named->placement;
  bl_schedule_t *cut;
  bool better = false;
  double ends[2];
  bl_status_t status =
      bl_schedule_create((*best)->name, placement, named->stages, (*best)->chunks, named->micro_batches, &cut, NULL);
  if (status != BL_OK) {
    return status;
  }
  cut->slices = named->slices;
  status = bl__cut_order(named, cut);
  if (status == BL_OK) {
    status = stays_within(request, cut, &better);
  }
  if (status == BL_OK && better) {
    status = bl__makespan(cut, request->costs, &ends[0]);
  }
  if (status == BL_OK && better) {
    status = bl__makespan(*best, request->costs, &ends[1]);
    better = status == BL_OK && ends[0] < ends[1] * (1 - SAME);
  }
  bl_schedule_destroy(better ? *best : cut);
  *best = better ? cut : *best;
  return status;
}
