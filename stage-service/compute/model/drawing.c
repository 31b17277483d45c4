// SPDX-License-Identifier: Apache-2.0
#include "compute/model/drawing.h"

#include "sys/ranges.h"

#include <stdlib.h>

#define PIECE_ELEMENTS (4u << 20) // drawn at a time for a device whose memory the CPU cannot write
#define LEAST_ELEMENTS 16384u     // minimum per thread: about a millisecond, far more than the start of a thread takes

typedef struct {
  const bl_drawing_t *drawing;
  const bl_parameter_t *parameter;
  const bl_slice_t *slice;
  uint64_t first; // element of the slice at the start of `values`
  float *values;
} piece_t;

static void draw(void *context, uint64_t first, uint64_t count) {
  const piece_t *piece = context;
  bl_slice_initial(piece->drawing->model, piece->parameter, piece->slice, piece->drawing->seed, piece->first + first,
                   count, piece->values + first);
}

bl_status_t bl_drawing_begin(bl_drawing_t *drawing, bl_error_t *err) {
  const bool copies = !drawing->device->host_memory;
  drawing->piece = copies ? malloc(PIECE_ELEMENTS * sizeof *drawing->piece) : NULL;
  return copies && drawing->piece == NULL ? bl_error_set(err, BL_EXHAUSTED, "no memory to draw weights in") : BL_OK;
}

void bl_drawing_end(bl_drawing_t *drawing) {
  free(drawing->piece);
  drawing->piece = NULL;
}

bl_status_t bl_drawing_put(const bl_drawing_t *drawing, const bl_parameter_t *parameter, const bl_slice_t *slice,
                           float *to, bl_error_t *err) {
  const uint64_t elements = bl_slice_elements(slice), most = drawing->piece == NULL ? elements : PIECE_ELEMENTS;
  bl_status_t status = BL_OK;
  for (uint64_t done = 0; done < elements && status == BL_OK; done += most) {
    const uint64_t left = elements - done, count = left < most ? left : most;
    piece_t piece = {drawing, parameter, slice, done, drawing->piece == NULL ? to : drawing->piece};
    bl_ranges_run(count, LEAST_ELEMENTS, drawing->threads, draw, &piece);
    if (drawing->piece != NULL) {
      status = bl_device_copy(drawing->device, NULL, to + done, drawing->piece, count * sizeof(float), err);
    }
  }
  return status;
}
