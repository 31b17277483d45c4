// SPDX-License-Identifier: Apache-2.0
#include "schedule/costs.h"

#include <math.h>
#include <stdlib.h>

bl_status_t bl_costs_parse(const char *text, bl_costs_t *costs, bl_error_t *err) {
  static const char *const names[] = {"F", "B", "W", "COMM"};
  double values[4];
  const char *at = text;
  for (int i = 0; i < 4; i++) {
    char *end;
    values[i] = strtod(at, &end);
    if (end == at || !isfinite(values[i]) || values[i] < 0 || *end != (i < 3 ? ',' : '\0')) {
      return bl_error_set(err, BL_INVALID, "cost \"%s\": %s must be a number from 0 upwards (expected F,B,W,COMM)",
                          text, names[i]);
    }
    at = end + 1;
  }
  bl_costs_t parsed = {.every = {.forward = values[0], .input = values[1], .weight = values[2], .recompute = values[0]},
                       .boundary = values[3]};
  bl_status_t status = bl_costs_check(&parsed, 1, err);
  if (status == BL_OK) {
    *costs = parsed;
  }
  return status;
}

static bl_status_t check_value(double value, const char *name, uint32_t virtual_stage, bl_error_t *err) {
  if (!isfinite(value) || value < 0) {
    return bl_error_set(err, BL_INVALID, "cost of %s on virtual stage %u: must be a number from 0 upwards, is %g", name,
                        virtual_stage, value);
  }
  return BL_OK;
}

static bl_status_t check_latency(double value, const char *name, bl_error_t *err) {
  if (!isfinite(value) || value < 0) {
    return bl_error_set(err, BL_INVALID, "cost of %s: must be a number from 0 upwards, is %g", name, value);
  }
  return BL_OK;
}

bl_status_t bl_costs_check(const bl_costs_t *costs, uint32_t virtual_stages, bl_error_t *err) {
  static const char *const names[] = {"F", "I", "W", "R"};
  bool some_forward = false;
  for (uint32_t s = 0; s < virtual_stages; s++) {
    const bl_chunk_costs_t *chunk = bl_costs_chunk(costs, s);
    const double values[] = {chunk->forward, chunk->input, chunk->weight, chunk->recompute};
    for (int i = 0; i < 4; i++) {
      bl_status_t status = check_value(values[i], names[i], s, err);
      if (status != BL_OK) {
        return status;
      }
    }
    some_forward = some_forward || chunk->forward > 0;
  }
  if (!some_forward) {
    return bl_error_set(err, BL_INVALID, "cost of F: must be above 0 on some virtual stage");
  }
  bl_status_t status = check_latency(costs->boundary, "a boundary", err);
  return status == BL_OK ? check_latency(costs->path, "an evict or load", err) : status;
}
