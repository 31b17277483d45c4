// SPDX-License-Identifier: Apache-2.0
#include "schedule/search/cut.h"

#include <stdlib.h>

// Appends `op`, turned into an operation of a new chunk.
static bl_status_t append(bl_schedule_t *cut, bl_op_t op, bl_op_type_t type, uint32_t chunk) {
  op.type = type;
  op.virtual_stage = (uint16_t)chunk;
  return bl_schedule_append(cut, cut->stage_of[chunk], op);
}

bl_status_t bl__cut_order(const bl_schedule_t *whole, bl_schedule_t *cut) {
  const uint32_t v = cut->chunks / whole->chunks;
  bl_status_t status = BL_OK;
  for (uint32_t s = 0; s < whole->stages; s++) {
    cut->lists[s].count = 0;
    for (size_t i = 0; i < whole->lists[s].count && status == BL_OK; i++) {
      const bl_op_t op = whole->lists[s].ops[i];
      const uint32_t first = op.virtual_stage * v;
      const bool fused = op.type == BL_OP_B;
      for (uint32_t k = 0; k < v && status == BL_OK; k++) {
        const uint32_t chunk = op.type == BL_OP_F ? first + k : first + v - 1 - k;
        status = append(cut, op, fused ? BL_OP_I : (bl_op_type_t)op.type, chunk);
      }
      for (uint32_t k = v; k-- > 0 && fused && status == BL_OK;) {
        status = append(cut, op, BL_OP_W, first + k);
      }
    }
  }
  return status;
}

bl_chunk_costs_t *bl__cut_costs(const bl_costs_t *costs, uint32_t stages, uint32_t v) {
  bl_chunk_costs_t *whole = calloc(stages, sizeof *whole);
  for (uint32_t k = 0; whole != NULL && k < stages * v; k++) {
    const bl_chunk_costs_t *chunk = bl_costs_chunk(costs, k);
    whole[k / v].forward += chunk->forward;
    whole[k / v].input += chunk->input;
    whole[k / v].weight += chunk->weight;
    whole[k / v].recompute += chunk->recompute;
  }
  return whole;
}
