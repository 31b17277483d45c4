// SPDX-License-Identifier: Apache-2.0
// Draws weights from a seed (EXECUTION.md 18) into memory of a device, on several threads. Every element is a function
// of seed, name and index alone, so bits do not depend on the number of threads.
//
//   bl_drawing_t drawing = {.model = &model, .seed = 1, .threads = 8, .device = device};
//   status = bl_drawing_begin(&drawing, err);
//   ... status = bl_drawing_put(&drawing, &parameter, &slice, to, err) ...   for each
//   bl_drawing_end(&drawing);
//
// Thread: any, one at a time. The drawing threads exist only inside bl_drawing_put.
#ifndef BALLAST_COMPUTE_MODEL_DRAWING_H
#define BALLAST_COMPUTE_MODEL_DRAWING_H

#include "base/error.h"
#include "device/device.h"
#include "model/layer_parts.h"

#include <stdint.h>

typedef struct bl_drawing {
  const bl_model_t *model; // borrowed, as is the device
  uint64_t seed;
  uint32_t threads; // 0: 1
  bl_device_t *device;
  float *piece; // buffer for drawn values, for a device whose memory the CPU cannot write; NULL elsewhere
} bl_drawing_t;

// Call it after all fields but `piece` are set. BL_EXHAUSTED.
BL_MUST_USE bl_status_t bl_drawing_begin(bl_drawing_t *drawing, bl_error_t *err);
void bl_drawing_end(bl_drawing_t *drawing); // also after bl_drawing_begin has failed
// Writes the slice of the parameter to `to`, [bl_slice_elements] in memory of the device. Returns the status of
// copying.
BL_MUST_USE bl_status_t bl_drawing_put(const bl_drawing_t *drawing, const bl_parameter_t *parameter,
                                       const bl_slice_t *slice, float *to, bl_error_t *err);

#endif
