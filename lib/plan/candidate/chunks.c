// SPDX-License-Identifier: Apache-2.0
#include "plan/candidate/chunks.h"

bool bl__chunks_possible(const bl_schedule_info_t *info, uint32_t chunks) {
  return chunks == info->default_chunks || (info->any_chunks && chunks > info->default_chunks);
}

static uint32_t next_listed(const bl_plan_request_t *r, const bl_schedule_info_t *info, uint32_t chunks) {
  uint32_t next = 0;
  for (uint32_t i = 0; i < r->chunk_count; i++) {
    const uint32_t v = r->chunks[i];
    next = v > chunks && (next == 0 || v < next) && bl__chunks_possible(info, v) ? v : next;
  }
  return next;
}

uint32_t bl__chunks_next(const bl_plan_request_t *request, const bl_schedule_info_t *info, uint32_t stages,
                         uint32_t chunks) {
  if (request->chunk_count > 0) {
    return next_listed(request, info, chunks);
  }
  if (chunks == 0) {
    return info->default_chunks;
  }
  const uint32_t layers = request->model->layers;
  for (uint32_t next = chunks + 1; info->any_chunks && next <= BL__CHUNKS_MOST; next++) {
    const uint64_t all = (uint64_t)stages * next;
    if (all <= layers && (next <= BL__CHUNKS_USUAL || layers % all == 0)) {
      return next;
    }
  }
  return 0;
}
