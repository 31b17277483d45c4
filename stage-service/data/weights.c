// SPDX-License-Identifier: Apache-2.0
#include "data/weights.h"

#include "job/weights.h"

#include <stdlib.h>

#define PIECE_ELEMENTS (4u << 20) // at a time, for a device whose memory the CPU cannot write

typedef struct {
  const bl_job_t *job;
  const bl_model_t *model;
  bl_split_t split;
  const bl_weights_t *weights; // NULL: drawn
  bl_device_t *device;
  float *piece; // [PIECE_ELEMENTS]; NULL: values go where they belong at once
} source_t;

static bl_status_t get(const source_t *source, const bl_parameter_t *parameter, uint64_t first, uint64_t count,
                       float *values, bl_error_t *err) {
  if (source->weights != NULL) {
    return bl_weights_read(source->weights, parameter, first, count, values, err);
  }
  bl_parameter_initial(source->model, parameter, (uint64_t)source->job->train.seed, first, count, values);
  return BL_OK;
}

static bl_status_t fill_run(const source_t *source, const bl_parameter_t *parameter, uint64_t from, uint64_t elements,
                            float *values, bl_error_t *err) {
  if (source->piece == NULL) {
    return get(source, parameter, from, elements, values, err);
  }
  bl_status_t status = BL_OK;
  for (uint64_t first = 0; first < elements && status == BL_OK; first += PIECE_ELEMENTS) {
    uint64_t left = elements - first, count = left < PIECE_ELEMENTS ? left : PIECE_ELEMENTS;
    status = get(source, parameter, from + first, count, source->piece, err);
    if (status == BL_OK) {
      status = bl_device_copy(source->device, NULL, values + first, source->piece, count * sizeof(float), err);
    }
  }
  return status;
}

static bl_status_t fill(const source_t *source, const bl_parameter_place_t *place, float *arena, bl_error_t *err) {
  const bl_parameter_t parameter = bl_parameter_get(source->model, place->canonical_index);
  const bl_slice_t slice = bl_split_slice(source->model, &parameter, bl_split_parts(source->split), place->part);
  bl_status_t status = BL_OK;
  for (uint64_t i = 0; i < slice.rows * slice.groups && status == BL_OK; i++) {
    status = fill_run(source, &parameter, bl_slice_run(&slice, i), slice.run,
                      arena + place->offset_elements + i * slice.run, err);
  }
  return status;
}

bl_status_t bl_chunk_weights_load(const bl_job_t *job, const bl_model_t *model, bl_chunk_span_t span, bl_split_t split,
                                  bl_device_t *device, float *arena, bl_error_t *err) {
  uint32_t count = bl_chunk_span_place_count(model, span, split);
  bl_parameter_place_t *places = calloc(count, sizeof *places);
  if (places == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the places of %u parameters", count);
  }
  uint64_t elements = bl_chunk_span_places(model, span, split, places);
  bl_weights_t weights = {0};
  source_t source = {.job = job, .model = model, .split = split, .device = device};
  bl_status_t status = bl_device_fill(device, NULL, arena, 0, elements * sizeof *arena, err);
  if (!device->host_memory) {
    source.piece = malloc(PIECE_ELEMENTS * sizeof *source.piece);
    status = source.piece == NULL ? bl_error_set(err, BL_EXHAUSTED, "no memory to read weights into") : status;
  }
  if (status == BL_OK && job->model.init != NULL) {
    status = bl_weights_open(&weights, job->model.init, err);
    source.weights = &weights;
  }
  for (uint32_t i = 0; i < count && status == BL_OK; i++) {
    status = fill(&source, &places[i], arena, err);
  }
  bl_weights_close(&weights);
  free(source.piece);
  free(places);
  return status;
}
