// SPDX-License-Identifier: Apache-2.0
#include "data/weights.h"

#include "compute/model/drawing.h"
#include "job/weights.h"

#include <stdlib.h>

#define PIECE_ELEMENTS (4u << 20) // copied at a time, for a device whose memory the CPU cannot write

typedef struct {
  const bl_weights_t *weights;
  bl_device_t *device;
  float *piece; // [PIECE_ELEMENTS]; NULL: values are read directly to their place
} source_t;

static bl_status_t fill_run(const source_t *source, const bl_parameter_t *parameter, uint64_t from, uint64_t elements,
                            float *values, bl_error_t *err) {
  if (source->piece == NULL) {
    return bl_weights_read(source->weights, parameter, from, elements, values, err);
  }
  bl_status_t status = BL_OK;
  for (uint64_t first = 0; first < elements && status == BL_OK; first += PIECE_ELEMENTS) {
    uint64_t left = elements - first, count = left < PIECE_ELEMENTS ? left : PIECE_ELEMENTS;
    status = bl_weights_read(source->weights, parameter, from + first, count, source->piece, err);
    if (status == BL_OK) {
      status = bl_device_copy(source->device, NULL, values + first, source->piece, count * sizeof(float), err);
    }
  }
  return status;
}

// The content of a place.
typedef struct {
  bl_parameter_t parameter;
  bl_slice_t slice;
} held_t;

static held_t held_at(const bl_chunk_start_t *start, const bl_parameter_place_t *place) {
  held_t held = {.parameter = bl_parameter_get(start->model, place->canonical_index)};
  held.slice =
      bl_layer_part_slice(start->model, &held.parameter, bl_layer_parts_count(start->layer_parts), place->part);
  return held;
}

static bl_status_t read_all(const bl_chunk_start_t *start, const bl_parameter_place_t *places, uint32_t count,
                            float *arena, bl_error_t *err) {
  bl_weights_t weights = {0};
  source_t source = {.weights = &weights, .device = start->device};
  bl_status_t status = BL_OK;
  if (!start->device->host_memory) {
    source.piece = malloc(PIECE_ELEMENTS * sizeof *source.piece);
    status = source.piece == NULL ? bl_error_set(err, BL_EXHAUSTED, "no memory to read weights into") : BL_OK;
  }
  status = status == BL_OK ? bl_weights_open(&weights, start->job->model.init, err) : status;
  for (uint32_t i = 0; i < count && status == BL_OK; i++) {
    const held_t held = held_at(start, &places[i]);
    for (uint64_t run = 0; run < held.slice.rows * held.slice.groups && status == BL_OK; run++) {
      status = fill_run(&source, &held.parameter, bl_slice_run(&held.slice, run), held.slice.run,
                        arena + places[i].offset_elements + run * held.slice.run, err);
    }
  }
  bl_weights_close(&weights);
  free(source.piece);
  return status;
}

static bl_status_t draw_all(const bl_chunk_start_t *start, const bl_parameter_place_t *places, uint32_t count,
                            float *arena, bl_error_t *err) {
  bl_drawing_t drawing = {.model = start->model,
                          .seed = (uint64_t)start->job->train.seed,
                          .threads = start->threads,
                          .device = start->device};
  bl_status_t status = bl_drawing_begin(&drawing, err);
  for (uint32_t i = 0; i < count && status == BL_OK; i++) {
    const held_t held = held_at(start, &places[i]);
    status = bl_drawing_put(&drawing, &held.parameter, &held.slice, arena + places[i].offset_elements, err);
  }
  bl_drawing_end(&drawing);
  return status;
}

bl_status_t bl_chunk_weights_load(const bl_chunk_start_t *start, float *arena, bl_error_t *err) {
  const uint32_t count = bl_chunk_span_place_count(start->model, start->span, start->layer_parts);
  bl_parameter_place_t *places = calloc(count, sizeof *places);
  if (places == NULL) {
    return bl_error_set(err, BL_EXHAUSTED, "no memory for the places of %u parameters", count);
  }
  const uint64_t elements = bl_chunk_span_places(start->model, start->span, start->layer_parts, places);
  bl_status_t status = bl_device_fill(start->device, NULL, arena, 0, elements * sizeof *arena, err);
  if (status == BL_OK) {
    status = start->job->model.init != NULL ? read_all(start, places, count, arena, err)
                                            : draw_all(start, places, count, arena, err);
  }
  free(places);
  return status;
}
