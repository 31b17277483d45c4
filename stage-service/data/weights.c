// SPDX-License-Identifier: Apache-2.0
#include "data/weights.h"

#include "job/weights.h"

#include <stdlib.h>
#include <string.h>

static bl_status_t fill(const bl_job_t *job, const bl_model_t *model, const bl_weights_t *weights,
                        const bl_parameter_place_t *place, float *arena, bl_error_t *err) {
  bl_parameter_t parameter = bl_parameter_get(model, place->canonical_index);
  float *values = arena + place->offset_elements;
  if (weights != NULL) {
    return bl_weights_read(weights, &parameter, 0, place->elements, values, err);
  }
  bl_parameter_initial(model, &parameter, (uint64_t)job->train.seed, 0, place->elements, values);
  return BL_OK;
}

bl_status_t bl_chunk_weights_load(const bl_job_t *job, const bl_model_t *model, bl_chunk_span_t span, float *arena,
                                  bl_error_t *err) {
  uint32_t count = bl_chunk_span_parameter_count(model, span);
  bl_parameter_place_t *places = calloc(count, sizeof *places);
  if (places == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the places of %u parameters", count);
  }
  uint64_t elements = bl_chunk_span_places(model, span, places);
  memset(arena, 0, elements * sizeof *arena);
  bl_weights_t weights = {0};
  bl_status_t status = BL_OK;
  if (job->model.init != NULL) {
    status = bl_weights_open(&weights, job->model.init, err);
  }
  for (uint32_t i = 0; i < count && status == BL_OK; i++) {
    status = fill(job, model, job->model.init != NULL ? &weights : NULL, &places[i], arena, err);
  }
  bl_weights_close(&weights);
  free(places);
  return status;
}
