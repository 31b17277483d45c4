// SPDX-License-Identifier: Apache-2.0
#include "model/resident.h"

#include "base/bytes.h"

#define CACHE_LINE_ELEMENTS (BL_CACHE_LINE_BYTES / sizeof(float))

// True for a weight that only products read.
static bool is_of_products(bl_parameter_role_t role, bl_chunk_span_t span) {
  switch (role) {
  case BL_PARAMETER_QKV_WEIGHT:
  case BL_PARAMETER_Q_WEIGHT:
  case BL_PARAMETER_K_WEIGHT:
  case BL_PARAMETER_V_WEIGHT:
  case BL_PARAMETER_ATTENTION_OUT_WEIGHT:
  case BL_PARAMETER_FFN_IN_WEIGHT:
  case BL_PARAMETER_GATE_UP_WEIGHT:
  case BL_PARAMETER_GATE_WEIGHT:
  case BL_PARAMETER_UP_WEIGHT:
  case BL_PARAMETER_FFN_OUT_WEIGHT:
  case BL_PARAMETER_HEAD_WEIGHT:
    return true;
  case BL_PARAMETER_TOKEN_EMBEDDING: // a tied head's copy; operations look up rows of the embedding itself
    return !span.embedding;
  default:
    return false;
  }
}

uint64_t bl_resident_weights(const bl_model_t *model, bl_chunk_span_t span, bl_dtype_t dtype,
                             const bl_parameter_place_t *places, uint32_t count, uint64_t *offsets) {
  // The end of the last weight that stays on the device: in the new arena, and in `places`.
  uint64_t end = 0, after = UINT64_MAX;
  for (uint32_t i = 0; i < count; i++) {
    const bl_parameter_role_t role = bl_parameter_get(model, places[i].canonical_index).role;
    const bool stays = dtype == BL_DTYPE_FP32 || !is_of_products(role, span);
    if (stays) {
      end = places[i].offset_elements == after ? end : bl_align_up(end, CACHE_LINE_ELEMENTS);
    }
    if (offsets != NULL) {
      offsets[i] = stays ? end : BL_RESIDENT_NOWHERE;
    }
    if (stays) {
      end += places[i].reserved_elements;
      after = places[i].offset_elements + places[i].reserved_elements;
    }
  }
  return bl_align_up(end, CACHE_LINE_ELEMENTS);
}
